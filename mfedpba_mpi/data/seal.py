"""Sealed run logs: an HDF5 image behind a 512-byte block with its SHA-256 (HDF5 skips such a user block).

The checksum detects a damaged log before HDF5 opens it, since HDF5 can crash on damaged files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import h5py

BLOCK = 512  # HDF5 looks for its signature at offsets 0, 512, ...


def seal(image: bytes) -> bytes:
    """Return the HDF5 image with the checksum block in front."""
    return _block(image) + image


def _block(image: bytes) -> bytes:
    text = f"mfedpba-mpi run log; HDF5 follows after {BLOCK} bytes\nsha256 {hashlib.sha256(image).hexdigest()}\n"
    return text.encode().ljust(BLOCK, b"\0")


def open_image(path: Path) -> h5py.File:
    """Open the HDF5 image of a log in memory for reading and writing; the file itself is not changed."""
    data = path.read_bytes()
    image = data[BLOCK:]
    if data[:BLOCK] != _block(image):
        raise ValueError("wrong checksum")
    return h5py.File(h5py.h5f.open_file_image(image, h5py.h5f.FILE_IMAGE_OPEN_RW))
