"""The records of a run: its HDF5 log, checkpoints, lock and status, and tables and data frames made from the log."""
