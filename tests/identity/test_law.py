"""`same_distribution` keeps the law of whole generations: enumerated exactly, and tested with the real noise.

The statistical tests use fixed seeds, so they pass or fail for good. A test fails below `LEVEL`: the family-wise
significance of 0.001 divided by the number of tests here, so that a right program fails one of them at some choice
of seeds with probability at most 0.001. The same tests catch what they are there to catch (see the last section).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import pytest
from law_cells import CELLS, Cell, Law, Tokens, model, plain_law, surprise, written
from scipy import stats

import outrider.core.sequence
from outrider.core.accept import Block, TokenLevel, Traversal
from outrider.core.law import Drawn, Floats, NodeLaw
from outrider.core.noise import Place, Purpose, RoundNoise, gumbel
from outrider.core.protocols import AcceptanceRule, Chunk, Drafter
from outrider.core.records import Budget, Context, Draft, Guarantee, Request
from outrider.core.round import run_round
from outrider.core.sampling import SamplingParams
from outrider.core.sequence import Sequence
from outrider.testing.branching import BranchingNoise, outcomes

LEVEL = 0.001 / 60  # 40 chi-square tests of generations, 6 of draws, and some to spare
QUICK = ("chain, block", "changing length, tree", "same text, changing length")
SEEDS = range(1600)  # at 800 every planted bug below is caught already, though not by far
SAMPLED = [cell for cell in CELLS if cell.guarantee is Guarantee.SAME_DISTRIBUTION]
SLOW = (
    "medusa, tree, standard",
    "medusa, chain",
    "exit head chain",
    "eagle chain, block",
    "eagle tree, traversal",
    "suffix, then eagle",
    "ngram, then medusa",
)
SETTINGS = {
    "top_p": SamplingParams(temperature=0.8, top_p=0.8),
    "penalties": SamplingParams(
        temperature=0.8, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3
    ),
}
by_sampled_cell = pytest.mark.parametrize("cell", SAMPLED, ids=lambda c: c.name)


class RoundView:
    """Branching noise as one round of a generation sees it: no decision is shared with another round."""

    def __init__(self, noise: BranchingNoise, start: int) -> None:
        self._noise, self._start = noise, start

    def argmax(self, law: NodeLaw, place: Place) -> int:
        return self._noise.argmax(law, self._at(place))

    def ranked(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return self._noise.ranked(law, count, self._at(place))

    def draw(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return self._noise.draw(law, count, self._at(place))

    def accept(self, probability: float, place: Place) -> bool:
        return self._noise.accept(probability, self._at(place))

    def choose(self, probs: Floats, place: Place) -> int:
        return self._noise.choose(probs, self._at(place))

    def _at(self, place: Place) -> Place:
        return Place(1000 * self._start + place.depth, place.row)


class BranchingSequence(Sequence):
    """A sequence whose every decision branches."""

    def __init__(self, request: Request, noise: BranchingNoise) -> None:
        super().__init__(request, max_length=None)
        self._noise = noise

    def context(self) -> Context:
        context = super().context()
        return replace(context, noise=RoundView(self._noise, len(context.tokens)))


def enumerated(cell: Cell, length: int) -> Law:
    """The law of the first `length` tokens after the prompt: every outcome of every round, drafts included."""

    def generation(noise: BranchingNoise) -> Tokens:
        parts = cell.parts()
        sequence = BranchingSequence(cell.request(0, 0, length + 3), noise)
        context = sequence.context()
        [features] = parts.target.extend([Chunk(context.sequence_id, context.tokens[:-1])])
        parts.drafter.ingest(context, features)
        while len(sequence.token_ids) < length:
            [wanted] = parts.controller.budgets([sequence.context()], 1)
            run_round(parts.target, parts.drafter, parts.rules, [sequence], [sequence.budget(wanted)])
        return sequence.token_ids[:length]

    law: dict[Tokens, float] = defaultdict(float)
    for chance, tokens in outcomes(generation):
        law[tokens] += chance
    return law


def narrow(cell: Cell) -> Cell:
    """The cell with drafts small enough to enumerate: two levels, one of them of siblings in a tree."""
    return replace(cell, budget=Budget(2, 2 if cell.budget.nodes == cell.budget.depth else 3))


def error_of(cell: Cell, length: int) -> float:
    found, wanted = enumerated(narrow(cell), length), plain_law(length, cell.sampling)
    assert found.keys() <= wanted.keys()
    return max(abs(found.get(tokens, 0.0) - chance) for tokens, chance in wanted.items())


@pytest.mark.parametrize("cell", [c for c in SAMPLED if c.name not in SLOW], ids=lambda c: c.name)
def test_the_enumerated_law_of_several_rounds_is_the_target_s(cell: Cell) -> None:
    assert error_of(cell, 2) < 1e-12


@pytest.mark.parametrize("cell", [c for c in SAMPLED if c.name not in SLOW], ids=lambda c: c.name)
def test_the_enumerated_law_with_a_nucleus_is_the_target_s(cell: Cell) -> None:
    assert error_of(replace(cell, sampling=SETTINGS["top_p"]), 2) < 1e-12


@pytest.mark.full
@pytest.mark.parametrize("settings", SETTINGS)
@by_sampled_cell
def test_the_enumerated_law_is_the_target_s_under_any_processor(cell: Cell, settings: str) -> None:
    assert error_of(replace(cell, sampling=SETTINGS[settings]), 2) < 1e-12


@pytest.mark.full
@by_sampled_cell
def test_the_enumerated_law_of_three_tokens_is_the_target_s(cell: Cell) -> None:
    assert error_of(cell, 3) < 1e-12


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in QUICK], ids=lambda c: c.name)
def test_generations_with_the_real_noise_have_the_target_s_law(cell: Cell) -> None:
    assert surprise(written(cell, SEEDS, 4), plain_law(4)) > LEVEL


@pytest.mark.full
@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_forty_thousand_generations_have_the_target_s_law(cell: Cell) -> None:
    assert surprise(written(cell, range(10_000, 50_000), 5), plain_law(5)) > LEVEL


def check_noise_match(draws: int) -> None:
    """The text noise at successive positions: the law of each draw, and independence of neighbours."""
    logits = 2.5 * gumbel(9, 0, np.arange(40), 0)
    law = NodeLaw.of_support(40, None, logits - logits.max())
    tokens = np.array([RoundNoise(17, start).argmax(law, Place(0, 0)) for start in range(1, draws + 1)])
    counts = np.bincount(tokens, minlength=40)
    rare = (law.probs < 1e-4) | (law.probs * draws < 5.0)
    assert (law.probs < 1e-4).any()
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(law.probs[~rare], law.probs[rare].sum()) * draws
    assert stats.chisquare(observed, expected).pvalue > LEVEL
    groups = np.minimum(np.argsort(np.argsort(-law.probs)), 7)[tokens]  # the seven likeliest, then all others
    for distance in (1, 2):
        table = np.zeros((8, 8))
        np.add.at(table, (groups[:-distance], groups[distance:]), 1)
        assert stats.chi2_contingency(table).pvalue > LEVEL


def test_texts_of_the_noise_match_have_the_law_and_neighbours_are_independent() -> None:
    check_noise_match(60_000)


@pytest.mark.full
def test_a_million_draws_of_the_noise_match_have_the_law_and_neighbours_are_independent() -> None:
    check_noise_match(1_000_000)


# What must be caught, by the same tests at the same size.


class NoiseOfPlaces(RoundNoise):
    """Wrong: every round reuses the numbers of the round before, for its own places."""

    def accept(self, probability: float, place: Place) -> bool:
        return RoundNoise(self.seed, 0).accept(probability, place)

    def draw(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return RoundNoise(self.seed, 0).draw(law, count, place)


class NoiseOfPositions(RoundNoise):
    """Wrong: a number belongs to a position in the text, whatever the round that looks at it."""

    def _purpose(self, purpose: Purpose, place: Place) -> int:
        return int(purpose)


def quick(name: str) -> Cell:
    return next(cell for cell in CELLS if cell.name == name)


@pytest.mark.parametrize(
    ("noise", "cell", "seeds"),
    [
        (NoiseOfPlaces, "tree, traversal", SEEDS),
        pytest.param(
            NoiseOfPositions, "chain, block", range(4 * len(SEEDS)), marks=pytest.mark.full
        ),  # faint
    ],
)
def test_noise_reused_by_a_later_round_is_caught(
    noise: type[RoundNoise], cell: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outrider.core.sequence, "RoundNoise", noise)
    assert surprise(written(quick(cell), seeds, 4), plain_law(4)) < LEVEL


class Boastful:
    """Wrong: claims that its tokens were drawn from sharper laws than they were."""

    taps: tuple[int, ...] = ()

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.ingest, self.observe = drafter.ingest, drafter.observe
        self.fork, self.forget = drafter.fork, drafter.forget

    def propose(self, contexts: Seq[Context], budgets: Seq[Budget], drafts: Seq[Draft]) -> list[Draft]:
        return [self._lie(draft) for draft in self._drafter.propose(contexts, budgets, drafts)]

    def _lie(self, draft: Draft) -> Draft:
        laws = [groups[0].law for groups in draft.groups[:-1]]
        squares = [law.probs**2 for law in laws if isinstance(law, Drawn)]
        return Draft.chain(draft.nodes.tokens, [Drawn(square / square.sum()) for square in squares])


def test_a_misreported_draft_law_is_caught() -> None:
    cell = replace(quick("chain, block"), build=lambda target: Boastful(model()(target)))
    assert error_of(cell, 2) > 1e-2
    assert surprise(written(cell, SEEDS, 4), plain_law(4)) < LEVEL


# Drafts drawn by a law other than the draft model's own softmax, on the figures of a report.

DRAWN_P, DRAWN_Q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.4, 0.3, 0.2, 0.1])
ARGMAX_P, ARGMAX_Q = np.array([0.3, 0.5, 0.2]), np.array([0.6, 0.3, 0.1])


def first_token(p: Floats, draft_of: Callable[[BranchingNoise], Draft], rule: AcceptanceRule) -> Floats:
    """The law of the first token of a round that judges these drafts."""
    law = np.zeros(len(p))
    for chance, token in outcomes(lambda noise: _first(noise, p, draft_of(noise), rule)):
        law[token] += chance
    return law


def _first(noise: BranchingNoise, p: Floats, draft: Draft, rule: AcceptanceRule) -> int:
    verdict = rule.judge(draft, lambda row: NodeLaw.of_probs(p), noise)
    return draft.nodes.tokens[0] if verdict.accepted else verdict.next_token


@pytest.mark.parametrize("rule", [TokenLevel(), Block(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_q_is_what_the_draft_was_drawn_by(rule: AcceptanceRule) -> None:
    top_two = np.array([4 / 7, 3 / 7, 0.0, 0.0])  # the softmax DRAWN_Q sampled with top_k 2

    def drawn(claimed: Floats) -> Callable[[BranchingNoise], Draft]:
        law = NodeLaw.of_probs(top_two)
        return lambda noise: Draft.chain(noise.draw(law, 1, Place(0, 0)), [Drawn(claimed)])

    assert first_token(DRAWN_P, drawn(top_two), rule) == pytest.approx(DRAWN_P, abs=1e-12)
    wrong = first_token(DRAWN_P, drawn(DRAWN_Q), rule)
    assert wrong == pytest.approx([0.571, 0.429, 0.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("rule", [TokenLevel(), Block(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_an_argmax_draft_is_a_point_mass(rule: AcceptanceRule) -> None:
    chain = Draft.chain([0])
    assert first_token(ARGMAX_P, lambda noise: chain, rule) == pytest.approx(ARGMAX_P, abs=1e-12)
    wrong = first_token(ARGMAX_P, lambda noise: Draft.chain([0], [Drawn(ARGMAX_Q)]), rule)
    assert wrong == pytest.approx([0.5, 1 / 3, 1 / 6], abs=1e-3)
