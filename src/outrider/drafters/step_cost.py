"""What drafting costs: milliseconds of a drafter's `propose`, by the depth that it may draft to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.core.protocols import Chunk, Drafter, TargetModel
from outrider.core.records import EMPTY_DRAFT, Budget, Context

_SEQUENCE = 2**62 + 2**20  # an id of its own, so that no other sequence of the target is touched


@dataclass(frozen=True)
class DraftCost:
    """Medians by depth, and how many nodes were drafted there; both empty where the context is too short."""

    ms: Mapping[int, float]
    nodes: Mapping[int, int]

    @property
    def ms_per_level(self) -> float | None:
        """What a further level costs; None where no two depths were drafted to."""
        first, last = min(self.ms, default=0), max(self.ms, default=0)
        return None if first == last else (self.ms[last] - self.ms[first]) / (last - first)


def draft_cost(
    target: TargetModel, drafter: Drafter, budget: Budget, tokens: Sequence[int], *, repeats: int = 11
) -> DraftCost:
    """Times greedy drafts after `tokens`, one level deep to `budget.depth`, which take turns.

    A tree's nodes are cut in proportion. Opens and releases a sequence of its own on target and drafter; `tokens` are
    cut to what leaves room for a draft.
    """
    limit = target.max_length
    if limit is not None:
        tokens = tokens[: limit - budget.depth - 1]
    if len(tokens) < 2 or budget.depth < 1:
        return DraftCost({}, {})
    budgets = [Budget(d, max(d, budget.nodes * d // budget.depth)) for d in range(1, budget.depth + 1)]
    context = Context.of(tuple(tokens), sequence_id=_SEQUENCE)
    spent: dict[int, list[float]] = {budget.depth: [] for budget in budgets}
    nodes: dict[int, int] = {}
    try:
        [features] = target.extend([Chunk(_SEQUENCE, tuple(tokens[:-1]))])
        drafter.ingest(context, features)
        for turn in range(repeats + 1):  # the first turn warms up
            for given in budgets:
                begin = time.perf_counter()
                [draft] = drafter.propose([context], [given], [EMPTY_DRAFT])
                if turn:
                    spent[given.depth].append(time.perf_counter() - begin)
                nodes[given.depth] = len(draft)
    finally:
        drafter.forget(_SEQUENCE)
        target.release(_SEQUENCE)
    return DraftCost({depth: 1e3 * statistics.median(seconds) for depth, seconds in spent.items()}, nodes)
