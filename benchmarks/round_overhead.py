"""Milliseconds per round outside the forwards: K = 4, all accepted, 49,152 tokens, text tracked by the real tokenizer.

    python benchmarks/round_overhead.py [--rounds 500] [--profile]

The target replays rows of realistic peakedness; the time of its scores is subtracted from every round. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Sequence

import numpy as np
import torch

from outrider.core.noise import Place, RoundNoise
from outrider.core.protocols import Chunk
from outrider.core.records import Budget, Context, Draft, Guarantee, Request, RoundResult, Scores
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts
from outrider.models.load import resolve
from outrider.testing.scripted import ScriptedDrafter
from outrider.text import TextTracker, load_tokenizer

VOCAB, DEPTH, PROMPT = 49_152, 4, (1, 2, 3)


class ReplayTarget:
    """Returns the same few rows of logits by position; its own time is kept apart."""

    vocab_size, row_invariant, max_length, supports_trees = VOCAB, True, None, True

    def __init__(self, period: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(period, VOCAB, generator=generator) * 2.0
        # A few tokens per row stand out by 8 to 14 nats: the peakedness of a chat model's rows.
        for row in self.rows:
            peaks = torch.randint(VOCAB, (6,), generator=generator)
            row[peaks] += torch.tensor([14.0, 12.5, 12.0, 11.0, 9.0, 8.0])
        self.rows = torch.cat([self.rows, self.rows[: DEPTH + 1]])  # a draft may run past the period
        self.period = period
        self.seconds = 0.0
        self._lengths: dict[int, int] = {}

    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        for chunk in chunks:
            self._lengths[chunk.sequence_id] = self.cached_length(chunk.sequence_id) + len(chunk.tokens)
        return [None for _ in chunks]

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        start = time.perf_counter()
        first = [len(context.tokens) % self.period for context in contexts]
        scores = [Scores(self.rows[f : f + len(draft) + 1]) for f, draft in zip(first, drafts)]
        self.seconds += time.perf_counter() - start
        return scores

    def commit(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            self._lengths[result.sequence_id] += 1 + len(result.kept)

    def rewind(self, sequence_id: int, length: int) -> None:
        self._lengths[sequence_id] = length

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        self._lengths[sequence_id] = length

    def release(self, sequence_id: int) -> None:
        self._lengths.pop(sequence_id, None)

    def cached_length(self, sequence_id: int) -> int:
        return self._lengths.get(sequence_id, 0)


def text_of(target: ReplayTarget, sampling: SamplingParams, seed: int, length: int) -> list[int]:
    """The tokens that plain decoding of the replayed rows emits."""
    tokens = list(PROMPT)
    while len(tokens) < length:
        law = Context.of(tokens, sampling=sampling).law.node(target.rows[len(tokens) % target.period], ())
        tokens.append(RoundNoise(seed, len(tokens)).argmax(law, Place(0, 0)))
    return tokens


def measure(sampling: SamplingParams, rounds: int, profile: cProfile.Profile | None) -> dict[str, float]:
    target, seed = ReplayTarget(64), 7
    text = text_of(target, sampling, seed, len(PROMPT) + (rounds + 20) * (DEPTH + 1))
    drafter = ScriptedDrafter({0: text}, vocab_size=VOCAB)
    parts = Parts(target, drafter, RuleBook(), FixedController(Budget(DEPTH, DEPTH)), DEPTH)
    engine = Engine(parts)
    request = Request(0, PROMPT, sampling, seed, Guarantee.SAME_TEXT)
    tokenizer = load_tokenizer(resolve("smollm2-135m"))
    sequence = engine.submit(request, TextTracker(tokenizer, (), 0))
    for _ in range(10):
        engine.step()
    before, spent = sequence.stats, []
    if profile is not None:
        profile.enable()
    for _ in range(rounds):
        target.seconds, start = 0.0, time.perf_counter()
        engine.step()
        spent.append(time.perf_counter() - start - target.seconds)
    if profile is not None:
        profile.disable()
    accepted = sequence.stats.num_accepted_draft_tokens - before.num_accepted_draft_tokens
    assert accepted == rounds * DEPTH, "every drafted token is accepted"
    return {"mean_ms": 1e3 * float(np.mean(spent)), "median_ms": 1e3 * float(np.median(spent))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    settings = {
        "T=0": SamplingParams(temperature=0.0, max_tokens=10**6),
        "T=0.7 top_p=0.9": SamplingParams(temperature=0.7, top_p=0.9, max_tokens=10**6),
        "T=0.8": SamplingParams(temperature=0.8, max_tokens=10**6),
    }
    results = {}
    for name, sampling in settings.items():
        profile = cProfile.Profile() if options.profile else None
        results[name] = measure(sampling, options.rounds, profile)
        if profile is not None:
            print(f"== {name}")
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
