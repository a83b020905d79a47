"""Controllers: how long the drafts of a round may be."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from outrider.core.records import Budget, Context


class Controller(Protocol):
    """Decides budgets before anything is drafted, so that no length depends on the tokens it judges."""

    def budgets(self, contexts: Seq[Context], load: int) -> list[Budget]:
        """One budget per context, in order; `load` is the number of requests running or waiting."""


@dataclass(frozen=True)
class FixedController:
    """The same budget always."""

    budget: Budget

    def budgets(self, contexts: Seq[Context], load: int) -> list[Budget]:
        return [self.budget] * len(contexts)


@dataclass(frozen=True)
class BatchSizeController:
    """A draft length per batch size: `schedule` holds (first size, last size, K); K = 0 is off.

    Sizes outside every entry draft `otherwise`. Nodes scale with the length, up to `most_nodes` where it is set.
    """

    schedule: tuple[tuple[int, int, int], ...]
    otherwise: Budget
    most_nodes: int | None = None

    def budgets(self, contexts: Seq[Context], load: int) -> list[Budget]:
        size = len(contexts)
        for first, last, depth in self.schedule:
            if first <= size <= last:
                width = max(1, self.otherwise.nodes // max(1, self.otherwise.depth))
                nodes = depth * width
                return [
                    Budget(depth, nodes if self.most_nodes is None else min(nodes, self.most_nodes))
                ] * size
        return [self.otherwise] * size
