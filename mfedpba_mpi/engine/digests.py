"""SHA-256 digests of the states of clients and server: equal digests mean equal bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from mfedpba_mpi.methods.base import Client
from mfedpba_mpi.methods.state import STRUCTURE_SUFFIXES

WITHOUT_EFFECT = ("predicted", "tracking")  # attributes on which no later training depends


def sha256(tensors: Mapping[str, Tensor]) -> bytes:
    """The digest of a state dictionary: names (without the leading attribute), types, shapes and values.

    Attributes `WITHOUT_EFFECT` are left out.
    """
    digest = hashlib.sha256()
    for path, tensor in tensors.items():
        attribute, _, rest = path.partition(".")
        if path.endswith(STRUCTURE_SUFFIXES) or attribute in WITHOUT_EFFECT:
            continue
        name = rest or path
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()


def client_sha256(client: Client) -> bytes:
    """The digest of a client's state."""
    return sha256(client.state_dict())
