"""`Growth`: grows drafts level by level from the rows of any model that can score its own drafts."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch

from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, Floats, Law, NodeLaw
from outrider.core.noise import Place
from outrider.core.records import Budget, Context, Draft, Group, Guarantee
from outrider.core.target_law import host_row
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError, ScoreError

ScoreDrafts = Callable[[Sequence[Context], Sequence[Draft]], list[torch.Tensor]]
"""One forward of a draft model: rows of pending token and nodes, [n + 1, draft vocab] per sequence."""

# The chance that the r-th child chosen by noise is kept: 0.57 * 0.36^r (methods.md 6.11, middle regime). It
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
    draft model's row: what a drawn group claims as its law is exactly what it was drawn from (cases.md 1).
    * temperature 0: the best tokens, point masses;
    * `same_text`: the best under the noise that the target will use (methods.md 6.11), point masses;
    * `same_distribution`: drawn, without replacement when there are more than one;
    * `SampleMethod.GREEDY`: the most probable tokens, point masses, whatever the guarantee.

    A level gets an even share of the nodes left. They go where a child is likeliest to be kept, and rows of
    any node may decide that; but the number of children is fixed before they are drawn, and a drawn child is
    never dropped or moved (design 6). A row without a law (NaN) gets no children: the target decides there.

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
        buds = []
        for row in sorted(plant.frontier, key=lambda row: -plant.values[row])[: self.topk]:
            bud = self._bud(plant, row, logits[row])
            if bud is not None:
                buds.append(bud)
        counts = _allot(buds, plant.share())
        plant.frontier = []
        for bud, count in zip(buds, counts):
            if count:
                self._add_children(plant, bud, count)

    def _bud(self, plant: _Plant, row: int, logits: torch.Tensor) -> _Bud | None:
        """A row that may get children, with how likely each is to be kept; None where the row has no law."""
        fitted = _fitted(logits, self.vocab_size)
        try:
            law = plant.context.law.node(fitted, plant.path_tokens(row))
        except ScoreError:
            return None
        if self._choice(plant.context) is not _Choice.BEST:
            tokens: tuple[int, ...] = ()
            ranks = range(min(self.topk, law.logits.size))
            steps = tuple(math.log(_FIRST_RANK * _NEXT_RANK**rank) for rank in ranks)
        elif law.greedy and self.topk > 1:
            tokens, steps = _around(law, fitted, self.topk)
        else:
            tokens, steps = _most_probable(law, self.topk)
        return _Bud(row, law, tokens, tuple(plant.values[row] + step for step in steps))

    def _add_children(self, plant: _Plant, bud: _Bud, count: int) -> None:
        place = Place(plant.depths[bud.row], bud.row)
        noise, law, choice = plant.context.noise, bud.law, self._choice(plant.context)
        if choice is _Choice.DRAWN:
            tokens = noise.draw(law, count, place)
            claim = Drawn(law.probs) if count == 1 else DrawnWithoutReplacement(law.probs)
            plant.add(bud.row, tokens, claim, bud.values[:count])
        elif choice is _Choice.RANKED:
            plant.add(bud.row, noise.ranked(law, count, place), POINT_MASS, bud.values[:count])
        else:
            plant.add(bud.row, bud.tokens[:count], POINT_MASS, bud.values[:count])

    def _choice(self, context: Context) -> _Choice:
        if context.sampling.greedy or self.sample_method is SampleMethod.GREEDY:
            return _Choice.BEST
        return _Choice.RANKED if context.guarantee is Guarantee.SAME_TEXT else _Choice.DRAWN


class _Choice(Enum):
    BEST = "the most probable"
    RANKED = "the best under the text's noise"
    DRAWN = "drawn from the law"


@dataclass(frozen=True, eq=False)
class _Bud:
    """A row about to get children: `values[r]` estimates the log chance that its r-th child is kept."""

    row: int
    law: NodeLaw
    tokens: tuple[int, ...]  # the most probable, best first; empty where noise will choose
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
        self.values += values
        self.frontier += range(first + 1, first + 1 + len(tokens))

    def draft(self) -> Draft:
        if len(self._tokens) == len(self._draft):
            return self._draft
        self._draft = Draft(TokenTree(tuple(self._tokens), tuple(self._parents)), tuple(self._groups))
        return self._draft


def _allot(buds: Sequence[_Bud], share: int) -> list[int]:
    """Children per bud, `share` in all where there is room: always to the likeliest next child."""
    counts = [0] * len(buds)
    queue = [(-bud.values[0], index) for index, bud in enumerate(buds)]
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


def _most_probable(law: NodeLaw, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Up to `count` tokens of the law, most probable first, lowest id on ties, with log-probabilities."""
    if count == 1:
        indices = np.array([law.logits.argmax()])
    else:
        count = min(count, law.logits.size)
        floor = np.partition(law.logits, law.logits.size - count)[law.logits.size - count]
        candidates = np.flatnonzero(law.logits >= floor)
        indices = candidates[np.argsort(-law.logits[candidates], kind="stable")][:count]
    values = law.logits[indices] - math.log(float(np.exp(law.logits).sum()))
    return tuple(law.token(int(index)) for index in indices), tuple(values.tolist())


def _around(law: NodeLaw, row: torch.Tensor, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The token of a greedy law, then the best others of the raw row, with raw log-probabilities.

    A greedy law holds its winner alone. Siblings are guesses at where the draft model is wrong; which ones
    they are cannot change the text.
    """
    raw: Floats = host_row(row).astype(np.float64)
    support = np.flatnonzero(raw > -math.inf)
    tokens, values = _most_probable(NodeLaw(raw.size, support, raw[support] - raw.max(), greedy=False), count)
    best = law.token(0)
    steps = {best: 0.0} | dict(zip(tokens, values))
    tokens = (best, *(token for token in tokens if token != best))[:count]
    return tokens, tuple(steps[token] for token in tokens)
