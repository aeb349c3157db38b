"""The command line: thin commands that parse, check and call."""
