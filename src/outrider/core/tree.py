"""`TokenTree`: drafted tokens below the pending token. A chain is a tree with one child everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class TokenTree:
    """Drafted nodes in topological order; `parents[i]` is a node before i, or None for the pending token.

    Siblings carry distinct tokens. *Rows* number the pending token 0 and node i as i + 1: the order of the
    rows of a score.
    """

    tokens: tuple[int, ...]
    parents: tuple[int | None, ...]

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents), "one parent per node"
        if self.is_chain:
            return
        for node, parent in enumerate(self.parents):
            assert parent is None or 0 <= parent < node, "parents come before their children"
        assert len(set(zip(self.parents, self.tokens))) == len(self.tokens), "siblings carry distinct tokens"

    @staticmethod
    def chain(tokens: Sequence[int]) -> TokenTree:
        return TokenTree(tuple(tokens), (None, *range(len(tokens) - 1)) if tokens else ())

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def is_chain(self) -> bool:
        return not self.parents or self.parents == (None, *range(len(self.parents) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node: 1 for children of the pending token."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent is None else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each row, in node order: `children[0]` those of the pending token."""
        lists: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            lists[0 if parent is None else parent + 1].append(node)
        return tuple(map(tuple, lists))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        return tuple(node for node in range(len(self.tokens)) if not self.children[node + 1])

    @cached_property
    def sees(self) -> np.ndarray:  # bool [n + 1, n + 1]
        """Whether a row sees the one of a column: the pending token, its ancestors and itself. Read only."""
        rows = [1]  # a bit per column, the lowest for the pending token
        for row, parent in enumerate(self.parents, start=1):
            rows.append(rows[0 if parent is None else parent + 1] | 1 << row)
        width = -(-len(rows) // 8)  # bytes
        packed = np.frombuffer(b"".join(row.to_bytes(width, "little") for row in rows), dtype=np.uint8)
        bits = np.unpackbits(packed.reshape(-1, width), axis=1, count=len(rows), bitorder="little")
        bits.setflags(write=False)
        return bits.view(bool)

    def path(self, node: int | None) -> tuple[int, ...]:
        """Nodes from the child of the pending token down to `node`, both included; empty for None."""
        nodes: list[int] = []
        while node is not None:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def path_tokens(self, node: int | None) -> tuple[int, ...]:
        return tuple(self.tokens[n] for n in self.path(node))


EMPTY_TREE = TokenTree((), ())
