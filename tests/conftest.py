"""Shared fixtures; one thread per process, set before NumPy and torch load."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

os.environ.pop("COLUMNS", None)  # the width of piped output

import h5py  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from mfedpba_mpi import Run, load_run, plugins  # noqa: E402
from mfedpba_mpi.comm.serial import SerialComm  # noqa: E402
from mfedpba_mpi.config.run_config import RunConfig, make_config  # noqa: E402
from mfedpba_mpi.data.catalog import LOADERS  # noqa: E402
from mfedpba_mpi.data.seal import open_image, seal  # noqa: E402
from mfedpba_mpi.data.sources import resolve  # noqa: E402
from mfedpba_mpi.engine.loop import run_rounds  # noqa: E402
from mfedpba_mpi.engine.signals import SIGNALS, Stop  # noqa: E402
from mfedpba_mpi.methods import params  # noqa: E402
from mfedpba_mpi.models import architecture, extractors  # noqa: E402
from mfedpba_mpi.records.run_log import RunLog  # noqa: E402
from mfedpba_mpi.studies.study_file import find_study  # noqa: E402

torch.set_num_threads(1)

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
TINY = {"dataset": "synthetic", "samples": 120, "classes": 3, "dims": (6, 10, 8), "rounds": 3, "feature_dim": 8}
SMALL_STUDY = """
title = "Small"
[settings]
dataset = "synthetic"
samples = 120
classes = 3
dims = [6, 10, 8]
feature_dim = 8
rounds = 2
[cross]
method = ["local", "fedproto"]
seed = [0, 1]
[quick]
seed = [0]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., RunConfig]:
    """A function that makes the configuration of a run of a second; keyword arguments change it."""

    def make(**changes: object) -> RunConfig:
        config = make_config({**TINY, **changes})
        return resolve(config, tmp_path)

    return make


@pytest.fixture
def finished(tiny: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., Run]:
    """A function that runs a tiny configuration to its end and returns the log; keyword arguments change it."""

    def run(**changes: object) -> Run:
        directory = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        directory.mkdir()
        run_rounds(tiny(**changes), tmp_path, SerialComm(), [RunLog(directory)])
        return load_run(directory)

    return run


@pytest.fixture
def study_file(tmp_path: Path) -> str:
    """The name of a study file with two methods and two seeds; `command` runs in its directory."""
    (tmp_path / "small.toml").write_text(SMALL_STUDY)
    return "small.toml"


@pytest.fixture
def incomplete_study(finished: Callable[..., Run], tmp_path: Path) -> Path:
    """The directory of a study with two methods and two seeds; all runs but the last are complete."""
    directory = tmp_path / "study"
    directory.mkdir()
    (directory / "study.toml").write_text(
        'title = "Two <methods>"\n[settings]\ndataset = "synthetic"\n'
        '[cross]\nmethod = ["local", "mfedpba"]\nseed = [0, 1]\n'
    )
    for key in find_study(str(directory)).run_keys()[:-1]:
        run = finished(method=key.labels["method"].lower(), seed=int(key.labels["seed"]), families=("DNN",))
        (directory / key.path).parent.mkdir(exist_ok=True)
        run.path.parent.rename(directory / key.path)
    return directory


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A function like `finished` that makes a run only once for all tests, which must leave it as it is."""
    data, runs = tmp_path_factory.mktemp("data"), {}

    def make(**changes: object) -> Run:
        key = repr(sorted(changes.items()))
        if key not in runs:
            config = make_config({**TINY, **changes})
            directory = tmp_path_factory.mktemp("run")
            run_rounds(resolve(config, data), data, SerialComm(), [RunLog(directory)])
            runs[key] = load_run(directory)
        return runs[key]

    return make


@pytest.fixture
def own_family() -> Iterator[Callable[..., None]]:
    """`register` of extractors, undone after the test."""
    kept = dict(architecture.FAMILIES), dict(extractors.BUILDERS)
    yield extractors.register
    for catalog, entries in zip((architecture.FAMILIES, extractors.BUILDERS), kept, strict=True):
        catalog.clear()
        catalog.update(entries)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs ``mfedpba-mpi ARGS`` in a directory of its own, on `ranks` ranks where that is given."""

    def call(*args: object, ranks: int = 0, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        if ranks and not shutil.which("mpirun"):
            pytest.skip("no mpirun on the PATH")
        line = [*(["mpirun", "-n", str(ranks)] if ranks else []), sys.executable, "-m", "mfedpba_mpi", *map(str, args)]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=timeout)

    return call


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts ``mfedpba-mpi ARGS --out out`` and returns once a few rounds are done."""
    processes = []

    def start(*args: object, ranks: int = 0) -> subprocess.Popen[str]:
        line = [*(["mpirun", "-n", str(ranks)] if ranks else []), sys.executable, "-m", "mfedpba_mpi", *map(str, args)]
        process = subprocess.Popen([*line, "--out", "out"], cwd=tmp_path, stdout=-1, stderr=-1, text=True)
        processes.append(process)
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            if (tmp_path / "out/run.h5").exists() and len(load_run(tmp_path / "out").rounds.get("tested", ())) > 2:
                return process
        process.kill()
        return pytest.fail(f"no round in a minute: {process.communicate()}")

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def edit_log() -> Callable[[Path, Callable[[h5py.File], object]], Path]:
    """A function that changes a run's log, with a valid checksum, and returns its path."""

    def edit(path: Path, change: Callable[[h5py.File], object]) -> Path:
        with open_image(path) as file:
            change(file)
            file.flush()
            image = file.id.get_file_image()
        path.write_bytes(seal(image))
        return path

    return edit


@pytest.fixture
def killed(edit_log: Callable[..., Path]) -> Callable[[Path], None]:
    """A function that makes a run look as if it had been killed before its first checkpoint."""

    def make(directory: Path) -> None:
        shutil.rmtree(directory / "checkpoints")
        edit_log(directory / "run.h5", lambda file: file.attrs.update(status="running"))

    return make


@pytest.fixture
def shared_data() -> Path:
    """The directory of real datasets beside the project, where there is one."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture
def stop() -> Iterator[Stop]:
    """A `Stop` that listens to the signals of this process; the handlers are restored after the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = Stop()
    stop.listen()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def unload_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A function that unloads all plugins and their registrations; it is also called before and after the test."""
    registries = (params.METHODS, params._REGISTERED, LOADERS, plugins.LOADED)
    before = [dict(entries) for entries in registries]
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(plugins.VARIABLE, raising=False)

    def unload() -> None:
        for entries, original in zip(registries, before, strict=True):
            entries.clear()
            entries.update(original)
        plugins.load_defaults.cache_clear()

    unload()
    yield unload
    unload()


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a plugin file."""

    def write(text: str, name: str = "own.py") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write
