"""Settings of a run: declaration, names, validation, and the presets of datasets."""
