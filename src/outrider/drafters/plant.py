"""`Plant`: a draft while a model grows it level by level."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence

from outrider.core.law import POINT_MASS, Law
from outrider.core.records import Budget, Context, Draft, Group
from outrider.core.tree import TokenTree


class Plant:
    """Row 0 is the pending token, row i + 1 node i. Growth goes on below a given chain; a given tree is left alone.

    `values[row]`: the log chance that the row is kept, given that growth's first row is; never above its parent's.
    `frontier`: the rows of the newest level, which are the last ones. `levels`: forwards taken so far.
    """

    def __init__(self, context: Context, budget: Budget, draft: Draft, above: float = 1.0) -> None:
        """`above`: the chance that the given chain is kept whole."""
        self.context, self._budget, self._draft = context, budget, draft
        self._above, self.levels = above, 0
        self._falling: list[float] | None = None
        self._given = len(draft)
        self._tokens, self._parents = list(draft.nodes.tokens), list(draft.nodes.parents)
        self._kinds: list[Hashable] = [None] * len(draft)
        self._drawn: dict[int, Law] = {}  # laws of rows whose children are no point masses
        self.depths = [0, *draft.nodes.depths]
        self.values = [0.0] * (len(draft) + 1)
        grows = draft.nodes.is_chain and len(draft) < budget.nodes
        self._newest = len(draft) if grows else len(draft) + 1  # first row of the frontier

    @property
    def frontier(self) -> range:
        return range(self._newest, len(self._tokens) + 1)

    @property
    def kinds(self) -> Mapping[int, Hashable]:
        """What is known of nodes before they are scored."""
        return {node: kind for node, kind in enumerate(self._kinds) if kind is not None}

    @property
    def rows(self) -> int:
        """Rows that the target would score."""
        return 1 + len(self._tokens)

    @property
    def given_rows(self) -> int:
        """Those of the given chain and the pending token."""
        return 1 + self._given

    @property
    def given_promise(self) -> float:
        """Tokens that the given chain promises a round, the target's own included."""
        return 1.0 + self._given * self._above

    @property
    def chances(self) -> list[float]:
        """Of every node grown, that it is kept."""
        return self.chances_of(self.values[self._given + 1 :])

    def chances_of(self, values: Sequence[float]) -> list[float]:
        """What log chances below growth's first row come to, the given chain's included."""
        above, exp = self._above, math.exp
        return [above * exp(value) for value in values]

    @property
    def falling(self) -> list[float]:
        """`chances`, likeliest first; made anew where the draft has changed."""
        if self._falling is None:
            self._falling = sorted(self.chances, reverse=True)
        return self._falling

    @property
    def promised(self) -> float:
        """Tokens that the draft as it stands promises a round."""
        return self.given_promise + sum(self.chances)

    @property
    def hope(self) -> float:
        """The best chance of a row of the newest level."""
        return self._above * math.exp(max(self.values[self._newest :]))

    @property
    def grows(self) -> bool:
        return self._newest < len(self.depths) and self.depths[self._newest] < self._budget.depth

    @property
    def can_improve(self) -> bool:
        """Whether a child of the newest level could be worth more than the worst of the nodes grown."""
        return max(self.values[self._newest :]) > self._worst

    @property
    def _worst(self) -> float:
        """What the worst of the nodes grown is worth."""
        return min(self.values[self._given + 1 :], default=0.0)

    def share(self) -> int:
        """Nodes for the next level: an even part of those left, the larger part first."""
        levels = self._budget.depth - self.depths[self._newest]
        return 0 if levels <= 0 else -(-(self._budget.nodes - len(self._tokens)) // levels)

    def next_level(self, count: int) -> list[int]:
        """Takes the frontier away: up to `count` rows of it, those likeliest to be kept first.

        Where the budget is used up, rows whose children could take the place of none are left out.
        """
        self.levels += 1
        if len(self.frontier) == 1 and len(self._tokens) < self._budget.nodes:
            self._newest += 1
            return [self._newest - 1]
        rows = sorted(self.frontier, key=self.values.__getitem__, reverse=True)[:count]  # stable
        self._newest = len(self._tokens) + 1
        if len(self._tokens) < self._budget.nodes:
            return rows
        worst = self._worst
        return [row for row in rows if self.values[row] > worst]

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
        count, self._falling = len(tokens), None
        self._tokens += tokens
        self._parents += [row - 1 if row else None] * count
        self._kinds += kinds[:count] if kinds else [None] * count
        if law is not POINT_MASS:
            self._drawn[row] = law
        self.depths += [self.depths[row] + 1] * count
        self.values += values[:count]

    def keep_best(self, count: int | None = None) -> None:
        """Drops the grown nodes least likely to be kept, down to `count` (None: what the budget has room for): only for
        point masses (docs/exactness.md).

        Values fall along every path, so what is dropped has no descendants that stay, nor could ever have had.
        """
        most = self._budget.nodes - self._given if count is None else count
        if len(self._tokens) - self._given <= most:
            return
        assert not self._drawn, "what was drawn is never dropped"
        self._falling = None
        start, newest = self._given + 1, self._newest  # rows before `start` stay as they are
        values, parents = self.values, self._parents
        kept = sorted(
            sorted(range(start, len(values)), key=values.__getitem__, reverse=True)[:most]
        )  # stable
        while kept and kept[0] == start:
            start += 1
            del kept[0]
        self._newest = start + bisect_left(kept, newest) if newest > start else newest
        place: dict[int | None, int] = dict(zip([row - 1 for row in kept], range(start - 1, len(values))))
        parents[start - 1 :] = [place.get(parents[row - 1], parents[row - 1]) for row in kept]
        self._tokens[start - 1 :] = [self._tokens[row - 1] for row in kept]
        self._kinds[start - 1 :] = [self._kinds[row - 1] for row in kept]
        self.depths[start:] = [self.depths[row] for row in kept]
        self.values[start:] = [values[row] for row in kept]

    def tree(self) -> TokenTree:
        """The tokens as they stand."""
        if len(self._tokens) == self._given:
            return self._draft.nodes
        return TokenTree(tuple(self._tokens), tuple(self._parents))

    def draft(self) -> Draft:
        """The draft as it stands; the given one where nothing was added."""
        if len(self._tokens) == self._given:
            return self._draft
        nodes = self.tree()
        grown = [
            (Group(self._drawn.get(row, POINT_MASS), below),) if below else ()
            for row, below in enumerate(nodes.children[self._given :], start=self._given)
        ]
        return Draft(nodes, (*self._draft.groups[: self._given], *grown))
