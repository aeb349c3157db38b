"""A log's HDF5 behind a block of 512 bytes with the SHA-256 of all that follows (HDF5 skips such blocks by itself).

So a damaged log is found out before HDF5, which can crash on one, has seen it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import h5py

BLOCK = 512  # where HDF5 first looks for itself, after 0


def seal(image: bytes) -> bytes:
    """An HDF5 image as it is stored, after its digest."""
    return _block(image) + image


def _block(image: bytes) -> bytes:
    words = f"mfedpba-mpi run log; HDF5 follows after {BLOCK} bytes\nsha256 {hashlib.sha256(image).hexdigest()}\n"
    return words.encode().ljust(BLOCK, b"\0")


def open_image(path: Path) -> h5py.File:
    """A log's HDF5 in memory, to read and to write; the file itself is left alone."""
    data = path.read_bytes()
    image = data[BLOCK:]
    if data[:BLOCK] != _block(image):
        raise ValueError("its checksum is wrong")
    return h5py.File(h5py.h5f.open_file_image(image, h5py.h5f.FILE_IMAGE_OPEN_RW))
