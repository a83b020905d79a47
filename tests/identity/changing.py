"""A draft length that changes with every round, for suites that must not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.records import Budget, Context


@dataclass(frozen=True)
class ChangingController:
    """A draft length of 0 to `budget.depth` that changes with the round, blind to what is drafted."""

    budget: Budget

    def budgets(self, contexts: Sequence[Context], load: int) -> list[Budget]:
        depths = [(7 * len(c.tokens) + c.sequence_id) % (self.budget.depth + 1) for c in contexts]
        return [Budget(depth, self.budget.nodes) for depth in depths]
