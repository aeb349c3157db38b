"""`mfedpba-mpi plan`: what a run will need, before anything is started."""
