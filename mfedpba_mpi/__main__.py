"""``python -m mfedpba_mpi`` is the command ``mfedpba-mpi``."""

from mfedpba_mpi.cli.main import main

main()
