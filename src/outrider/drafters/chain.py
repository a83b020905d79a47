"""`ChainedDrafter`: several methods on one draft, each adding where the ones before it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from outrider.core.protocols import Drafter
from outrider.core.records import Budget, Context, Draft, RoundResult, Scores
from outrider.errors import ConfigError


class ChainedDrafter:
    """The first method drafts; where its draft is empty or short the next may add to it, and so on.

    Nothing drafted is replaced, and every node keeps the law it was chosen by. A method is not asked about a
    draft that fills its budget. `columns` says which tap each column of the features holds, the union of the
    members' taps unless told otherwise; more columns may follow. Each member is handed the features of its own
    taps. Raises `ConfigError` on an empty list.
    """

    def __init__(self, drafters: Sequence[Drafter], columns: Sequence[int] | None = None) -> None:
        if not drafters:
            raise ConfigError("a list of methods needs at least one; use 'none' for plain decoding")
        self.drafters = tuple(drafters)
        self.taps = tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))
        columns = self.taps if columns is None else tuple(columns)
        self._wanted = [[columns.index(tap) for tap in drafter.taps] for drafter in self.drafters]

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        for drafter, wanted in zip(self.drafters, self._wanted):
            drafter.ingest(context, _sliced(features, wanted))

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        grown = list(drafts)
        for drafter in self.drafters:
            asked = [i for i, draft in enumerate(grown) if _has_room(draft, budgets[i])]
            if not asked:
                break
            given = [grown[i] for i in asked]
            answers = drafter.propose([contexts[i] for i in asked], [budgets[i] for i in asked], given)
            assert len(answers) == len(asked), f"{type(drafter).__name__} answers every context"
            for i, before, after in zip(asked, given, answers):
                assert extends(after, before), f"{type(drafter).__name__} keeps what was drafted before it"
                grown[i] = after
        return grown

    def observe(self, results: Sequence[RoundResult]) -> None:
        for drafter, wanted in zip(self.drafters, self._wanted):
            drafter.observe([_seen(result, wanted) for result in results])

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        for drafter in self.drafters:
            drafter.fork(parent_id, sequence_id, length)

    def forget(self, sequence_id: int) -> None:
        for drafter in self.drafters:
            drafter.forget(sequence_id)


def extends(draft: Draft, given: Draft) -> bool:
    """Whether `draft` holds all of `given` in place: same nodes, same laws, new groups after the old ones."""
    if draft is given:
        return True
    count = len(given)
    if draft.nodes.tokens[:count] != given.nodes.tokens or draft.nodes.parents[:count] != given.nodes.parents:
        return False
    return all(new[: len(old)] == old for new, old in zip(draft.groups, given.groups))


def _seen(result: RoundResult, wanted: Sequence[int]) -> RoundResult:
    """The result with these columns of the features."""
    scored, features = _sliced(result.scores.features, wanted), _sliced(result.features, wanted)
    if scored is result.scores.features and features is result.features:
        return result
    return replace(result, scores=Scores(result.scores.logits, scored), features=features)


def _sliced(features: torch.Tensor | None, wanted: Sequence[int]) -> torch.Tensor | None:
    """Features [n, columns, hidden] cut to the columns that a member wants, in its order; None for none."""
    if features is None or not wanted:
        return None
    return features if wanted == [*range(features.shape[1])] else features[:, wanted]


def _has_room(draft: Draft, budget: Budget) -> bool:
    return len(draft) < budget.nodes and max(draft.nodes.depths, default=0) < budget.depth
