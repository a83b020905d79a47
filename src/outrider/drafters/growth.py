"""`Growth`: grows drafts level by level from the rows of any model that can score its own drafts."""

from __future__ import annotations

import heapq
import math
from bisect import bisect
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, Ids, NodeLaw
from outrider.core.noise import Place
from outrider.core.records import Budget, Context, Draft, Guarantee, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.plant import Plant
from outrider.drafters.rows import DraftRows, HostRows, likeliest, siblings
from outrider.drafters.values import NodeValues
from outrider.errors import ConfigError, ScoreError

ScoreRows = Callable[
    [Sequence[Context], Sequence[TokenTree], Sequence[Sequence[int]]], Sequence[torch.Tensor | DraftRows]
]
"""One forward of a draft model: of each tree the rows asked for, in their order. A tensor [rows, n] speaks of the
target's first n tokens."""

_WIDEST = 8  # ranks told apart; further ones count as the last of them
LEADS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Between the classes of leads that are told apart, in nats."""

# How often a child was kept whose parent was, before a text has shown its own share: over 60,000 positions of three
# pairs (docs/log.md, node values). With noise shared it hangs on the rank and the lead and hardly on the draft's own
# probability; of drawn children, on the rank.
_DRAWN = (0.64, 0.09, 0.045, 0.03, 0.02, 0.015, 0.01, 0.01)
_RANKED = (
    (0.33, 0.44, 0.54, 0.70, 0.83, 0.95),
    (0.27, 0.21, 0.15, 0.08, 0.04, 0.01),
    (0.18, 0.14, 0.10, 0.054, 0.027, 0.006),
    (0.13, 0.10, 0.068, 0.041, 0.017, 0.005),
)
PRIORS: Mapping[Hashable, float] = {
    **{("drawn", rank): chance for rank, chance in enumerate(_DRAWN)},
    **{
        ("ranked", rank, lead): chance * 0.75 ** max(0, rank - 3)
        for rank in range(_WIDEST)
        for lead, chance in enumerate(_RANKED[min(rank, 3)])
    },
}


_RANKED_KINDS = tuple(
    tuple(("ranked", rank, lead) for lead in range(len(LEADS) + 1)) for rank in range(_WIDEST)
)


class SampleMethod(str, Enum):
    """How a draft model's rows become tokens: by the request's sampling, or the most probable token."""

    PROBABILISTIC = "probabilistic"
    GREEDY = "greedy"


class Growth:
    """How drafts grow. `topk` 1 draws chains; more draws trees whose nodes have up to `topk` children.

    Every child comes from `context.law`, the law of the request with all its processors, applied to the
    draft model's row: what a drawn group claims as its law is exactly what it was drawn from.
    * temperature 0: the best tokens, point masses;
    * `same_text`: the best under the noise that the target will use (docs/exactness.md), point masses;
    * `same_distribution`: drawn, without replacement when there are more than one;
    * `SampleMethod.GREEDY`: the most probable tokens, point masses, whatever the guarantee.

    Point masses grow as EAGLE-2 does (2406.16858): each level expands the `topk` likeliest of its nodes, and of all
    nodes those likeliest to be kept stay. What is drawn may not be dropped: there a level gets an even share of the
    nodes left, and the number of children is fixed before they are drawn; rows of any node may decide where they go. A
    row without a law (NaN) gets no children: the target decides there.

    How likely a node is to be kept: for greedy drafts its own probability, but at temperature 0 the best of siblings is
    taken for sure; with noise the share of its like that was kept in this text (`NodeValues`), which `observe` counts.

    `vocab_size` is the target's: of longer rows the rest is left out. Raises `ConfigError`.
    """

    def __init__(self, vocab_size: int, topk: int = 1,
                 sample_method: SampleMethod = SampleMethod.PROBABILISTIC) -> None:  # fmt: skip
        if topk < 1:
            raise ConfigError(f"topk must be at least 1, not {topk}")
        self.vocab_size, self.topk, self.sample_method = vocab_size, topk, sample_method
        self._kinds_of_ranks = [_RANKED_KINDS[min(rank, _WIDEST - 1)] for rank in range(topk)]
        self._values: dict[int, NodeValues] = {}
        self._kinds: dict[int, Mapping[int, Hashable]] = {}  # of the nodes grown last, by sequence

    def grow(self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft],
             score: ScoreRows) -> list[Draft]:  # fmt: skip
        """Drafts within their budgets that contain the given ones; one call of `score` per level for all.

        Below a given chain it goes on where the chain ends; a given tree is returned as it is.
        """
        plants = [Plant(*job) for job in zip(contexts, budgets, drafts)]
        while growing := [plant for plant in plants if self._goes_on(plant)]:
            shares = [plant.share() for plant in growing]
            levels = [plant.next_level(self.topk) for plant in growing]
            found = score([plant.context for plant in growing], [plant.tree() for plant in growing], levels)
            for plant, share, rows, scored in zip(growing, shares, levels, found):
                level = HostRows.of(scored, self.vocab_size)
                if self._choice(plant.context) is _Choice.DRAWN:
                    self._draw_level(plant, share, rows, level)
                else:
                    self._choose_level(plant, rows, level)
        self._kinds |= {plant.context.sequence_id: plant.kinds for plant in plants}
        return [plant.draft() for plant in plants]

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts what became of the nodes grown last."""
        for result in results:
            kinds = self._kinds.pop(result.sequence_id, None)
            if kinds:
                self._values_of(result.sequence_id).observe(result, kinds)

    def forget(self, sequence_id: int) -> None:
        """Frees what is known of a sequence."""
        self._values.pop(sequence_id, None)
        self._kinds.pop(sequence_id, None)

    def _goes_on(self, plant: Plant) -> bool:
        """Whether another level could add to a plant: there is room, or a point mass may take the place of a worse."""
        if not plant.grows:
            return False
        return plant.share() > 0 or (self._choice(plant.context) is not _Choice.DRAWN and plant.can_improve)

    def _choose_level(self, plant: Plant, rows: Sequence[int], level: HostRows) -> None:
        ranked = self._choice(plant.context) is _Choice.RANKED
        known = self._values_of(plant.context.sequence_id)
        for index, row in enumerate(rows):
            law = self._law(plant, row, level, index)
            if law is None:
                continue
            buds = self._ranked(plant, row, law, known) if ranked else self._most_probable(law, level, index)
            value = plant.values[row]
            plant.add(row, buds.tokens, POINT_MASS, [value + step for step in buds.steps], buds.kinds)
        plant.keep_best()

    def _ranked(self, plant: Plant, row: int, law: NodeLaw, known: NodeValues) -> _Buds:
        """The best tokens of a row under the text's noise."""
        place = Place(plant.depths[row], row)
        if self.topk == 1:
            return _Buds(plant.context.noise.ranked(law, 1, place), (0.0,))
        contest = plant.context.noise.contest(law, self.topk, place)
        kinds = [by_lead[bisect(LEADS, lead)] for by_lead, lead in zip(self._kinds_of_ranks, contest.leads)]
        return _Buds(contest.tokens, known.log_chances(kinds), kinds)

    def _most_probable(self, law: NodeLaw, level: HostRows, index: int) -> _Buds:
        """The most probable tokens of a row, with their log-probabilities."""
        if not law.greedy:
            indices = likeliest(law.logits, self.topk)
            return _Buds(tuple(map(law.token, indices.tolist())), _log_probs(law.logits, indices))
        if self.topk == 1:
            return _Buds((law.token(0),), (0.0,))
        return _around(law.token(0), level, index, self.topk)

    def _draw_level(self, plant: Plant, share: int, rows: Sequence[int], level: HostRows) -> None:
        values = self._values_of(plant.context.sequence_id)
        kinds = [("drawn", min(rank, _WIDEST - 1)) for rank in range(self.topk)]
        steps = values.log_chances(kinds)
        ladders = [[plant.values[row] + step for step in steps] for row in rows]
        counts = _allot(ladders, share)
        for index, (row, ladder, count) in enumerate(zip(rows, ladders, counts)):
            law = self._law(plant, row, level, index) if count else None
            if law is not None:
                tokens = plant.context.noise.draw(law, count, Place(plant.depths[row], row))
                claim = Drawn(law) if count == 1 else DrawnWithoutReplacement(law)
                plant.add(row, tokens, claim, ladder, kinds)

    def _law(self, plant: Plant, row: int, level: HostRows, index: int) -> NodeLaw | None:
        """The request's law at a row, None where there is none (NaN)."""
        try:
            return plant.context.law.node(level.logits[index], plant.path_tokens(row), level.columns)
        except ScoreError:
            return None

    def _choice(self, context: Context) -> _Choice:
        if context.sampling.greedy or self.sample_method is SampleMethod.GREEDY:
            return _Choice.BEST
        return _Choice.RANKED if context.guarantee is Guarantee.SAME_TEXT else _Choice.DRAWN

    def _values_of(self, sequence_id: int) -> NodeValues:
        found = self._values.get(sequence_id)
        if found is None:
            found = self._values[sequence_id] = NodeValues(PRIORS)
        return found


class _Buds(NamedTuple):
    """Children that a row may get, best first: the log chance of each, given the row, and what is known of each."""

    tokens: tuple[int, ...]
    steps: Sequence[float]
    kinds: Sequence[Hashable] = ()


class _Choice(Enum):
    BEST = "the most probable"
    RANKED = "the best under the text's noise"
    DRAWN = "drawn from the law"


def _allot(ladders: Sequence[Sequence[float]], share: int) -> list[int]:
    """Children per row, `share` in all where there is room: always to the likeliest next child.

    `ladders[i][r]`: the log chance that the r-th child of row i is kept.
    """
    counts = [0] * len(ladders)
    queue = [(-ladder[0], index) for index, ladder in enumerate(ladders) if ladder]
    heapq.heapify(queue)
    while queue and sum(counts) < share:
        _, index = heapq.heappop(queue)
        counts[index] += 1
        if counts[index] < len(ladders[index]):
            heapq.heappush(queue, (-ladders[index][counts[index]], index))
    return counts


def _around(best: int, level: HostRows, index: int, count: int) -> _Buds:
    """The token of a greedy law and its siblings, these with their raw log-probabilities.

    The winner costs nothing, so a tree always holds the greedy chain: where the text is the best token, the draft's
    best is right far more often than its probability says.
    """
    columns = siblings(level, index, best, count - 1)
    tokens = (best, *map(level.token, columns.tolist()))
    return _Buds(tokens, (0.0, *_log_probs(level.logits[index], columns)))


def _log_probs(logits: npt.NDArray[Any], indices: Ids) -> tuple[float, ...]:  # [n], [k] -> k
    """Log-probabilities of some indices of a row, as exact as the row is."""
    peak = logits.max()
    total = float(np.exp(logits - peak).sum(dtype=np.float64))
    return tuple((logits[indices].astype(np.float64) - (float(peak) + math.log(total))).tolist())
