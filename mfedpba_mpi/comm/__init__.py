"""Communication between clients and server: message layouts, placement, devices, and the serial and MPI communicators.

This is the only package that imports mpi4py, and the only one in which a rank waits for another.
"""
