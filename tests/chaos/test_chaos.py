"""A few cases of ``python -m tests.chaos``, one for each way in which a run ends early."""

import shutil
from pathlib import Path

import pytest

from tests.chaos.case import Chaos, mitigates


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Chaos:
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun on the PATH")
    return Chaos(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize(
    ("setting", "faults"),
    [
        ("mfedpba", [("kill", "checkpoint not yet moved"), ("kill", "restore")]),
        ("mfedpba", [("segv", "log half written")]),
        ("harmony", [("usr1", "training")]),
        ("mfedpba", [("term", "pruning")]),
        ("harmony", [("limit", "")]),
        ("mfedpba", [("damage", "")]),
        ("mfedpba", [("lost", "file half written")]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(kind for kind, _ in value),
)
def test_a_run_is_resumed_after_faults(chaos: Chaos, setting: str, faults: list[tuple[str, str]]) -> None:
    if faults[0][0] == "lost" and not mitigates():
        pytest.skip("only with Open MPI can ranks continue after another rank dies")
    result = chaos.run(seed=1, number=0, only=setting, faults=faults)
    assert not result.problems, (result.history, result.problems)
    assert result.kinds, result.history


def test_the_board_of_a_process_is_read_from_outside(tmp_path: Path) -> None:
    from tests.chaos.board import NAMES, Board

    inside, outside = Board(tmp_path / "rank-0", create=True), Board(tmp_path / "rank-0")
    inside["point"] = NAMES.index("pruning")
    assert outside.point == "pruning"
