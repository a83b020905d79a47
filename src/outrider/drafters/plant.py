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
        self._drawn: dict[int, Law] = {}  # laws of rows whose children are no point masses
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
        if law is not POINT_MASS:
            self._drawn[row] = law
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
        assert not self._drawn, "what was drawn is never dropped"
        worth = self.values[1:]
        best = sorted(range(self._given, len(worth)), key=worth.__getitem__, reverse=True)  # stable
        kept = [*range(self._given), *sorted(best[: self._budget.nodes - self._given])]
        rows = [0, *(node + 1 for node in kept)]
        place = dict(zip(kept, range(len(kept))))
        self._parents = [None if p is None else place[p] for p in map(self._parents.__getitem__, kept)]
        self._tokens = [self._tokens[node] for node in kept]
        self.depths = [self.depths[row] for row in rows]
        self.values = [self.values[row] for row in rows]
        self.kinds = {place[node]: self.kinds[node] for node in kept if node in self.kinds}
        self.frontier = [place[row - 1] + 1 for row in self.frontier if row - 1 in place]

    def draft(self) -> Draft:
        """The tree as it stands; the same object as before where nothing has changed."""
        tokens, parents = tuple(self._tokens), tuple(self._parents)
        if tokens == self._draft.nodes.tokens and parents == self._draft.nodes.parents:
            return self._draft
        nodes = TokenTree(tokens, parents)
        grown = [
            (Group(self._drawn.get(row, POINT_MASS), below),) if below else ()
            for row, below in enumerate(nodes.children[self._given :], start=self._given)
        ]
        self._draft = Draft(nodes, (*self._draft.groups[: self._given], *grown))
        return self._draft
