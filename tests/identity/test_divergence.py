"""Rounding ties are certified, logic bugs are not: on toy targets with artificial rounding and with planted bugs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.core.accept import NoiseMatch
from outrider.core.protocols import AcceptanceRule, Drafter
from outrider.core.records import Budget, Context, Draft, Guarantee, Request, Scores
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.none import NoDrafter
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.testing.divergence import PLAIN, Divergence, Layout, NoiseBound, certify, replay
from outrider.testing.language import TableLanguage
from outrider.testing.toy import ToyTarget

VOCAB = 40
ROUNDING = 0.02
CHAIN = Layout(4)
GREEDY, SAMPLED = SamplingParams(temperature=0, max_tokens=60), SamplingParams(temperature=0.8, max_tokens=60)


class RoundingTarget(ToyTarget):
    """A toy target that rounds its logits by the width of the pass."""

    row_invariant = False

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        width = sum(len(draft) + 1 for draft in drafts)
        return [
            Scores(s.logits + ROUNDING * torch.sin(1e4 * s.logits + width))
            for s in super().score(contexts, drafts)
        ]


def target() -> ToyTarget:
    return RoundingTarget(VOCAB, seed=4, sharpness=1.0)


def request(seed: int, sampling: SamplingParams) -> Request:
    prompt = tuple(int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, 1 + seed % 7))
    return Request(seed, prompt, sampling, seed, Guarantee.SAME_TEXT)


def text(asked: Request, drafter: Drafter, depth: int, rules: RuleBook | None = None) -> tuple[int, ...]:
    parts = Parts(target(), drafter, rules or RuleBook(), FixedController(Budget(depth, depth)))
    engine = Engine(parts)
    running = engine.submit(asked)
    run_to_end(engine, [running])
    return running.token_ids


def imitation() -> Drafter:
    return ModelDrafter(ToyTarget(VOCAB, seed=4, sharpness=1.0), target_vocab_size=VOCAB)


def texts(count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    asked = [request(seed, SAMPLED) for seed in range(1000, 1000 + count)]
    return [(one.prompt, text(one, NoDrafter(), 0)) for one in asked]


@pytest.fixture(scope="module")
def bound() -> NoiseBound:
    return NoiseBound.measure(target(), texts(10), [Layout(depth) for depth in range(1, 5)], rows=500)


def test_the_bound_is_the_largest_difference_between_widths(bound: NoiseBound) -> None:
    assert bound.rows == 500
    assert 1.9 * ROUNDING < bound.largest <= 2.0 * ROUNDING
    exact = ToyTarget(VOCAB, seed=4, sharpness=1.0)
    layouts = [CHAIN, Layout(3, siblings=2), Layout(2, siblings=1, batch=3)]
    assert NoiseBound.measure(exact, texts(2), layouts, rows=100).largest == 0.0
    assert exact.open_sequences == ()
    with pytest.raises(AssertionError, match="pass more"):
        NoiseBound.measure(exact, texts(2), layouts, rows=1000)


@pytest.mark.parametrize(
    "layout", [PLAIN, CHAIN, Layout(3, siblings=2), Layout(2, siblings=1, batch=3)], ids=str
)
def test_a_replay_reads_every_row_of_the_text(layout: Layout) -> None:
    toy = ToyTarget(VOCAB, seed=4)
    prompt, tokens = (3, 1, 4), (1, 5, 9, 2, 6, 5, 3, 5)
    for lead in range(layout.depth + 1):
        rows = list(replay(toy, prompt, tokens, layout, lead))
        assert len(rows) == len(tokens) + 1
        for end, row in enumerate(rows):
            assert np.array_equal(row, toy.logits_of([*prompt, *tokens[:end]]))
    assert toy.open_sequences == ()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_ties_that_rounding_broke_are_certified(sampling: SamplingParams, bound: NoiseBound) -> None:
    found = []
    for seed in range(30):
        asked = request(seed, sampling)
        plain, spec = text(asked, NoDrafter(), 0), text(asked, imitation(), 4)
        if plain != spec:
            found.append(certify(target(), asked, plain, spec, bound, CHAIN))
    assert len(found) >= 3, "the toy's rounding does change texts"
    assert all(d.certified and d.gap <= 2 * d.bound and d.repeated_wide_choice == d.spec_token for d in found)


class Gullible:
    """Wrong: where the target refuses a draft at once, its first token is emitted all the same."""

    guarantee = Guarantee.SAME_TEXT

    def rule_for(self, context: Context, draft: Draft) -> AcceptanceRule:
        return self

    def judge(self, draft, laws, noise):  # type: ignore[no-untyped-def]
        verdict = NoiseMatch().judge(draft, laws, noise)
        if verdict.accepted or not len(draft):
            return verdict
        return replace(verdict, next_token=draft.nodes.tokens[0])


def test_a_planted_logic_bug_is_not_certified(bound: NoiseBound) -> None:
    found = []
    for seed in range(12):
        asked = request(seed, SAMPLED)
        random_model = ModelDrafter(ToyTarget(VOCAB, seed=9), target_vocab_size=VOCAB)
        plain, spec = text(asked, NoDrafter(), 0), text(asked, random_model, 4, Gullible())  # type: ignore[arg-type]
        found.append(certify(target(), asked, plain, spec, bound, CHAIN))
    assert not any(d.certified for d in found)


def judged(change: int, bound: NoiseBound, toy: ToyTarget, sampling: SamplingParams = SAMPLED) -> Divergence:
    """A text in which one token was exchanged for another."""
    asked = request(3, sampling)
    plain = text(asked, NoDrafter(), 0)
    spec = (*plain[:30], change, *plain[31:])
    return certify(toy, asked, plain, spec, bound, CHAIN)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_small_gap_alone_is_no_excuse(sampling: SamplingParams, bound: NoiseBound) -> None:
    generous = replace(bound, largest=100.0)
    plain = text(request(3, sampling), NoDrafter(), 0)
    found = [
        judged(token, generous, target(), sampling) for token in range(0, VOCAB, 2) if token != plain[30]
    ]
    assert all(d.gap < 2 * d.bound and d.repeated_wide_choice == plain[30] for d in found)
    assert not any(d.certified for d in found)


def test_a_gap_beyond_the_noise_is_not_even_repeated(bound: NoiseBound) -> None:
    found = [
        judged(token, bound, target())
        for token in range(VOCAB)
        if token != text(request(3, SAMPLED), NoDrafter(), 0)[30]
    ]
    far = [d for d in found if d.gap > 2 * d.bound]
    assert len(far) > VOCAB // 4
    assert all(d.repeated_wide_choice is None and not d.certified for d in far)


def test_a_text_that_only_ends_elsewhere_is_not_certified(bound: NoiseBound) -> None:
    asked = request(1, SAMPLED)
    plain = text(asked, NoDrafter(), 0)
    shorter = certify(target(), asked, plain, plain[:-1], bound, CHAIN)
    assert (shorter.index, shorter.plain_token, shorter.spec_token) == (len(plain) - 1, plain[-1], None)
    assert shorter.gap == math.inf
    assert not shorter.certified


def test_a_plain_text_that_plain_decoding_does_not_repeat_is_not_certified(bound: NoiseBound) -> None:
    asked = request(3, SAMPLED)
    plain = text(asked, NoDrafter(), 0)
    other = (*plain[:30], (plain[30] + 1) % VOCAB, *plain[31:])
    assert not certify(target(), asked, other, plain, replace(bound, largest=100.0), CHAIN).certified


class TieBreaker(ToyTarget):
    """Two equal tokens, of which a wide pass prefers the second: a difference that no measured row has shown."""

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        nudge = torch.tensor([0.0, 1e-12]) * float(any(len(draft) for draft in drafts))
        return [Scores(scores.logits + nudge) for scores in super().score(contexts, drafts)]


def test_where_rows_measured_bitwise_equal_nothing_is_excused(bound: NoiseBound) -> None:
    toy, asked = (
        TieBreaker(2, language=TableLanguage({(): (0.5, 0.5)})),
        replace(request(0, GREEDY), prompt=(0,)),
    )
    assert certify(toy, asked, (0, 0), (0, 1), bound, CHAIN).certified
    assert not certify(toy, asked, (0, 0), (0, 1), replace(bound, largest=0.0), CHAIN).certified


def test_a_token_outside_the_support_is_not_a_tie(bound: NoiseBound) -> None:
    sampling = replace(SAMPLED, top_k=2)
    plain = text(request(3, sampling), NoDrafter(), 0)
    found = [judged(token, bound, target(), sampling) for token in range(0, VOCAB, 2) if token != plain[30]]
    assert sum(d.gap == math.inf for d in found) >= len(found) - 1, (
        "two tokens are supported, the plain one is left out"
    )
