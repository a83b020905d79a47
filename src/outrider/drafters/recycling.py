"""`RecyclingDrafter`: what the target once thought might follow a token, as a tree (Token Recycling, 2408.08696)."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

from outrider.core.records import Budget, Context, Draft, RoundResult, TokenView
from outrider.drafters.best_tokens import best_tokens
from outrider.drafters.builder import DraftBuilder
from outrider.drafters.values import NodeValues
from outrider.errors import ConfigError

ROW_COST = 0.05
"""What one more row adds to a pass, as a share of a pass of one row. Measured 0.04 up to 8 rows on the native CPU
target; rounded up, so that nodes at the margin are left out where rows cost more."""

_PRIORS: Mapping[Hashable, float] = {0: 0.4, 1: 0.12, 2: 0.06, 3: 0.04, 4: 0.03, 5: 0.02, 6: 0.02, 7: 0.015}
"""The chance that the token of this rank comes next."""


class RecyclingDrafter:
    """Remembers the best `successors` tokens after each token and drafts them as a tree, the likeliest nodes first.

    Every scored row renews the successors of its token, rejected nodes included: what the target thought there is
    thrown away by every other method. A prompt gives the bigrams it holds. Needs no model and no training; a few
    kilobytes per request, shared with no other.

    A tree grows best-first by the product of its ranks' measured chances, up to the budget and as long as a node is
    worth `row_cost`, the price of a row. `topk` bounds the children of a node; 1 drafts chains. Below a given chain
    the tree hangs on its leaf; a given tree is left alone. Raises `ConfigError` unless counts are at least 1.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, *, successors: int = 8, topk: int = 8, row_cost: float = ROW_COST) -> None:
        for name, value in (("recycling_successors", successors), ("topk", topk)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self._successors, self._topk, self._row_cost = successors, min(topk, successors), row_cost
        self._memories: dict[int, _Memory] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The prompt is read when a draft is asked for."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [self._extended(*job) for job in zip(contexts, budgets, drafts)]

    def observe(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            memory = self._memories.get(result.sequence_id)
            if memory is not None:
                memory.observe(result)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The new sequence reads its own text; what the parent saw beyond it is not its to know."""

    def forget(self, sequence_id: int) -> None:
        self._memories.pop(sequence_id, None)

    def _extended(self, context: Context, budget: Budget, draft: Draft) -> Draft:
        builder = DraftBuilder(draft, budget)
        if builder.start is None:
            return draft
        memory = self._memories.get(context.sequence_id)
        if memory is None:
            memory = self._memories[context.sequence_id] = _Memory(self._successors)
        memory.read(context.tokens)
        last = draft.nodes.tokens[-1] if len(draft) else context.tokens[-1]
        memory.grow(builder, last, self._topk, self._row_cost)
        return builder.draft()


class _Memory:
    """The successors of one request's tokens, best first, and how often each rank was right."""

    def __init__(self, successors: int) -> None:
        self._count = successors
        self._successors: dict[int, list[int]] = {}
        self._values = NodeValues(_PRIORS, otherwise=0.01)
        self._read = 0  # tokens of the text whose bigrams are in
        self._pending: int | None = None
        self._asked = False  # for a draft of the round to come

    def read(self, tokens: TokenView) -> None:
        """Takes in the bigrams of what became certain unseen, such as a prompt; the most recent comes first."""
        self._pending, self._asked = tokens[-1], True
        new = tokens[max(0, self._read - 1) :]
        self._read = len(tokens)
        followers: dict[int, list[int]] = {}
        for token, follower in zip(new[-2::-1], new[:0:-1]):
            found = followers.setdefault(token, [])
            if len(found) < self._count and follower not in found:
                found.append(follower)
        for token, found in followers.items():
            older = [other for other in self._successors.get(token, ()) if other not in found]
            self._successors[token] = (found + older)[: self._count]

    def grow(self, builder: DraftBuilder, token: int, topk: int, row_cost: float) -> None:
        """Hangs the likeliest nodes below the builder's start, which holds `token`, while they pay for their rows.

        A node that is kept with chance `value` pays if it raises the tokens per time that the pass promises.
        """
        assert builder.start is not None
        chances = [self._values.chance(rank) for rank in range(topk)]
        siblings = {builder.start: self._successors.get(token, ())}
        values = {builder.start: 1.0}
        queue = [(-chances[0], builder.start, 0)]
        promised, cost = 1.0, 1.0
        while queue and builder.room > 0:
            negative, row, rank = heapq.heappop(queue)
            if -negative * cost <= row_cost * promised:
                break
            if rank >= len(siblings[row]):
                continue
            token = siblings[row][rank]
            below = builder.child(row, token)
            if below is None:
                continue  # too deep
            promised, cost = promised - negative, cost + row_cost
            siblings[below], values[below] = self._successors.get(token, ()), -negative
            heapq.heappush(queue, (negative * chances[0], below, 0))
            if rank + 1 < topk:
                heapq.heappush(queue, (-values[row] * chances[rank + 1], row, rank + 1))

    def observe(self, result: RoundResult) -> None:
        """Learns from every row of a round with a draft, or one that was asked for: O(rows)."""
        if self._pending is None or not result.emitted:
            return
        pending, self._pending = self._pending, result.emitted[-1]
        if self._asked or len(result.draft):
            self._count_ranks(pending, result.emitted)
            self._renew(pending, result)
            self._read += len(result.emitted)
        self._asked = False

    def _count_ranks(self, pending: int, emitted: Sequence[int]) -> None:
        """Which ranks were right, drafted or not: every emitted token hung below a row that was reached."""
        for token, follower in zip((pending, *emitted), emitted):
            for rank, successor in enumerate(self._successors.get(token, ())):
                self._values.count(rank, kept=successor == follower)

    def _renew(self, pending: int, result: RoundResult) -> None:
        """The rows of the text come last: what the target thought on its way outlasts what it thought off it."""
        nodes = result.draft.nodes
        ids, logits = best_tokens(result.scores.logits, self._count)
        lists, sound = ids.tolist(), np.isfinite(logits.max(axis=1)).tolist()
        tokens = (pending, *nodes.tokens)
        for row in (*range(1, len(tokens)), 0, *(node + 1 for node in result.accepted)):
            if sound[row]:
                self._successors[tokens[row]] = lists[row]
