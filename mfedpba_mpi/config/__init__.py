"""The settings of a run: what they are, what they may be, and the presets of datasets."""
