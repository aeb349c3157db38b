"""The communicator of a run in one process, which holds the server and all clients."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mfedpba_mpi.comm.base import Comm


class SerialComm(Comm):
    """Packs and unpacks like `MPIComm`, so that bits and byte counts are the same, and transports nothing."""

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        return [rows]

    def share_status(self, round_status: int) -> int:
        return round_status

    def share(self, value: str) -> str:
        return value

    def collect(self, value: str) -> list[str]:
        return [value]

    def barrier(self) -> None:
        pass

    def recover(self) -> list[int]:
        return []

    def raise_if_stuck(self, error: Exception) -> None:
        pass

    def finish(self, code: int) -> None:
        pass

    def _gather(self, send: Tensor, counts: list[int]) -> Tensor | None:
        return send

    def _broadcast(self, buffer: Tensor) -> None:
        pass

    def _scatter(self, send: Tensor, counts: list[int]) -> Tensor:
        return send
