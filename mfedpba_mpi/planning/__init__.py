"""`mfedpba-mpi plan` and `check`: predict what a run needs, and test an installation."""
