"""What a run leaves behind: the HDF5 log, written round by round and read back as a `Run`."""
