"""Assignment of clients to ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def place(costs: Sequence[float], size: int) -> list[list[int]]:
    """The clients of every rank, each list ascending.

    A single rank has all clients. With K + 1 ranks or more, rank k + 1 has client k and further ranks are spare.
    Otherwise the clients are assigned to ranks 1..size-1 greedily: the most expensive first, each to the rank with the
    lowest total cost so far.
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
