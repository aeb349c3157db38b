"""Damage to HDF5 files that HDF5's own checksums do not detect."""

from pathlib import Path

import h5py


def zero_first_chunk(path: Path, name: str) -> None:
    """Overwrite the first chunk of a dataset with zeros; their Fletcher32 checksum is zero too."""
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
