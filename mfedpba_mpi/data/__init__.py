"""Datasets: what they are, how they lie on disk, synthetic stand-ins, and what each client gets of them."""
