"""The engine: set-up, the loop over rounds, a round, observers, signals, and resuming."""
