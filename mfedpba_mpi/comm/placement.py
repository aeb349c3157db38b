"""Which rank trains which clients."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def place(costs: Sequence[float], size: int) -> list[list[int]]:
    """The clients of every rank, each list ascending.

    One rank does everything; with K + 1 ranks or more, rank k + 1 owns client k and the rest are spare; in between the
    clients are spread over ranks 1..size-1, the costliest first, each to the rank with least to do.
    """
    K, workers = len(costs), size - 1
    if workers == 0:
        return [list(range(K))]
    if workers >= K:
        return [[], *([k] for k in range(K)), *([] for _ in range(workers - K))]
    ranks: list[list[int]] = [[] for _ in range(size)]
    load = [(0.0, 0, rank) for rank in range(1, size)]
    for k in sorted(range(K), key=lambda k: (-costs[k], k)):
        cost, count, rank = heapq.heappop(load)
        ranks[rank].append(k)
        heapq.heappush(load, (cost + costs[k], count + 1, rank))
    return [sorted(clients) for clients in ranks]
