"""``mfedpba-mpi data``, command by command."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mfedpba_mpi.cli.data import data
from mfedpba_mpi.data.store import FeatureStore
from mfedpba_mpi.errors import UserError

SHAPE = ("synthetic", "--samples", "60", "--classes", "3", "--dims", "6,10")


def call(data_dir: Path, *args: object) -> str:
    """Return the output of the command, except that of the child process of an import; a UserError passes through."""
    result = CliRunner().invoke(
        data, list(map(str, args)), env={"MFEDPBA_DATA_DIR": str(data_dir)}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_list_shows_existing_missing_and_unreadable_datasets(tmp_path: Path) -> None:
    call(tmp_path, "synthesize", *SHAPE)
    (tmp_path / "broken.h5").write_text("not HDF5")
    lines = call(tmp_path, "list").splitlines()
    assert any("youtube" in line and "missing" in line for line in lines)
    assert any("synthetic-n60-c3-d6x10" in line and "60" in line for line in lines)
    assert any("broken" in line and "unreadable" in line for line in lines)


def test_inspect_marks_a_stand_in_as_synthetic(tmp_path: Path) -> None:
    call(tmp_path, "synthesize", *SHAPE)
    output = call(tmp_path, "inspect", "synthetic-n60-c3-d6x10")
    assert "SYNTHETIC" in output
    assert "60 samples, 3 classes (20 to 20 samples, median 20), 2 modalities" in output


@pytest.mark.parametrize("partition", ["m1", "m2", "m1+"])
def test_show_draws_a_partition_without_a_run(partition: str, tmp_path: Path) -> None:
    call(tmp_path, "synthesize", *SHAPE)
    options = ("--partition", partition, "--clients", 4, "--seed", 1, "--out", tmp_path / "own.png")
    output = call(tmp_path, "show", "synthetic-n60-c3-d6x10", *options)
    assert "own.png" in output
    assert "synthetic data" in output
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "own.pdf").is_file()


def test_show_refuses_other_files_than_png(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a FILE\.png"):
        call(tmp_path, "show", "youtube", "--out", "own.jpg")


def test_inspect_shows_real_sparse_data(shared_data: Path, tmp_path: Path) -> None:
    call(tmp_path, "import", "reuters_600", "--from", shared_data / "reuters_600.h5")
    output = call(tmp_path, "inspect", tmp_path / "reuters_600.h5")
    assert "SYNTHETIC" not in output
    assert "sparse" in output
    assert "mbrbic/Multi-view-LRSSC" in output


def test_an_import_shows_statistics_and_warns_of_rows_that_do_not_match_their_labels(
    tmp_path: Path, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    views = {"good": np.eye(3)[labels] + 0.1 * rng.normal(size=(300, 3)), "scram[bold]ed": rng.normal(size=(300, 4))}
    np.savez(tmp_path / "own.npz", labels=labels, **views)
    own = ("--name", "own", "--types", "A,T", "--data-dir", ".")
    output = command("data", "import", "custom", *own, "--from", "own.npz").stdout
    for words in ("300 samples, 3 classes (100 to 100 samples", "A audio", "T time series", "sha256", "--dataset own"):
        assert words in output
    assert "scram[bold]ed: linear accuracy is no better than always predicting the largest class (33.3%)" in output
    assert FeatureStore(tmp_path / "own.h5").info.classes == 3


def test_a_custom_dataset_needs_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs its own name: --name NAME"):
        call(tmp_path, "import", "custom", "--from", tmp_path)
    with pytest.raises(UserError, match="youtube is a catalog name, use `data import youtube`"):
        call(tmp_path, "import", "custom", "--name", "youtube", "--from", tmp_path)
    with pytest.raises(UserError, match="--name and --types need `data import custom`"):
        call(tmp_path, "import", "mfeat", "--types", "I", "--from", tmp_path)


def test_inspect_of_a_missing_dataset_suggests_commands(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no dataset youtube in .*data synthesize"):
        call(tmp_path, "inspect", "youtube")


def test_a_stand_in_with_another_seed_has_its_own_file(tmp_path: Path) -> None:
    call(tmp_path, "synthesize", *SHAPE, "--seed", 7)
    assert [p.name for p in (tmp_path / "synthetic").iterdir()] == ["synthetic-n60-c3-d6x10-seed7.h5"]


def test_synthesize_does_not_replace_real_data(shared_data: Path, tmp_path: Path) -> None:
    call(tmp_path, "import", "mfeat", "--from", shared_data / "mfeat.h5")
    with pytest.raises(UserError, match="has real data"):
        call(tmp_path, "synthesize", *SHAPE, "--out", tmp_path / "mfeat.h5")


def test_synthesize_refuses_a_shape_for_a_catalog_dataset(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="youtube has a fixed shape"):
        call(tmp_path, "synthesize", "youtube", "--samples", 100)
    for zero in (("--samples", "0"), ("--classes", "0"), ("--classes", "1")):
        assert "not in the range" in CliRunner().invoke(data, ["synthesize", "synthetic", *zero]).output
    with pytest.raises(UserError, match=r"expected integers separated by commas, e\.g\. 64,128, got '6;4'"):
        call(tmp_path, "synthesize", "synthetic", "--dims", "6;4")
    with pytest.raises(UserError, match="unknown dataset 'utube'"):
        call(tmp_path, "synthesize", "utube")


def test_import_replaces_a_file_only_with_overwrite(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "mfeat.h5"
    out = tmp_path / "elsewhere" / "digits.h5"
    call(tmp_path, "import", "mfeat_1", "--from", source, "--out", out)
    with pytest.raises(UserError, match="--overwrite replaces it"):
        call(tmp_path, "import", "mfeat_2", "--from", source, "--out", out)
    assert FeatureStore(out).info.name == "mfeat_1"
    call(tmp_path, "import", "mfeat_2", "--from", source, "--out", out, "--overwrite")
    assert FeatureStore(out).info.name == "mfeat_2"


def test_an_unreadable_file_gives_one_line_and_exit_code_2(
    tmp_path: Path, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "own.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    done = command("data", "import", "custom", "--name", "own", "--from", "own.mat")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "own.mat" in done.stderr
