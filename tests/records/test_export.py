"""Runs as CSV, Parquet and TensorBoard files: they hold what the log holds."""

import csv
import json
from datetime import datetime

import h5py
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from mfedpba_mpi import Observer, load_run
from mfedpba_mpi.comm.serial import SerialComm
from mfedpba_mpi.data.seal import open_image, seal
from mfedpba_mpi.engine.loop import run_rounds
from mfedpba_mpi.errors import UserError
from mfedpba_mpi.records.export import event_files, named, table_files, write
from mfedpba_mpi.records.run_log import RunLog

FRAMES = {
    "rounds": "rounds_frame", "clients_rounds": "frame", "clients": "clients_frame", "modalities": "modalities_frame"
}  # fmt: skip


def export(*runs, csv=None, parquet=None, tensorboard=None):
    """Write the runs in these formats into these directories, without replacing files."""
    runs, files = named(runs), {}
    for suffix, directory in (("csv", csv), ("parquet", parquet)):
        if directory:
            files |= table_files(runs, directory, suffix)
    if tensorboard:
        files |= event_files(runs, tensorboard)
    write(files, overwrite=False)


def moved(run, directory, **attributes):
    """Copy a run into another directory and change attributes of its log."""
    with open_image(run.path) as file:
        file.attrs.update(attributes)
        file.flush()
        image = file.id.get_file_image()
    directory.mkdir(parents=True)
    (directory / "run.h5").write_bytes(seal(image))
    return load_run(directory)


def events(directory):
    found = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def files_in(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def settings_in(found):
    """The settings that TensorBoard shows under HPARAMS."""
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    return plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams


def test_csv_holds_the_frames_bit_for_bit(made, tmp_path):
    run = made(eval_every=2)
    export(run, csv=tmp_path / "out")
    assert files_in(tmp_path / "out") == [
        "clients.csv",
        "clients_rounds.csv",
        "config.json",
        "modalities.csv",
        "rounds.csv",
    ]
    for name, method in FRAMES.items():
        table, frame = pd.read_csv(tmp_path / "out" / f"{name}.csv"), getattr(run, method)()
        assert list(table.columns[:6]) == ["run", "method", "dataset", "seed", "synthetic", "validation"]
        kinds = {column: kind for column, kind in frame.dtypes.items() if str(kind) != "bool"}
        assert_frame_equal(table[list(frame.columns)].astype(kinds), frame, check_exact=True)
    with h5py.File(run.path) as file, (tmp_path / "out/rounds.csv").open(newline="") as text:
        assert [float(row["seconds_total"]) for row in csv.DictReader(text)] == list(file["rounds/seconds_total"])


def test_parquet_holds_the_frames_with_types_and_attributes(made, tmp_path):
    run = made(eval_every=2)
    export(run, parquet=tmp_path / "out")
    for name, method in FRAMES.items():
        table, frame = pd.read_parquet(tmp_path / "out" / f"{name}.parquet"), getattr(run, method)()
        assert_frame_equal(table[list(frame.columns)], frame, check_exact=True)
        assert table.attrs["runs"] == {run.path.parent.name: frame.attrs}


def test_settings_are_stored_by_run(made, tmp_path):
    run = made(seed=3)
    export(run, csv=tmp_path / "out")
    stored = json.loads((tmp_path / "out/config.json").read_text())[run.path.parent.name]
    assert stored["config"] == run.attributes["config"]
    assert (stored["seed"], stored["status"], stored["synthetic"]) == (3, "complete", True)


def test_event_files_hold_the_numbers_of_the_log(made, tmp_path):
    run = made(eval_every=2, rounds=4)
    export(run, tensorboard=tmp_path / "tb")
    (directory,) = (tmp_path / "tb").iterdir()
    found = events(directory)
    with h5py.File(run.path) as file:
        rounds = {name: data[()] for name, data in file["rounds"].items()}
        start = datetime.strptime(file.attrs["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    expected = {
        "accuracy/average": rounds["correct"].sum(axis=1) / rounds["tested"].sum(axis=1),
        "accuracy/client_2": rounds["accuracy"][:, 2],
        "loss/ce": rounds["loss_ce"].mean(axis=1),
        "server/rec": rounds["server_rec"],
        "seconds/train": rounds["seconds_train"],
        "bytes/up": rounds["bytes_up"].sum(axis=1),
        "gw_trace/M2": rounds["gw_trace"][:, 1],
    }
    for tag, values in expected.items():
        steps = [2, 4] if tag.startswith("accuracy") else [1, 2, 3, 4]
        scalars = found.Scalars(tag)
        assert [scalar.step for scalar in scalars] == steps, tag
        assert_allclose([scalar.value for scalar in scalars], values[np.array(steps) - 1], rtol=1e-6, err_msg=tag)
    times = [scalar.wall_time for scalar in found.Scalars("loss/ce")]
    assert_allclose(np.array(times) - start, np.cumsum(rounds["seconds_total"]), atol=1e-5)


def test_event_times_of_a_resumed_run_continue_from_the_time_of_the_resume(made, tmp_path):
    again = json.dumps([{"round": 2, "ranks": 1, "hosts": [], "started": "2030-01-02T03:04:05+0000"}])
    run = moved(made(), tmp_path / "resumed", resumed=again, started="2030-01-01T00:00:00+0100")
    export(run, tensorboard=tmp_path / "tb")
    (directory,) = (tmp_path / "tb").iterdir()
    seconds = run.rounds["seconds_total"]
    times = [scalar.wall_time for scalar in events(directory).Scalars("seconds/total")]
    first, second = (datetime.fromisoformat(f"{day}+00:00") for day in ("2029-12-31T23:00:00", "2030-01-02T03:04:05"))
    expected = [first.timestamp() + seconds[0], first.timestamp() + seconds[:2].sum(), second.timestamp() + seconds[2]]
    assert_allclose(times, expected, rtol=0, atol=1e-5)


def test_event_files_hold_the_settings_as_hyper_parameters(made, tmp_path):
    export(made(seed=4), tensorboard=tmp_path / "tb")
    (directory,) = (tmp_path / "tb").iterdir()
    settings = settings_in(events(directory))
    assert (settings["seed"].number_value, settings["mfedpba.lambda_2"].number_value) == (4, 1)
    assert (settings["method"].string_value, settings["mfedpba.logit_weights"].string_value) == ("mfedpba", "bounded")


def test_special_characters_in_names_are_written_as_text(made, tmp_path):
    dataset, directory = '=<b>"a",\r\n$x_1$%|`*\x1b[1m é', 'r<i>,"$_%&é'
    views = json.dumps(['a"b,c', "<script>", "x/../y\n"])
    run = moved(made(), tmp_path / directory, dataset=dataset, modalities=views)
    export(run, csv=tmp_path / "t", parquet=tmp_path / "t", tensorboard=tmp_path / "tb")
    shown = '=<b>"a",  $x_1$%|`* [1m é'
    for table, frame in FRAMES.items():
        for data in (pd.read_csv(tmp_path / f"t/{table}.csv"), pd.read_parquet(tmp_path / f"t/{table}.parquet")):
            assert len(data) == len(getattr(run, frame)())
            assert set(data["dataset"]) == {shown}
            assert set(data["run"]) == {directory}
    assert set(pd.read_csv(tmp_path / "t/modalities.csv")["modality"]) == {'a"b,c', "<script>", "x/../y "}
    assert json.loads((tmp_path / "t/config.json").read_text())[directory]["dataset"] == dataset
    found = events(tmp_path / "tb" / f"{directory} (synthetic data)")
    assert 'gw_trace/a"b,c' in found.Tags()["scalars"]
    text = found.Tensors("run")[0].tensor_proto.string_val[0].decode()
    assert all(line.startswith("    ") for line in text.split("\n")[2:])  # code in Markdown, shown unchanged


def test_unfinished_runs_are_exported_up_to_their_last_round(tiny, tmp_path):
    class Stopper(Observer):
        decides = False  # called after the log

        def __init__(self, t):
            self.t = t

        def start(self, start):
            if not self.t:
                raise ZeroDivisionError

        def round(self, result):
            if result.t == self.t:
                raise ZeroDivisionError

    for t in (0, 2):
        (tmp_path / f"to{t}").mkdir()
        with pytest.raises(ZeroDivisionError):
            run_rounds(tiny(), tmp_path, SerialComm(), [RunLog(tmp_path / f"to{t}"), Stopper(t)])
    started, stopped = load_run(tmp_path / "to0"), load_run(tmp_path / "to2")
    export(started, csv=tmp_path / "a", parquet=tmp_path / "a", tensorboard=tmp_path / "a")
    export(started, stopped, csv=tmp_path / "b", tensorboard=tmp_path / "b")
    assert len(pd.read_csv(tmp_path / "a/rounds.csv")) == 0
    assert pd.read_parquet(tmp_path / "a/clients.parquet")["accuracy"].isna().all()
    assert pd.read_csv(tmp_path / "b/rounds.csv")["round"].tolist() == [1, 2]
    assert pd.read_csv(tmp_path / "b/clients.csv").groupby("run")["accuracy"].count().to_dict() == {"to0": 0, "to2": 3}
    assert events(tmp_path / "a/to0 (synthetic data)").Tags()["scalars"] == []
    assert len(events(tmp_path / "b/to2 (synthetic data)").Scalars("loss/ce")) == 2


def test_no_file_is_left_if_one_cannot_be_written(made, tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(UserError, match=r"cannot write .*rounds\.parquet: No space left on device"):
        export(made(), csv=tmp_path / "out", parquet=tmp_path / "out")
    assert files_in(tmp_path / "out") == []


def test_a_file_in_place_of_the_directory_is_named(made, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*out.*choose another directory"):
        export(made(), csv=tmp_path / "out")
