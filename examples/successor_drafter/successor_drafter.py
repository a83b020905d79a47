"""A whole drafter: guesses that each word is followed by what followed it most often in this text so far."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import torch

from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.drafters.builder import DraftBuilder
from outrider.drafters.setup import DrafterSetup


class SuccessorDrafter:
    """Chains of most frequent successors, from counts per request that are caught up when a draft is asked for."""

    taps: tuple[int, ...] = ()  # it reads tokens alone, no hidden states of the target

    def __init__(self) -> None:
        self._counts: dict[int, defaultdict[int, Counter[int]]] = {}
        self._read: dict[int, int] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The prompt is part of `context.tokens`, which `propose` reads."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [self._extended(*job) for job in zip(contexts, budgets, drafts)]

    def observe(self, results: Sequence[RoundResult]) -> None:
        """What became certain is part of the next `context.tokens`."""

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The new request reads its own text."""

    def forget(self, sequence_id: int) -> None:
        self._counts.pop(sequence_id, None)
        self._read.pop(sequence_id, None)

    def _extended(self, context: Context, budget: Budget, draft: Draft) -> Draft:
        counts = self._counts.setdefault(context.sequence_id, defaultdict(Counter))
        recent = context.tokens[max(0, self._read.get(context.sequence_id, 0) - 1) :]
        self._read[context.sequence_id] = len(context.tokens)
        for token, successor in pairwise(recent):
            counts[token][successor] += 1
        builder = DraftBuilder(draft, budget)
        row, last = builder.start, [*context.tokens[-1:], *draft.nodes.tokens][-1]
        while row is not None and last in counts:
            last = counts[last].most_common(1)[0][0]
            row = builder.child(row, last)
        return builder.draft()


def build(setup: DrafterSetup) -> SuccessorDrafter:
    """The entry point: `setup` holds the configuration, the target, and ways to load a draft model or head."""
    return SuccessorDrafter()
