"""`mfedpba-mpi watch`: runs and studies while they go on, as pictures made of characters."""
