"""`Plant`: a draft while a model grows it level by level."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from outrider.core.law import POINT_MASS, Law
from outrider.core.records import Budget, Context, Draft, Group
from outrider.core.tree import TokenTree


class Plant:
    """Row 0 is the pending token, row i + 1 node i. Growth goes on below a given chain; a given tree is left alone.

    `values[row]`: the log chance that the row is kept, given that growth's first row is; never above its parent's.
    `frontier`: the rows of the newest level.
    """

    def __init__(self, context: Context, budget: Budget, draft: Draft) -> None:
        self.context, self._budget, self._draft = context, budget, draft
        self._given = len(draft)
        self._tokens, self._parents = list(draft.nodes.tokens), list(draft.nodes.parents)
        self._groups = list(draft.groups)
        self.depths = [0, *draft.nodes.depths]
        self.values = [0.0] * (len(draft) + 1)
        self.kinds: dict[int, Hashable] = {}  # what is known of a node before it is scored
        self.frontier = [len(draft)] if draft.nodes.is_chain and len(draft) < budget.nodes else []

    @property
    def grows(self) -> bool:
        return bool(self.frontier) and self.depths[self.frontier[0]] < self._budget.depth

    @property
    def can_improve(self) -> bool:
        """Whether a child of the newest level could be worth more than the worst of the nodes grown."""
        worst = min(self.values[self._given + 1 :], default=0.0)
        return max((self.values[row] for row in self.frontier), default=worst) > worst

    def share(self) -> int:
        """Nodes for the next level: an even part of those left, the larger part first."""
        levels = self._budget.depth - self.depths[self.frontier[0]]
        return 0 if levels <= 0 else -(-(self._budget.nodes - len(self._tokens)) // levels)

    def next_level(self, count: int) -> list[int]:
        """Takes the frontier away: up to `count` rows of it, those likeliest to be kept first."""
        rows = sorted(self.frontier, key=lambda row: -self.values[row])[:count]
        self.frontier = []
        return rows

    def path_tokens(self, row: int) -> tuple[int, ...]:
        """Drafted tokens from the pending token down to the row."""
        path: list[int] = []
        node = row - 1 if row else None
        while node is not None:
            path.append(self._tokens[node])
            node = self._parents[node]
        return tuple(reversed(path))

    def add(self, row: int, tokens: Sequence[int], law: Law, values: Sequence[float],
            kinds: Sequence[Hashable] = ()) -> None:  # fmt: skip
        """Children of a row that had none, in the order in which they were chosen."""
        first = len(self._tokens)
        self._tokens += tokens
        self._parents += [row - 1 if row else None] * len(tokens)
        self._groups[row] = (Group(law, tuple(range(first, first + len(tokens)))),) if tokens else ()
        self._groups += [()] * len(tokens)
        self.depths += [self.depths[row] + 1] * len(tokens)
        self.values += values[: len(tokens)]
        self.kinds |= zip(range(first, first + len(tokens)), kinds)
        self.frontier += range(first + 1, first + 1 + len(tokens))

    def keep_best(self) -> None:
        """Drops the nodes least likely to be kept, down to the budget: only for point masses (docs/exactness.md).

        Values fall along every path, so what is dropped has no descendants that stay, nor could ever have had.
        """
        if len(self._tokens) <= self._budget.nodes:
            return
        grown = sorted(range(self._given, len(self._tokens)), key=lambda node: (-self.values[node + 1], node))
        kept = [*range(self._given), *sorted(grown[: self._budget.nodes - self._given])]
        place = {node: index for index, node in enumerate(kept)}
        self._groups[self._given :] = [()] * (len(kept) + 1 - self._given)
        old_parents = self._parents
        self._tokens = [self._tokens[node] for node in kept]
        self._parents = [None if (p := old_parents[node]) is None else place[p] for node in kept]
        self.depths = [0, *(self.depths[node + 1] for node in kept)]
        self.values = [0.0, *(self.values[node + 1] for node in kept)]
        self.kinds = {place[node]: kind for node, kind in self.kinds.items() if node in place}
        self.frontier = [place[row - 1] + 1 for row in self.frontier if row - 1 in place]
        below: dict[int, list[int]] = {}
        for node in range(self._given, len(kept)):
            parent = self._parents[node]
            below.setdefault(0 if parent is None else parent + 1, []).append(node)
        for row, nodes in below.items():
            self._groups[row] = (Group(POINT_MASS, tuple(nodes)),)

    def draft(self) -> Draft:
        if len(self._tokens) == len(self._draft) == self._given:
            return self._draft
        nodes = TokenTree(tuple(self._tokens), tuple(self._parents))
        if nodes != self._draft.nodes:
            self._draft = Draft(nodes, tuple(self._groups))
        return self._draft
