"""Playback: the rounds that live decoding of a known text would have taken, from which guesses of it were right.

At temperature 0 a chain is kept up to its first miss whatever else is guessed, so hits at every position are enough.
Counters mean what they mean for a live request (`SpeculationStats`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.completion import SpeculationStats


def play_back(
    hits: torch.Tensor,  # bool [tokens of the text or more, steps], see `Judged.hits`
    *,
    prompt_tokens: int,
    answer_tokens: int,
    num_spec_tokens: int,
    max_tokens: int | None = None,
) -> SpeculationStats:
    """Counters of decoding the answer greedily with chains of `num_spec_tokens`.

    `max_tokens` is what the request allowed, where the answer ended before that by its stop token; None: the answer
    was as long as allowed. A round drafts at most one token less than may still come (`core/sequence.py`).
    """
    assert 0 < num_spec_tokens <= hits.shape[1], f"a chain of {num_spec_tokens} of {hits.shape[1]} guesses"
    kept = hits[:, :num_spec_tokens].long().cumprod(1).sum(1).tolist()
    end = prompt_tokens + answer_tokens
    cap = prompt_tokens + (answer_tokens if max_tokens is None else max_tokens)
    rounds = spec_steps = drafted = 0
    histogram = [0] * (num_spec_tokens + 1)
    length = prompt_tokens
    while length < end:
        budget = min(num_spec_tokens, cap - length - 1)
        accepted = min(kept[length - 1], budget, end - length)
        rounds += 1
        if budget > 0:
            spec_steps += 1
            drafted += budget
            histogram[accepted] += 1
        length += min(accepted + 1, end - length)
    accepted = sum(count * number for number, count in enumerate(histogram))
    return SpeculationStats(
        num_rounds=rounds,
        num_spec_steps=spec_steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        num_emitted_tokens=answer_tokens,
        num_spec_tokens=num_spec_tokens,
        acceptance_histogram=tuple(histogram),
    )


def cumulative_acceptance(stats: SpeculationStats) -> tuple[float, ...]:
    """By position, the share of drafts that were kept up to there; vLLM's per-position acceptance rate."""
    reached = _reached(stats)
    return tuple(count / reached[0] if reached[0] else 0.0 for count in reached[1:])


def _reached(stats: SpeculationStats) -> Sequence[int]:
    """How many drafts had at least 0, 1, 2, ... tokens accepted."""
    histogram = stats.acceptance_histogram
    return [sum(histogram[number:]) for number in range(len(histogram))]
