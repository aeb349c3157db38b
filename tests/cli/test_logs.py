"""Log messages of the command: levels, and the rank in each line."""

import re

RUN = ("--dataset", "synthetic", "--samples", 120, "--classes", 3, "--dims", "6,10", "--rounds", 1)


def test_messages_below_the_level_are_not_printed(command, monkeypatch):
    monkeypatch.delenv("MFEDPBA_LOG_LEVEL", raising=False)
    assert command(*RUN, "--out", "quiet").stderr == ""
    monkeypatch.setenv("MFEDPBA_LOG_LEVEL", "info")
    assert "mfedpba-mpi: info: checkpoint of round 1 written in " in command(*RUN, "--out", "verbose").stderr


def test_every_line_names_its_rank(command, monkeypatch):
    monkeypatch.setenv("MFEDPBA_LOG_LEVEL", "INFO")
    errors = command(*RUN, "--out", "out", ranks=3).stderr
    devices = re.findall(r"^mfedpba-mpi: rank (\d): info: device cpu: .*, clients (.*)$", errors, re.MULTILINE)
    assert set(devices) == {("0", "[]"), ("1", "[0]"), ("2", "[1]")}


def test_an_unknown_level_is_an_error(command, monkeypatch):
    monkeypatch.setenv("MFEDPBA_LOG_LEVEL", "loud")
    done = command(*RUN)
    assert (done.returncode, done.stderr) == (
        2, "mfedpba-mpi: MFEDPBA_LOG_LEVEL: 'loud' is not one of debug, info, warning, error\n",
    )  # fmt: skip
