"""Checkpoints: a resumed run equals an uninterrupted one bit for bit, and damaged checkpoints are detected."""

import errno
import json
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from mfedpba_mpi import Observer, load_run
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.errors import Ended, UserError
from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.methods.params import METHODS
from mfedpba_mpi.records import checkpoint
from mfedpba_mpi.records.checkpoint import Checkpoints, Saved
from mfedpba_mpi.records.run_log import RunLog


@pytest.fixture
def interrupted(tiny, tmp_path, monkeypatch):
    """A function that starts a run and sends it a signal while a client trains; returns its directory."""

    def start(config, stop, t, k=1):
        directory = tmp_path / f"broken{len(list(tmp_path.glob('broken*')))}"
        directory.mkdir()
        epoch = Client.epoch

        def signalled(self, now, number):
            if (now, self.k) == (t, k):
                signal.raise_signal(signal.SIGUSR1)
            return epoch(self, now, number)

        with monkeypatch.context() as patch:
            patch.setattr(Client, "epoch", signalled)
            with pytest.raises(Ended, match=f"stopped by SIGUSR1 after round {t - 1}") as end:
                run_rounds(config, tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory), stop)
        assert (end.value.status, end.value.exit_code) == ("interrupted", 75)
        return directory

    return start


def go_on(config, data, directory):
    run_rounds(config, data, SerialComm(), [RunLog(directory)], Checkpoints(directory))
    return load_run(directory)


def assert_same(run, other):
    assert run.rounds.keys() == other.rounds.keys()
    for name, values in run.rounds.items():
        if not name.startswith("seconds_"):
            np.testing.assert_array_equal(other.rounds[name], values, err_msg=name)
    assert run.final.keys() == other.final.keys()
    for name, value in run.final.items():
        np.testing.assert_array_equal(other.final[name], value, err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_goes_on_bit_for_bit(tiny, finished, interrupted, stop, tmp_path, method):
    settings = {"method": method, "clients": 5, "participation": 0.6, "rounds": 6, "alpha": 1.0}
    config = tiny(**settings)
    directory = interrupted(config, stop, 4, k=int(np.flatnonzero(participants(finished, settings, 4))[-1]))
    assert len(load_run(directory).rounds["accuracy"]) == 3
    assert_same(finished(**settings), go_on(config, tmp_path, directory))


def participants(finished, settings, t):
    """Who takes part in round `t`, a row of bools; it does not depend on the method."""
    return finished(**{**settings, "method": "local"}).rounds["participants"][t - 1]


@pytest.mark.parametrize("fusion", ["separate", "concat"])
def test_the_other_fusions_too(tiny, finished, interrupted, stop, tmp_path, fusion):
    directory = interrupted(tiny(fusion=fusion), stop, 2)
    assert_same(finished(fusion=fusion), go_on(tiny(fusion=fusion), tmp_path, directory))


def test_a_run_stopped_in_its_first_round_starts_over(tiny, finished, interrupted, stop, tmp_path):
    directory = interrupted(tiny(), stop, 1)
    assert not (directory / "checkpoints").exists()
    assert_same(finished(), go_on(tiny(), tmp_path, directory))


@pytest.fixture
def saved(tiny, tmp_path):
    """A run of three rounds with a checkpoint after each: (its configuration, its directory)."""
    directory = tmp_path / "saved"
    directory.mkdir()
    run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory, every=1, keep="all"))
    return tiny(), directory


def test_two_generations_are_kept_and_each_carries_the_log_of_its_rounds(saved):
    places = sorted((saved[1] / "checkpoints").iterdir())
    assert [path.name for path in places] == ["round-00000002", "round-00000003"]
    for path, rounds in zip(places, (2, 3), strict=True):
        log = load_run(path / "log.h5")
        assert (log.status, len(log.rounds["accuracy"])) == ("running", rounds)


@pytest.mark.parametrize(("keep", "left"), [("last", ["round-00000003"]), ("none", [])])
def test_a_complete_run_keeps_only_what_it_is_told_to(tiny, tmp_path, keep, left):
    class Look(Observer):
        """Sees which checkpoints there are at the time at which the log says complete."""

        def end(self, end):
            assert load_run(tmp_path / "run").status == "complete"
            self.places = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())

        def start(self, start):
            (tmp_path / "run/checkpoints/.round-00000001.part").mkdir(parents=True)

    (tmp_path / "run").mkdir()
    look, checkpoints = Look(), Checkpoints(tmp_path / "run", every=1, keep=keep)
    run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(tmp_path / "run"), look], checkpoints)
    assert {"round-00000002", "round-00000003"} <= set(look.places)
    assert [path.name for path in (tmp_path / "run").glob("checkpoints/*")] == left
    assert (tmp_path / "run/checkpoints").exists() == bool(left)


def test_a_run_that_is_not_complete_keeps_two_checkpoints_whatever_it_was_told(tiny, tmp_path, monkeypatch):
    epoch = Client.epoch

    def fail(self, t, number):
        if t == 3:
            raise ValueError("no")
        return epoch(self, t, number)

    monkeypatch.setattr(Client, "epoch", fail)
    with pytest.raises(Ended):
        run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(tmp_path)], Checkpoints(tmp_path, every=1, keep="none"))
    assert len(list(tmp_path.glob("checkpoints/round-*"))) == 2


def test_a_finished_run_can_be_extended(saved, tiny, finished, tmp_path):
    from mfedpba_mpi.engine.resume import extended

    assert_same(finished(rounds=5), go_on(extended(saved[0], 5), tmp_path, saved[1]))


def test_extending_harmony_keeps_its_stages(tiny, finished, tmp_path):
    from mfedpba_mpi.engine.resume import extended

    config = tiny(method="harmony", rounds=3)
    run = tmp_path / "harmony"
    run.mkdir()
    run_rounds(config, tmp_path, SerialComm(), [RunLog(run)], Checkpoints(run))
    longer = extended(config, 6)
    assert longer.params.stage1_rounds == 2
    assert_same(finished(method="harmony", rounds=6, harmony={"stage1_rounds": 2}), go_on(longer, tmp_path, run))


@pytest.mark.parametrize("name", ["manifest.json", "rank-0.safetensors", "server.safetensors", "log.h5"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(saved, finished, tmp_path, name, harm):
    config, directory = saved
    path = directory / "checkpoints" / "round-00000003" / name
    data = bytearray(path.read_bytes())
    path.unlink()  # the log may be the same file as the run's own
    if harm != "remove":
        data[len(data) // 3] ^= 4
        path.write_bytes(data if harm == "flip" else data[: len(data) // 2])
    warnings = []
    found = Checkpoints(directory).newest(SerialComm(), warnings.append)
    assert found.round == 2
    assert len(warnings) == 1
    assert f"{name} is damaged" in warnings[0]
    assert_same(finished(), go_on(config, tmp_path, directory))


def test_a_manifest_that_reads_well_but_says_something_else_is_damaged(saved):
    path = saved[1] / "checkpoints" / "round-00000003" / "manifest.json"
    path.write_text(path.read_text().replace(r"\"round\": 3", r"\"round\": 2"))
    with pytest.raises(UserError, match=r"manifest.json is damaged: its checksum is wrong"):
        Saved(path.parent)


def test_where_no_checkpoint_is_sound_the_user_is_told(saved):
    for path in saved[1].glob("checkpoints/*/manifest.json"):
        path.write_text("{}")
    with pytest.raises(UserError, match=r"no checkpoint in .* is intact; start over with `run --overwrite`"):
        Checkpoints(saved[1]).newest(SerialComm(), lambda words: None)


def test_a_manifest_cannot_name_files_elsewhere(saved):
    import hashlib

    path = saved[1] / "checkpoints" / "round-00000003" / "manifest.json"
    body = json.loads(json.loads(path.read_text())["body"])
    body["files"] = {"../../run.h5": {"bytes": 1, "sha256": ""}}
    text = json.dumps(body)
    path.write_text(json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text}))
    with pytest.raises(UserError, match="lists files that do not belong to a checkpoint"):
        Saved(path.parent)


def test_what_a_killed_write_left_behind_is_no_checkpoint(saved):
    directory = saved[1]
    shutil.copytree(directory / "checkpoints/round-00000003", directory / "checkpoints/.round-00000009.part")
    assert Checkpoints(directory).newest(SerialComm(), pytest.fail).round == 3
    assert not list(directory.glob("checkpoints/.*"))


def test_other_data_are_refused(saved, tiny, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(UserError, match=r"is not the data that the run in .* was started with .* use --data-dir"):
        run_rounds(tiny(samples=140), elsewhere, SerialComm(), [], Checkpoints(saved[1]))


def test_a_full_disk_ends_the_run_with_the_last_checkpoint_intact(tiny, finished, tmp_path, monkeypatch):
    directory = tmp_path / "full"
    directory.mkdir()
    save = checkpoint._save

    def full(path, *args):
        if "00000002" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_save", full)
        with pytest.raises(Ended, match=r"cannot write the checkpoint of round 2: No space left .* round 1 is intact"):
            run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory, every=1))
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["round-00000001"]
    assert len(load_run(directory).rounds["accuracy"]) == 2
    assert_same(finished(), go_on(tiny(), tmp_path, directory))


def test_a_failing_round_leaves_a_checkpoint_of_the_last_good_one(tiny, finished, tmp_path, monkeypatch):
    directory = tmp_path / "failing"
    directory.mkdir()
    prototypes = Client.prototypes

    def spoilt(self):
        found = prototypes(self)
        return {name: x / 0 for name, x in found.items()} if (self.k, next(counted)) == (2, 8) else found

    counted = iter(range(100))  # three clients a round: client 2 in round 3
    with monkeypatch.context() as patch:
        patch.setattr(Client, "prototypes", spoilt)
        with pytest.raises(Ended, match="client 2, round 3: its E is not finite") as end:
            run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(directory)], Checkpoints(directory))
    assert (end.value.status, end.value.exit_code) == ("failed", 1)
    assert len(load_run(directory).rounds["accuracy"]) == 2
    assert Checkpoints(directory).newest(SerialComm(), pytest.fail).round == 2
    assert_same(finished(), go_on(tiny(), tmp_path, directory))


def test_files_are_what_safetensors_itself_reads(tmp_path):
    import safetensors.torch

    tensors = {
        "transposed": torch.arange(6.0).view(2, 3).T, "flags": torch.tensor([True, False]), "none": torch.zeros(0, 4),
        "number": torch.tensor(7), "double": torch.tensor(1e-300).double(), "nan": torch.tensor(torch.nan),
    }  # fmt: skip
    checkpoint._save(tmp_path / "x.safetensors", tensors, {"about": "ü"})
    found = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, x in tensors.items():
        assert found[name].dtype == x.dtype
        assert torch.equal(found[name].nan_to_num(5), x.nan_to_num(5))


def test_checkpoints_are_due_by_rounds_or_by_time(monkeypatch, tmp_path):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    by_rounds, by_time = Checkpoints(tmp_path, every=4), Checkpoints(tmp_path, minutes=2)
    both, default = Checkpoints(tmp_path, every=4, minutes=2), Checkpoints(tmp_path)
    assert [by_rounds.due(t) for t in (3, 4, 5)] == [False, True, False]
    now[0] += 121
    assert [by_rounds.due(5), by_time.due(5), both.due(5), default.due(5)] == [False, True, True, True]
    default._cost, default._last = 4.0, now[0]  # 2 % of the time: every 200 s
    now[0] += 190
    assert not default.due(9)
    now[0] += 20
    assert default.due(9)
    default._cost = 60.0  # at least every five minutes
    now[0] += 100
    assert default.due(9)
