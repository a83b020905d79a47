"""`Growth`: grows drafts level by level from the rows of any model that can score its own drafts."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, NodeLaw
from outrider.core.noise import Place
from outrider.core.records import Budget, Context, Draft, Guarantee, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.asking import Asking
from outrider.drafters.node_kinds import GOES_ON, PRIORS, drawn_kinds, likeliest_kinds, ranked_kinds
from outrider.drafters.plant import Plant
from outrider.drafters.rows import DraftRows, HostRows, likeliest, log_probs, siblings
from outrider.drafters.values import GivenChains, NodeValues
from outrider.errors import ConfigError, ScoreError
from outrider.models.row_costs import FREE, DraftCosts

ScoreRows = Callable[
    [Sequence[Context], Sequence[TokenTree], Sequence[Sequence[int]]], Sequence[torch.Tensor | DraftRows]
]
"""One forward of a draft model: of each tree the rows asked for, in their order. A tensor [rows, n] speaks of the
target's first n tokens."""

Ready = Callable[[Sequence[Context]], ScoreRows]
"""Takes in what became certain of these contexts, before their drafts grow, and answers with what scores them."""


class SampleMethod(str, Enum):
    """How a draft model's rows become tokens: by the request's sampling, or the most probable token."""

    PROBABILISTIC = "probabilistic"
    GREEDY = "greedy"


@dataclass(frozen=True)
class GrowthSettings:
    """How a model's drafts grow, whatever their size: what they are cut by, and the tokens of context past which there
    are none, where that is less than the model allows itself."""

    sample_method: SampleMethod = SampleMethod.PROBABILISTIC
    max_length: int | None = None
    costs: DraftCosts = FREE

    def window(self, own: int | None) -> int | None:
        """Positions that drafts may fill, of a model with so many of its own (None: any number)."""
        return min((n for n in (own, self.max_length) if n is not None), default=None)


UNCUT = GrowthSettings()
"""As long as their budgets, by the request's sampling."""


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

    How likely a node is to be kept: the share of its like that was kept in this text (`drafters.node_kinds`), which
    `observe` counts; for `SampleMethod.GREEDY` with noise its own probability.

    A draft ends where another forward, or another row to score, costs more passes of the target than it promises
    tokens (`costs`). Where nodes are drawn, this is settled before, by their ranks alone.

    `vocab_size` is the target's: of longer rows the rest is left out. Raises `ConfigError`.
    """

    def __init__(self, vocab_size: int, topk: int = 1,
                 sample_method: SampleMethod = SampleMethod.PROBABILISTIC,
                 costs: DraftCosts = FREE) -> None:  # fmt: skip
        if topk < 1:
            raise ConfigError(f"topk must be at least 1, not {topk}")
        self.vocab_size, self.topk, self.sample_method = vocab_size, topk, sample_method
        self._costs = costs
        self._known: dict[int, _Known] = {}

    def propose(self, contexts: Sequence[Context], allowed: Sequence[Budget], drafts: Sequence[Draft],
                ready: Ready) -> list[Draft]:  # fmt: skip
        """A round of a drafter: as `grow`, but only for contexts that are allowed any depth, and whose text keeps what
        is grown below such a draft often enough (`drafters.asking`). One call a round."""
        grown = list(drafts)
        asked = [
            i for i, budget in enumerate(allowed) if budget.depth > 0 and self._asks(contexts[i], drafts[i])
        ]
        if asked:
            some = [contexts[i] for i in asked]
            answers = self.grow(some, [allowed[i] for i in asked], [drafts[i] for i in asked], ready(some))
            for i, draft in zip(asked, answers):
                grown[i] = draft
        return grown

    def grow(self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft],
             score: ScoreRows) -> list[Draft]:  # fmt: skip
        """Drafts within their budgets that contain the given ones; one call of `score` per level for all.

        Below a given chain it goes on where the chain ends; a given tree is returned as it is.
        """
        plants = [self._plant(*job) for job in zip(contexts, budgets, drafts)]
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
        for plant in plants:
            self._trim(plant)
            self._remember(plant)
        return [plant.draft() for plant in plants]

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts what became of the nodes grown last."""
        for result in results:
            known = self._known.get(result.sequence_id)
            if known is not None:
                known.observe(result)

    def forget(self, sequence_id: int) -> None:
        """Frees what is known of a sequence."""
        self._known.pop(sequence_id, None)

    def _asks(self, context: Context, draft: Draft) -> bool:
        return self._costs.free or self._of(context.sequence_id).asking.asks(len(draft))

    def _goes_on(self, plant: Plant) -> bool:
        """Whether another level could add to a plant: there is room, or a point mass may take the place of a worse."""
        if not plant.grows:
            return False
        if plant.share() <= 0 and (self._choice(plant.context) is _Choice.DRAWN or not plant.can_improve):
            return False
        return self._pays(plant)

    def _pays(self, plant: Plant) -> bool:
        """Whether another level promises more tokens for its cost than the draft as it stands does."""
        if not plant.levels or self._costs.free:
            return True
        kept = self._worth_rows(plant)
        promised, rows = plant.given_promise + sum(plant.falling[:kept]), plant.given_rows + kept
        spent = self._costs.of(rows, plant.levels)
        price = self._costs.of(rows + 1, plant.levels + 1) - spent
        gain = plant.hope * self._known[plant.context.sequence_id].values.chance(GOES_ON)
        return gain * spent >= promised * price

    def _worth_rows(self, plant: Plant) -> int:
        """How many of the nodes grown, likeliest first, are worth their rows: of drawn ones all."""
        if self._choice(plant.context) is _Choice.DRAWN:
            return plant.rows - plant.given_rows
        return self._costs.rows.worthwhile(
            plant.falling,
            promised=plant.given_promise,
            rows=plant.given_rows,
            sunk=self._costs.sunk(plant.levels),
        )

    def _trim(self, plant: Plant) -> None:
        """Drops nodes that are not worth their rows."""
        if not self._costs.rows.free:
            plant.keep_best(self._worth_rows(plant))

    def _choose_level(self, plant: Plant, rows: Sequence[int], level: HostRows) -> None:
        ranked = self._choice(plant.context) is _Choice.RANKED
        known = self._known[plant.context.sequence_id].values
        for index, row in enumerate(rows):
            law = self._law(plant, row, level, index)
            if law is not None:
                buds = (
                    self._ranked(plant, row, law, known)
                    if ranked
                    else self._most_probable(law, level, index, known)
                )
                above = plant.values[row]
                plant.add(row, buds.tokens, POINT_MASS, [above + step for step in buds.steps], buds.kinds)
        plant.keep_best()

    def _ranked(self, plant: Plant, row: int, law: NodeLaw, known: NodeValues) -> _Buds:
        """The best tokens of a row under the text's noise."""
        contest = plant.context.noise.contest(law, self.topk, Place(plant.depths[row], row))
        kinds = ranked_kinds(contest.leads)
        return _Buds(contest.tokens, known.log_chances(kinds), kinds)

    def _most_probable(self, law: NodeLaw, level: HostRows, index: int, known: NodeValues) -> _Buds:
        """The most probable tokens of a row, of a greedy law with its winner first."""
        if not law.greedy:
            indices = likeliest(law.logits, self.topk)
            steps = log_probs(law.logits, indices.tolist(), float(law.logits.max()))
            return _Buds(tuple(map(law.token, indices.tolist())), steps)
        best, row = law.token(0), level.logits[index]
        columns = siblings(level, index, best, self.topk - 1).tolist() if self.topk > 1 else []
        peak = int(row.argmax())  # the winner's, where no processor decided
        kinds = likeliest_kinds(log_probs(row, [peak, *columns], float(row[peak])))
        return _Buds((best, *map(level.token, columns)), known.log_chances(kinds), kinds)

    def _draw_level(self, plant: Plant, share: int, rows: Sequence[int], level: HostRows) -> None:
        kinds = drawn_kinds(self.topk)
        steps = self._known[plant.context.sequence_id].values.log_chances(kinds)
        ladders = [[plant.values[row] + step for step in steps] for row in rows]
        best = sorted(itertools.chain(*ladders), reverse=True)[:share]
        worth = self._costs.rows.worthwhile(
            plant.chances_of(best), promised=plant.promised, rows=plant.rows,
            sunk=self._costs.sunk(plant.levels),
        )  # fmt: skip
        counts = _allot(ladders, worth)
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

    def _of(self, sequence_id: int) -> _Known:
        known = self._known.get(sequence_id)
        if known is None:
            known = self._known[sequence_id] = _Known()
        return known

    def _plant(self, context: Context, budget: Budget, draft: Draft) -> Plant:
        known = self._of(context.sequence_id)
        known.below = len(draft) if draft.nodes.is_chain else 0
        return Plant(context, budget, draft, known.given.chance(known.below))

    def _remember(self, plant: Plant) -> None:
        """What `observe` needs to know of the nodes grown."""
        known = self._known[plant.context.sequence_id]
        known.kinds = plant.kinds
        if plant.levels:
            known.asking.grown(plant, self._costs, plant.levels)


@dataclass(eq=False)
class _Known:
    """What one text has shown: how often nodes were kept, and chains given by others; and the nodes grown last."""

    values: NodeValues = field(default_factory=lambda: NodeValues(PRIORS))
    given: GivenChains = field(default_factory=GivenChains)
    kinds: Mapping[int, Hashable] = field(default_factory=dict)
    asking: Asking = field(default_factory=Asking)
    below: int = 0  # given nodes that the last ones grown hang below

    def observe(self, result: RoundResult) -> None:
        self.given.observe(result, self.below)
        self.asking.observe(result)
        self.values.observe(result, self.kinds, GOES_ON)
        self.kinds, self.below = {}, 0


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
