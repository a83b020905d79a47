"""`Growth`: grows drafts level by level from the rows of any model that can score its own drafts."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch

from outrider.core.largest import largest
from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, Floats, Law, NodeLaw
from outrider.core.noise import Place
from outrider.core.records import Budget, Context, Draft, Group, Guarantee
from outrider.core.target_law import host_row
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError, ScoreError

ScoreDrafts = Callable[[Sequence[Context], Sequence[Draft]], list[torch.Tensor]]
"""One forward of a draft model: rows of pending token and nodes, [n + 1, draft vocab] per sequence."""

# The chance that the r-th child chosen by noise is kept: 0.57 * 0.36^r (a synthetic middle regime). It
# hangs on the rank and hardly on q: a drawn token of small q is kept about as often as one of large q.
_FIRST_RANK, _NEXT_RANK = 0.57, 0.36


class SampleMethod(str, Enum):
    """How a draft model's rows become tokens: by the request's sampling, or the most probable token."""

    PROBABILISTIC = "probabilistic"
    GREEDY = "greedy"


@dataclass(frozen=True)
class Growth:
    """How drafts grow. `topk` 1 draws chains; more draws trees whose nodes have up to `topk` children.

    Every child comes from `context.law`, the law of the request with all its processors, applied to the
    draft model's row: what a drawn group claims as its law is exactly what it was drawn from.
    * temperature 0: the best tokens, point masses;
    * `same_text`: the best under the noise that the target will use (docs/exactness.md), point masses;
    * `same_distribution`: drawn, without replacement when there are more than one;
    * `SampleMethod.GREEDY`: the most probable tokens, point masses, whatever the guarantee.

    A level gets an even share of the nodes left. They go where a child is likeliest to be kept, and rows of
    any node may decide that; but the number of children is fixed before they are drawn, and a drawn child is
    never dropped or moved (docs/exactness.md). A row without a law (NaN) gets no children: the target decides there.

    `vocab_size` is the target's: shorter rows are padded with -inf, longer ones cut. Raises `ConfigError`.
    """

    vocab_size: int
    topk: int = 1
    sample_method: SampleMethod = SampleMethod.PROBABILISTIC

    def __post_init__(self) -> None:
        if self.topk < 1:
            raise ConfigError(f"topk must be at least 1, not {self.topk}")

    def grow(self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft],
             score: ScoreDrafts) -> list[Draft]:  # fmt: skip
        """Drafts within their budgets that contain the given ones; one call of `score` per level for all.

        Below a given chain it goes on where the chain ends; a given tree is returned as it is.
        """
        plants = [_Plant(*job) for job in zip(contexts, budgets, drafts)]
        while growing := [plant for plant in plants if plant.grows]:
            rows = score([plant.context for plant in growing], [plant.draft() for plant in growing])
            for plant, logits in zip(growing, rows):
                self._add_level(plant, logits)
        return [plant.draft() for plant in plants]

    def _add_level(self, plant: _Plant, logits: torch.Tensor) -> None:  # [n + 1, draft vocab]
        choice = self._choice(plant.context)
        rows = sorted(plant.frontier, key=lambda row: -plant.values[row])[: self.topk]
        if choice is _Choice.BEST:
            buds = [self._known_bud(plant, row, logits[row]) for row in rows]
        else:
            buds = [self._unknown_bud(plant, row) for row in rows]
        counts = _allot(buds, plant.share())
        plant.frontier = []
        for bud, count in zip(buds, counts):
            if count and choice is _Choice.BEST:
                plant.add(bud.row, bud.tokens[:count], POINT_MASS, bud.values)
            elif count:
                self._add_by_noise(plant, bud, logits[bud.row], count)

    def _known_bud(self, plant: _Plant, row: int, logits: torch.Tensor) -> _Bud:  # [draft vocab]
        """The row with its most probable children; with none where it has no law."""
        law = self._law(plant, row, logits)
        if law is None:
            return _Bud(row, (), ())
        if not law.greedy:
            tokens, steps = _most_probable(law.logits, self.topk)
            tokens = tuple(law.token(index) for index in tokens)
        elif self.topk == 1:
            tokens, steps = (law.token(0),), (0.0,)
        else:
            tokens, steps = _around(law.token(0), _fitted(logits, self.vocab_size), self.topk)
        return _Bud(row, tokens, tuple(plant.values[row] + step for step in steps))

    def _unknown_bud(self, plant: _Plant, row: int) -> _Bud:
        """The row before noise chooses its children: their ranks alone say how likely they are to be kept."""
        steps = (math.log(_FIRST_RANK) + rank * math.log(_NEXT_RANK) for rank in range(self.topk))
        return _Bud(row, (), tuple(plant.values[row] + step for step in steps))

    def _add_by_noise(self, plant: _Plant, bud: _Bud, logits: torch.Tensor, count: int) -> None:
        law = self._law(plant, bud.row, logits)
        if law is None:
            return
        noise, place = plant.context.noise, Place(plant.depths[bud.row], bud.row)
        if self._choice(plant.context) is _Choice.RANKED:
            plant.add(bud.row, noise.ranked(law, count, place), POINT_MASS, bud.values)
        else:
            claim = Drawn(law.probs) if count == 1 else DrawnWithoutReplacement(law.probs)
            plant.add(bud.row, noise.draw(law, count, place), claim, bud.values)

    def _law(self, plant: _Plant, row: int, logits: torch.Tensor) -> NodeLaw | None:  # [draft vocab]
        """The request's law at a row, None where there is none (NaN)."""
        try:
            return plant.context.law.node(_fitted(logits, self.vocab_size), plant.path_tokens(row))
        except ScoreError:
            return None

    def _choice(self, context: Context) -> _Choice:
        if context.sampling.greedy or self.sample_method is SampleMethod.GREEDY:
            return _Choice.BEST
        return _Choice.RANKED if context.guarantee is Guarantee.SAME_TEXT else _Choice.DRAWN


class _Choice(Enum):
    BEST = "the most probable"
    RANKED = "the best under the text's noise"
    DRAWN = "drawn from the law"


@dataclass(frozen=True)
class _Bud:
    """A row that may get children: `values[r]` estimates the log chance that its r-th child is kept."""

    row: int
    tokens: tuple[int, ...]  # the children, best first, where noise does not choose them
    values: tuple[float, ...]


class _Plant:
    """A draft while it grows. Row 0 is the pending token, row i + 1 node i."""

    def __init__(self, context: Context, budget: Budget, draft: Draft) -> None:
        self.context, self._budget, self._draft = context, budget, draft
        self._tokens, self._parents = list(draft.nodes.tokens), list(draft.nodes.parents)
        self._groups = list(draft.groups)
        self.depths = [0, *draft.nodes.depths]
        self.values = [0.0] * (len(draft) + 1)  # log chance of being kept, below where growth began
        self.frontier = [len(draft)] if draft.nodes.is_chain else []

    @property
    def grows(self) -> bool:
        return bool(self.frontier) and self.share() > 0

    def share(self) -> int:
        """Nodes for the next level: an even part of those left, the larger part first."""
        levels = self._budget.depth - self.depths[self.frontier[0]]
        return 0 if levels <= 0 else -(-(self._budget.nodes - len(self._tokens)) // levels)

    def path_tokens(self, row: int) -> tuple[int, ...]:
        path: list[int] = []
        node = row - 1 if row else None
        while node is not None:
            path.append(self._tokens[node])
            node = self._parents[node]
        return tuple(reversed(path))

    def add(self, row: int, tokens: tuple[int, ...], law: Law, values: tuple[float, ...]) -> None:
        first = len(self._tokens)
        self._tokens += tokens
        self._parents += [row - 1 if row else None] * len(tokens)
        self._groups[row] = (Group(law, tuple(range(first, first + len(tokens)))),)
        self._groups += [()] * len(tokens)
        self.depths += [self.depths[row] + 1] * len(tokens)
        self.values += values[: len(tokens)]
        self.frontier += range(first + 1, first + 1 + len(tokens))

    def draft(self) -> Draft:
        if len(self._tokens) == len(self._draft):
            return self._draft
        self._draft = Draft(TokenTree(tuple(self._tokens), tuple(self._parents)), tuple(self._groups))
        return self._draft


def _allot(buds: Sequence[_Bud], share: int) -> list[int]:
    """Children per bud, `share` in all where there is room: always to the likeliest next child."""
    counts = [0] * len(buds)
    queue = [(-bud.values[0], index) for index, bud in enumerate(buds) if bud.values]
    heapq.heapify(queue)
    while queue and sum(counts) < share:
        _, index = heapq.heappop(queue)
        counts[index] += 1
        if counts[index] < len(buds[index].values):
            heapq.heappush(queue, (-buds[index].values[counts[index]], index))
    return counts


def _fitted(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:  # [draft vocab] -> [vocab_size]
    """The row over the target's ids: padding beyond either vocabulary is never drafted."""
    missing = vocab_size - logits.shape[0]
    if missing <= 0:
        return logits[:vocab_size]
    return torch.nn.functional.pad(logits, (0, missing), value=-math.inf)


def _most_probable(logits: Floats, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:  # [n]
    """Indices of up to `count` of the largest finite logits, largest first, with their log-probabilities."""
    indices = largest(logits, count)
    values = logits[indices]
    kept = values > -math.inf
    peak = float(values[0])
    steps = values[kept] - (peak + math.log(float(np.exp(logits - peak).sum())))
    return tuple(indices[kept].tolist()), tuple(steps.tolist())


def _around(best: int, row: torch.Tensor, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:  # [vocab]
    """The token of a greedy law, then the best others of the raw row, with raw log-probabilities.

    A greedy law holds its winner alone. Siblings are guesses at where the draft model is wrong; which ones
    they are cannot change the text. The winner costs nothing, so a tree always holds the greedy chain: where
    the text is the best token, the draft's best is right far more often than its probability says.
    """
    steps = dict(zip(*_most_probable(host_row(row).astype(np.float64), count))) | {best: 0.0}
    tokens = (best, *(token for token in steps if token != best))[:count]
    return tokens, tuple(steps[token] for token in tokens)
