"""`mfedpba-mpi watch`: a live view of runs and studies, drawn with characters."""
