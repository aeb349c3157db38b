"""``python -m mfedpba_mpi`` is the command ``mfedpba-mpi``."""

from mfedpba_mpi.cli import main

main()
