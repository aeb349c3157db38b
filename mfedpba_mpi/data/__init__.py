"""Datasets: catalog, feature stores, importers, synthetic stand-ins, partitions over clients, and shards."""
