"""`DraftBuilder`: a draft of point masses while it grows below what was drafted before."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.law import POINT_MASS
from outrider.core.records import Budget, Draft, Group
from outrider.core.tree import TokenTree


class DraftBuilder:
    """Grows one draft within a budget. Row 0 is the pending token, row i + 1 node i, as in a score.

    New nodes hang below `start`: the pending token, or the leaf of a given chain; below a given tree nothing may be
    added and `start` is None. Equal siblings are one node. O(1) per node.
    """

    def __init__(self, draft: Draft, budget: Budget) -> None:
        self._draft, self._budget = draft, budget
        self._tokens: list[int] = list(draft.nodes.tokens)
        self._parents: list[int | None] = list(draft.nodes.parents)
        self._depths: list[int] = [0, *draft.nodes.depths]
        self._rows: dict[tuple[int, int], int] = {}
        self._below: dict[int, list[int]] = {}
        chain = draft.nodes.is_chain and self.room > 0 and len(draft) < budget.depth
        self.start: int | None = len(draft) if chain else None

    @property
    def room(self) -> int:
        """How many more nodes the budget allows."""
        return self._budget.nodes - len(self._tokens)

    @property
    def levels(self) -> int:
        """How many more levels the budget allows below the start."""
        assert self.start is not None, "nothing hangs below a given tree"
        return self._budget.depth - self._depths[self.start]

    def depth(self, row: int) -> int:
        """Drafted tokens from the pending token down to the row."""
        return self._depths[row]

    def child(self, row: int, token: int) -> int | None:
        """The row of a child of `row` with this token, found or made; None where the budget ends."""
        assert self.start is not None, "nothing hangs below a given tree"
        assert row >= self.start, "new nodes hang below where the given draft ends"
        found = self._rows.get((row, token))
        if found is not None:
            return found
        node, depth = len(self._tokens), self._depths[row] + 1
        if node >= self._budget.nodes or depth > self._budget.depth:
            return None
        self._tokens.append(token)
        self._parents.append(row - 1 if row else None)
        self._depths.append(depth)
        self._rows[row, token] = node + 1
        self._below.setdefault(row, []).append(node)
        return node + 1

    def chain(self, row: int, tokens: Sequence[int]) -> int:
        """Adds tokens one below the other as far as the budget goes; the last row reached."""
        for token in tokens:
            below = self.child(row, token)
            if below is None:
                break
            row = below
        return row

    def draft(self) -> Draft:
        """The given draft with what was added; the given one itself where nothing was."""
        if len(self._tokens) == len(self._draft):
            return self._draft
        groups = [*self._draft.groups, *[()] * (len(self._tokens) - len(self._draft))]
        for row, nodes in self._below.items():
            groups[row] = (Group(POINT_MASS, tuple(nodes)),)
        return Draft(TokenTree(tuple(self._tokens), tuple(self._parents)), tuple(groups))
