"""`RecyclingDrafter`: what the target once thought might follow a token, as a tree (Token Recycling, 2408.08696)."""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from outrider.core.records import Budget, Context, Draft, RoundResult, TokenView
from outrider.drafters.best_tokens import best_tokens
from outrider.drafters.builder import DraftBuilder
from outrider.drafters.values import GivenChains, NodeValues
from outrider.errors import ConfigError
from outrider.models.row_costs import RowCosts

_COSTS = RowCosts.linear(0.05)
"""What rows are taken to cost where nothing is known of the target: 4 % of a pass, and 1 % to learn from each."""

_STEPS = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 0.92)
"""Shares are told apart by the step they fall into."""

_BELOW_PENDING = (0.01, 0.01, 0.03, 0.06, 0.09, 0.15, 0.35, 0.39, 0.61, 0.65, 0.87)
_DEEPER = (0.01, 0.02, 0.02, 0.06, 0.11, 0.20, 0.38, 0.55, 0.72, 0.88, 0.92)
_PRIORS: Mapping[Hashable, float] = {
    **{
        (step, depth): chance
        for depth, chances in enumerate((_BELOW_PENDING, _DEEPER))
        for step, chance in enumerate(chances)
    },
}
"""By step: how often a successor came next where its token was reached. SmolLM2 at temperature 0, 5 prompts of each
Spec-Bench task, up to 128 tokens each: 50 to 2,100 successors per figure."""

_FAINT = 0.01
"""Smaller shares are forgotten when a new row comes: nothing so faint is worth a row."""

_BIGRAM_SHARES = (0.4, 0.12, 0.05, 0.05, 0.04, 0.03, 0.02, 0.02)
"""What a prompt's bigrams count for, the most recent first: how often each came next, in 3 texts of each task."""


class RecyclingDrafter:
    """Remembers the best `successors` tokens after each token and drafts them as a tree, the likeliest nodes first.

    Every scored row speaks of the successors of its token, rejected nodes included: what the target thought there is
    thrown away by every other method. A prompt gives the bigrams it holds. Needs no model and no training; up to a
    kilobyte per distinct token of a request, shared with no other.

    A tree grows best-first by the product of its nodes' measured chances, up to the budget; of its nodes as many are
    drafted as promise most tokens per cost of the pass (`costs`). `topk` bounds the children of a node; 1 drafts
    chains. Below a given chain the tree hangs on its leaf, and counts for as much as chains of that length were kept
    whole; a given tree is left alone. Raises `ConfigError` unless counts are at least 1.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, *, successors: int = 8, topk: int = 8, costs: RowCosts = _COSTS) -> None:
        for name, value in (("recycling_successors", successors), ("topk", topk)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self._successors, self._topk, self._costs = successors, min(topk, successors), costs
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
        memory.grow(builder, last, self._topk, self._costs)
        return builder.draft()


class _Node(NamedTuple):
    """A node of a plan: `parent` 0 is where the plan hangs, j + 1 its j-th node; `chance` that it is kept."""

    parent: int
    token: int
    chance: float


class _Memory:
    """The successors of one request's tokens, and how often those of a kind were right.

    A successor's *share* is its part of the probability that a row gives its best tokens, averaged over the rows of the
    token seen so far: half the newest, half the average before. Its *kind* is the step of its share, and whether it
    hangs below the root or deeper, where the text has proved easy to guess.
    """

    def __init__(self, successors: int) -> None:
        self._count = successors
        self._successors: dict[int, list[tuple[int, float]]] = {}  # with shares, the largest first
        self._values = NodeValues(_PRIORS)
        self._read = 0  # tokens of the text whose bigrams are in
        self._pending: int | None = None
        self._asked = False  # for a draft of the round to come
        self._given, self._below = GivenChains(), 0  # chains of others, and how long the last one was

    def read(self, tokens: TokenView) -> None:
        """Takes in the bigrams of what became certain unseen, such as a prompt; the most recent counts most."""
        self._pending, self._asked = tokens[-1], True
        new = tokens[max(0, self._read - 1) :]
        self._read = len(tokens)
        followers: dict[int, list[int]] = {}
        for token, follower in zip(new[-2::-1], new[:0:-1]):
            found = followers.setdefault(token, [])
            if len(found) < len(_BIGRAM_SHARES) and follower not in found:
                found.append(follower)
        for token, found in followers.items():
            self._mix(token, found, _BIGRAM_SHARES)

    def grow(self, builder: DraftBuilder, token: int, topk: int, costs: RowCosts) -> None:
        """Hangs the likeliest nodes below the builder's start, which holds `token`, as many as are worth their rows."""
        root = builder.start
        assert root is not None
        length = self._below = builder.depth(root)
        above = self._given.chance(length)
        plan = self._likeliest(token, above, topk, builder.room, builder.levels)
        chances = [node.chance for node in plan]
        rows = [root]
        for node in plan[: costs.worthwhile(chances, promised=1.0 + length * above, rows=1 + length)]:
            row = builder.child(rows[node.parent], node.token)
            assert row is not None, "the plan keeps to the budget"
            rows.append(row)

    def _likeliest(self, token: int, above: float, topk: int, room: int, levels: int) -> list[_Node]:
        """Up to `room` nodes on `levels` levels below a row that holds `token` and is kept with chance `above`."""
        first, deeper = self._chances(0), self._chances(1)
        plan: list[_Node] = []
        siblings, values, depths = [self._successors.get(token, [])], [above], [0]
        queue: list[tuple[float, int, int]] = []  # of the next child of each row: minus its chance, row, rank

        def offer(row: int, rank: int) -> None:
            if depths[row] < levels and rank < min(topk, len(siblings[row])):
                chances = deeper if row else first
                chance = chances[bisect(_STEPS, siblings[row][rank][1])]
                heapq.heappush(queue, (-values[row] * chance, row, rank))

        offer(0, 0)
        while queue and len(plan) < room:
            negative, row, rank = heapq.heappop(queue)
            token = siblings[row][rank][0]
            plan.append(_Node(row, token, -negative))
            siblings.append(self._successors.get(token, []))
            values.append(-negative)
            depths.append(depths[row] + 1)
            offer(len(plan), 0)
            offer(row, rank + 1)
        return plan

    def observe(self, result: RoundResult) -> None:
        """Learns from every row of a round with a draft, or one that was asked for: O(rows)."""
        if self._pending is None or not result.emitted:
            return
        pending, self._pending = self._pending, result.emitted[-1]
        self._given.observe(result, self._below)
        self._below = 0
        if self._asked or len(result.draft):
            self._count_kinds(pending, result.emitted)
            self._learn(pending, result)
        if self._asked:
            self._read += len(result.emitted)
        self._asked = False

    def _chances(self, depth: int) -> list[float]:
        """The chance of a successor by the step of its share; depth 0 is below the root, 1 deeper."""
        return [self._values.chance((step, depth)) for step in range(len(_STEPS) + 1)]

    def _count_kinds(self, pending: int, emitted: Sequence[int]) -> None:
        """Which successors were right, drafted or not: every emitted token hung below a row that was reached."""
        for place, (token, follower) in enumerate(zip((pending, *emitted), emitted)):
            for successor, share in self._successors.get(token, ()):
                kind = (bisect(_STEPS, share), min(place, 1))
                self._values.count(kind, kept=successor == follower)

    def _learn(self, pending: int, result: RoundResult) -> None:
        """The rows of the text come last: what the target thought on its way counts more than what it thought off."""
        ids, logits = best_tokens(result.scores.logits, self._count)
        sound = np.isfinite(logits.max(axis=1)).tolist()
        with np.errstate(invalid="ignore"):
            weights = np.exp(logits - logits[:, :1])
        shares = (weights / weights.sum(axis=1, keepdims=True)).tolist()
        lists, tokens = ids.tolist(), (pending, *result.draft.nodes.tokens)
        kept = (0, *(node + 1 for node in result.accepted))
        for row in (*(row for row in range(len(tokens)) if row not in kept), *kept):
            if sound[row]:
                self._mix(tokens[row], lists[row], shares[row])

    def _mix(self, token: int, successors: Sequence[int], shares: Sequence[float]) -> None:
        """Averages the successors of a token with new ones, half and half; both come with the largest share first."""
        known = self._successors.get(token)
        if known is None:
            self._successors[token] = list(zip(successors, shares))[: self._count]
            return
        mixed: dict[int, float] = {}
        for successor, share in zip(successors, shares):
            if share < _FAINT:
                break
            mixed[successor] = 0.5 * share
        for successor, share in known:
            if share < _FAINT:
                break
            mixed[successor] = mixed.get(successor, 0.0) + 0.5 * share
        self._successors[token] = sorted(mixed.items(), key=_share, reverse=True)[: self._count]


_share = itemgetter(1)
