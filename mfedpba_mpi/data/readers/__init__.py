"""Readers of the formats in which data is passed round, one module each; see `source` for what a reader is."""
