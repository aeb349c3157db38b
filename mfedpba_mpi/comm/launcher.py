"""What the launcher's environment says of this process, before MPI is touched."""

from __future__ import annotations

import os
import sys

# (rank, size) as Open MPI's mpirun, MPICH's mpirun, srun --mpi=pmix and srun --mpi=pmi2 announce them
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def announced() -> tuple[int, int]:
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


def on_terminal() -> bool:
    """Whether someone is looking. Open MPI gives every rank a terminal; that of a redirected mpirun has no size."""
    return sys.stdout.isatty() and os.get_terminal_size(sys.stdout.fileno()).columns > 0
