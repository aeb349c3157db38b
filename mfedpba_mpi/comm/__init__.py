"""How clients and server reach each other: placement, devices, packed messages, and the serial and MPI twins.

This is the only package that imports mpi4py, and the only place where a rank waits.
"""
