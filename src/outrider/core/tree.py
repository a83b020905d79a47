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
        seen: set[tuple[int | None, int]] = set()
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents)):
            assert parent is None or 0 <= parent < node, "parents come before their children"
            assert (parent, token) not in seen, "siblings carry distinct tokens"
            seen.add((parent, token))

    @staticmethod
    def chain(tokens: Sequence[int]) -> TokenTree:
        return TokenTree(tuple(tokens), (None, *range(len(tokens) - 1)) if tokens else ())

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def is_chain(self) -> bool:
        return all(p == (n - 1 if n else None) for n, p in enumerate(self.parents))

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
        return tuple(tuple(nodes) for nodes in lists)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        return tuple(node for node in range(len(self.tokens)) if not self.children[node + 1])

    @cached_property
    def sees(self) -> np.ndarray:  # bool [n + 1, n + 1]
        """Whether a row sees the one of a column: the pending token, its ancestors and itself. Read only."""
        sees = np.eye(len(self.tokens) + 1, dtype=bool)
        sees[:, 0] = True
        for node, parent in enumerate(self.parents):
            if parent is not None:
                sees[node + 1] |= sees[parent + 1]
        sees.setflags(write=False)
        return sees

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
