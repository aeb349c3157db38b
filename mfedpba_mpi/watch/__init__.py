"""`mfedpba-mpi watch`: a live view of runs and studies in the terminal."""
