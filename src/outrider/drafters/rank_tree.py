"""`likeliest_tree`: the tree worth most when a node's chance of being kept hangs on its depth and its rank alone."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

Ranks = tuple[int, ...]
"""A node, named by the ranks among their siblings of the nodes that lead to it; the root is ()."""


def likeliest_tree(chances: Sequence[Sequence[float]], nodes: int) -> Mapping[Ranks, int]:
    """Children per node of the tree of up to `nodes` nodes with the most kept nodes to expect.

    `chances[depth][rank]`: how often that child is kept where its parent is. A node is kept as often as the product
    along its path says, so adding the likeliest node again and again is best (2401.10774, 2.3.3). Children come in the
    order of their ranks: one that is less likely than a later one comes along with it. Nodes without children are left
    out.
    """
    counts: dict[Ranks, int] = {}
    best_left = [[max(siblings[rank:]) for rank in range(len(siblings))] for siblings in chances]
    # The likeliest child from this rank on, the node, the chance of its parent.
    queue: list[tuple[float, Ranks, float]] = [(-best_left[0][0], (0,), 1.0)] if chances else []
    while queue and nodes > 0:
        _, path, above = heapq.heappop(queue)
        parent, depth, rank = path[:-1], len(path) - 1, path[-1]
        counts[parent] = rank + 1
        nodes -= 1
        if rank + 1 < len(chances[depth]):
            heapq.heappush(queue, (-above * best_left[depth][rank + 1], (*parent, rank + 1), above))
        if depth + 1 < len(chances):
            chance = above * chances[depth][rank]
            heapq.heappush(queue, (-chance * best_left[depth + 1][0], (*path, 0), chance))
    return counts


def node_chances(shape: Mapping[Ranks, int], chances: Sequence[Sequence[float]]) -> list[float]:
    """How often each node of a tree of this shape is kept, likeliest first."""
    found: list[float] = []
    level: list[tuple[Ranks, float]] = [((), 1.0)]
    while level:
        below = [
            ((*path, rank), above * chances[len(path)][rank])
            for path, above in level
            for rank in range(shape.get(path, 0))
        ]
        found += (chance for _, chance in below)
        level = below
    return sorted(found, reverse=True)
