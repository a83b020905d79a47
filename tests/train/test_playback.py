"""Rounds played back are the rounds that the engine takes, counter for counter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outrider.core.completion import SpeculationStats
from outrider.core.noise import uniform
from outrider.core.records import Budget, Context, Draft, Guarantee, Request, RoundResult
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.testing.toy import ToyTarget
from outrider.train.playback import cumulative_acceptance, play_back

VOCAB, STEPS = 7, 5


class Guesser:
    """Chains whose guess j at pending position t is right where a hash of (t, j) says so; t alone decides nothing."""

    taps: tuple[int, ...] = ()

    def __init__(self, target: ToyTarget, share: float) -> None:
        self._target, self._share = target, share

    def chain(self, tokens: Sequence[int]) -> list[tuple[int, bool]]:
        """Guesses after these tokens, and whether each is right given the text up to it."""
        text, found = list(tokens), []
        luck = uniform(9, len(tokens), np.arange(STEPS), purpose=0)
        for step in range(STEPS):
            right = int(self._target.logits_of(text).argmax())
            hit = bool(luck[step] < self._share)
            found.append((right if hit else (right + 1) % VOCAB, hit))
            text.append(right)
        return found

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [
            Draft.chain([token for token, _ in self.chain(context.tokens)[: budget.depth]])
            for context, budget in zip(contexts, budgets)
        ]

    def ingest(self, context: Context, features: torch.Tensor | None) -> None: ...
    def observe(self, results: Sequence[RoundResult]) -> None: ...
    def fork(self, parent_id: int, sequence_id: int, length: int) -> None: ...
    def forget(self, sequence_id: int) -> None: ...


def plain_text(seed: int, prompt: tuple[int, ...]) -> list[int]:
    target, text = ToyTarget(VOCAB, seed=seed, sharpness=1.0), list(prompt)
    for _ in range(7):
        text.append(int(target.logits_of(text).argmax()))
    return text[len(prompt) :]


def live_and_played(
    share: float, length: int, most_tokens: int, eos: frozenset[int], prompt: tuple[int, ...]
) -> tuple[SpeculationStats, SpeculationStats, str]:
    target = ToyTarget(VOCAB, seed=length, sharpness=1.0)
    drafter = Guesser(target, share)
    engine = Engine(Parts(target, drafter, RuleBook(), FixedController(Budget(length, length)), length))
    sampling = SamplingParams(temperature=0.0, max_tokens=most_tokens)
    sequence = engine.submit(Request(0, prompt, sampling, 0, Guarantee.SAME_TEXT, eos))
    run_to_end(engine, [sequence])
    answer = sequence.token_ids
    text = [*prompt, *answer]
    hits = torch.zeros(len(text) + 4, STEPS, dtype=torch.bool)  # padded, as in a batch
    for place in range(len(text)):
        for step, (token, _) in enumerate(drafter.chain(text[: place + 1])):
            told = place + 1 + step
            hits[place, step] = len(prompt) <= told < len(text) and token == text[told]
    played = play_back(hits, prompt_tokens=len(prompt), answer_tokens=len(answer), num_spec_tokens=length,
                       max_tokens=most_tokens)  # fmt: skip
    assert sequence.finish_reason is not None
    return sequence.stats, played, sequence.finish_reason.value


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("length", [1, 3, STEPS])
def test_counters_of_playback_are_those_of_live_decoding(share: float, length: int) -> None:
    reasons = set()
    for prompt in ((1,), (3, 1, 4, 1, 5)):
        text = plain_text(length, prompt)
        for most_tokens in (1, 2, 7, 23):
            for eos in (frozenset[int](), frozenset({text[6]})):
                live, played, reason = live_and_played(share, length, most_tokens, eos, prompt)
                assert played == live
                reasons.add(reason)
    assert reasons == {"stop", "length"}


def test_without_the_requests_limit_rounds_and_tokens_are_still_those_of_live_decoding() -> None:
    hits = torch.ones(9, 3, dtype=torch.bool)
    allowed = play_back(hits, prompt_tokens=2, answer_tokens=6, num_spec_tokens=3, max_tokens=50)
    capped = play_back(hits, prompt_tokens=2, answer_tokens=6, num_spec_tokens=3)
    assert (capped.num_rounds, capped.num_emitted_tokens) == (allowed.num_rounds, allowed.num_emitted_tokens)
    assert capped.num_rounds == 2


def test_acceptance_by_position_comes_from_the_histogram() -> None:
    stats = SpeculationStats(num_rounds=9, num_spec_steps=8, acceptance_histogram=(2, 3, 0, 3))
    assert cumulative_acceptance(stats) == (6 / 8, 3 / 8, 3 / 8)
    assert cumulative_acceptance(SpeculationStats(acceptance_histogram=(0, 0))) == (0.0,)
