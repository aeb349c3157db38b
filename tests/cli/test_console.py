"""Console output: widths, singular and plural, and ranges of numbers."""

import io
import subprocess
import sys

import pytest

from mfedpba_mpi import load_run
from mfedpba_mpi.cli.console import console, count, ranges


@pytest.mark.parametrize(
    ("columns", "width"), [("72", 72), ("300", 300), ("3", 20), ("0", 120), ("wide", 120), (None, 120)]
)
def test_output_to_a_pipe_has_the_width_in_columns(monkeypatch, columns, width):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width
    assert console(io.StringIO()).width == 1000  # not the width of a screen


def test_a_number_agrees_with_its_noun():
    assert [count(n, "run") for n in range(3)] == ["no runs", "1 run", "2 runs"]
    assert [count(n, "modality", "modalities") for n in (1, 2)] == ["1 modality", "2 modalities"]


def test_a_closed_pipe_does_not_end_a_run(tmp_path):
    options = "--dataset synthetic --samples 120 --classes 3 --dims 6,10 --rounds 3 --out out"
    line = f"{sys.executable} -m mfedpba_mpi {options} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_run(tmp_path / "out").status == "complete"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([5], "5"), ([0, 1], "0-1"), ([0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text
