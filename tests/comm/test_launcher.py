"""SLURM, mpirun and MPI agree on who was started, or the user is told what to change."""

import os
import subprocess
import sys

import mpi4py
import pytest

from mfedpba_mpi.comm.launcher import (
    available_cores,
    check_slurm,
    first_on_node,
    launcher_rank_and_size,
    slurm_gpus,
    start_mpi,
)
from mfedpba_mpi.errors import UserError

BATCH = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}  # what the script of a job has
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "7", "SLURM_NTASKS": "7"}
ONE_TASK = {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
PMI2 = {"PMI_RANK": "0", "PMI_SIZE": "7", "PMI_FD": "3"}
PMIX = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.5.0"}
OPEN_MPI_RUN = {**PMIX, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "7"}
MPICH_RUN = {**PMI2, "MPI_LOCALRANKID": "0"}
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
OPEN_MPI_4 = OPEN_MPI.replace("5.0.11", "4.1.6")
MPICH = "MPICH Version:      5.0.2\nMPICH Device:       ch4\nMPICH configure:    --with-pm=hydra\n"
MPICH_PMIX = MPICH.replace("--with-pm=hydra", "--with-pmix=/usr")


@pytest.fixture
def environ(monkeypatch):
    """A function that puts variables in the place of those of a launcher that may have started the tests."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_", "MPI_LOCAL")):
            monkeypatch.delenv(name)

    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("variables", "rank", "size", "first"),
    [
        ({}, 0, 1, True),
        ({**BATCH, "SLURM_NTASKS": "7"}, 0, 1, True),  # the script is no task
        ({**STEP, "SLURM_PROCID": "4", "SLURM_LOCALID": "0"}, 4, 7, True),
        ({**STEP, **PMIX, "SLURM_PROCID": "5", "PMIX_RANK": "5", "SLURM_LOCALID": "1"}, 5, 7, False),
        ({**STEP, **PMI2, "SLURM_PROCID": "6", "PMI_RANK": "6", "SLURM_LOCALID": "2"}, 6, 7, False),
        # mpirun reaches other nodes by a step of its own, with a task on each
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1", **MPICH_RUN, "PMI_RANK": "3", "MPI_LOCALRANKID": "1"}, 3, 7, False),
    ],
    ids=["nobody", "batch", "srun", "pmix", "pmi2", "mpirun"],
)
def test_rank_size_and_place_on_the_node_are_the_launchers(environ, variables, rank, size, first):
    environ(variables)
    assert launcher_rank_and_size() == (rank, size)
    assert first_on_node() == first


def test_srun_with_one_task_is_refused_and_told_how_many_to_ask_for(environ):
    environ(ONE_TASK)
    with pytest.raises(UserError, match=r"srun started one task.* 6 clients: ask for --ntasks=7 .* leave srun out"):
        check_slurm(6)


def test_the_plug_in_of_srun_is_no_mpirun(environ):
    environ({**ONE_TASK, **PMI2, "PMI_SIZE": "1"})
    with pytest.raises(UserError, match="srun started one task"):
        check_slurm(6)


def test_one_process_in_a_job_of_several_tasks_is_refused(environ):
    environ({**BATCH, "SLURM_NTASKS": "7"})
    with pytest.raises(UserError, match=r"has 7 tasks, .* `mpirun -n 7 .* `srun --mpi=pmix .* --ntasks=1$"):
        check_slurm(100)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        BATCH,
        {**BATCH, "SLURM_NTASKS": "1"},
        {**ONE_TASK, "SLURM_PTY_PORT": "40123"},
        STEP,
        {**BATCH, "SLURM_NTASKS": "7", **OPEN_MPI_RUN},
        {**BATCH, "SLURM_NTASKS": "7", **OPEN_MPI_RUN, "OMPI_COMM_WORLD_SIZE": "1"},
        {**BATCH, "SLURM_NTASKS": "7", "PMI_RANK": "0", "PMI_SIZE": "1"},
        {**ONE_TASK, **MPICH_RUN, "PMI_SIZE": "1"},
    ],
    ids=["no SLURM", "batch", "batch of one", "shell", "srun", "mpirun", "mpirun of one", "PMI", "mpirun elsewhere"],
)
def test_what_makes_sense_is_left_alone(environ, variables):
    environ(variables)
    check_slurm(6)


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 0),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_JOB_GPUS": "0,1"}, 0),  # a step without the job's GPUs
        ({"SLURM_JOB_GPUS": "0,1"}, 2),
        ({"SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "2,3"}, 1),
        ({"SLURM_JOB_GPUS": ""}, 0),
    ],
)
def test_gpus_that_slurm_gave_are_counted(environ, variables, number):
    environ(variables)
    assert slurm_gpus() == number


def test_cores_are_those_the_process_is_bound_to_or_all_where_nobody_can_say(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 3}, raising=False)
    assert available_cores() == [3, 5]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert available_cores() == [0, 1, 2, 3]


class FakeMPI:
    """A library that sees `size` ranks once it has started, and notes whether it was."""

    def __init__(self, library, size):
        self.library, self.size, self.started = library, size, False

    def Get_library_version(self):
        return self.library

    def Is_initialized(self):
        return self.started

    def Init_thread(self):
        self.started = True

    @property
    def COMM_WORLD(self):
        assert self.started
        return self


@pytest.fixture
def mpi(monkeypatch):
    """A function that puts a fake MPI in the place of mpi4py's."""

    def put(library, size):
        fake = FakeMPI(library, size)
        monkeypatch.setattr(mpi4py, "MPI", fake, raising=False)
        monkeypatch.setattr(mpi4py, "rc", lambda **_: None)
        return fake

    return put


@pytest.mark.parametrize(
    ("variables", "library"),
    [(OPEN_MPI_RUN, OPEN_MPI), (MPICH_RUN, MPICH), ({**STEP, **PMIX}, OPEN_MPI), ({**STEP, **PMIX}, MPICH_PMIX),
     ({**STEP, **PMI2}, MPICH), ({**STEP, **PMI2}, OPEN_MPI_4), (STEP, MPICH)],
    ids=["mpirun, Open MPI", "mpirun, MPICH", "pmix, Open MPI", "pmix, MPICH that can", "pmi2, MPICH",
         "pmi2, Open MPI 4", "PMI-1, MPICH"],
)  # fmt: skip
def test_an_mpi_that_sees_all_ranks_is_started_once(environ, mpi, variables, library):
    environ(variables)
    fake = mpi(library, 7)
    start_mpi()
    assert fake.started
    fake.Init_thread = None  # must not be called again
    start_mpi()


@pytest.mark.parametrize(
    ("variables", "library", "told"),
    [
        (STEP, OPEN_MPI, r"srun started 7 ranks, but Open MPI v5.0.11, .* `srun --mpi=pmix` .* `mpirun -n 7` inside"),
        ({**STEP, **PMI2}, OPEN_MPI, "srun started 7 ranks, .* `srun --mpi=pmix`"),
        ({**STEP, **PMIX}, MPICH, r"srun started 7 ranks, but MPICH 5.0.2, .* `srun --mpi=pmi2`"),
        (MPICH_RUN, OPEN_MPI, "mpirun started 7 ranks, .* another MPI; use the one of Open MPI v5.0.11"),
        (OPEN_MPI_RUN, MPICH, r"mpirun started 7 ranks, .* another MPI; use the one of MPICH 5.0.2"),
    ],
)
def test_an_mpi_known_not_to_understand_the_launcher_is_not_started(environ, mpi, variables, library, told):
    environ(variables)
    fake = mpi(library, 1)
    with pytest.raises(UserError, match=told):
        start_mpi()
    assert not fake.started


@pytest.mark.parametrize(
    ("variables", "library", "told"),
    [
        (STEP, MPICH, "`srun --mpi=pmi2`"),
        ({**STEP, **PMI2}, OPEN_MPI_4, "`srun --mpi=pmix`"),
        (MPICH_RUN, OPEN_MPI_4, "belongs to another MPI"),
    ],
)
def test_an_mpi_that_takes_itself_for_the_only_rank_is_found_out(environ, mpi, variables, library, told):
    environ(variables)
    fake = mpi(library, 1)
    with pytest.raises(UserError, match=told):
        start_mpi()
    assert fake.started


TINY = ("--dataset", "synthetic", "--samples", "120", "--dims", "6,10,8,9", "--partition", "m1", "--rounds", "1")


def test_tasks_that_are_all_rank_0_end_with_one_line_in_all(environ, tmp_path):
    environ(STEP)
    tasks = {"0": "0", "1": "1", "6": "0"}  # server, client, and a spare rank that is the first one on its node
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "mfedpba_mpi", *TINY, "--timeout", "2"],
            env={**os.environ, "SLURM_PROCID": rank, "SLURM_LOCALID": local},
            cwd=tmp_path, stdout=-1, stderr=-1, text=True,
        )
        for rank, local in tasks.items()
    ]  # fmt: skip
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, 2, 2]
    assert said[0][1].startswith("mfedpba-mpi: srun started 7 ranks")
    assert said[0][1].count("\n") == 1
    assert said[1:] == [("", "")] * 2


def test_a_missing_mpi_library_is_named(environ, command, monkeypatch):
    environ({**STEP, **PMIX})
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    result = command(*TINY)
    assert result.returncode == 2
    assert "mpi4py finds no MPI library (" in result.stderr
    assert result.stderr.count("\n") == 1


def test_only_what_trains_is_refused_in_a_job_of_several_tasks(environ, command):
    environ({**BATCH, "SLURM_NTASKS": "7"})
    result = command(*TINY)
    assert result.returncode == 2
    assert result.stderr.startswith("mfedpba-mpi: this job has 7 tasks")
    assert result.stderr.count("\n") == 1
    assert command("methods").returncode == 0
