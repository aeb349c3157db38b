"""Readers of published dataset formats, one module each; `source` defines the reader interface."""
