"""Medusa heads for tests: random ones, and ones that know the texts and err at a chosen share of the places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from outrider.core.noise import uniform
from outrider.core.protocols import TappedTarget
from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.drafters.medusa import MedusaDrafter
from outrider.models.heads import Head, MedusaConfig
from outrider.models.medusa_head import MedusaHeads, untrained_head

_PEAK = 12.0  # nats by which the token that a head believes in leads its row: the law has hardly another


def random_medusa(target: TappedTarget, heads: int = 4, *, seed: int = 0) -> MedusaHeads:
    """Real heads in float64 with random tensors that fit the target: they draft what the state says, mostly wrong."""
    shape = MedusaConfig(heads, 1, target.hidden_size, target.vocab_size, target.vocab_size)
    weights = target.token_weights()
    made = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(tensor.shape, generator=made, dtype=torch.float64) * target.hidden_size**-0.5
        for name, tensor in untrained_head(shape, weights).tensors.items()
    }
    return MedusaHeads(Head(shape, tensors, name="random Medusa heads"), weights, dtype=torch.float64)


class ScriptedMedusa:
    """The real drafter with scripted heads: every feature is replaced by (sequence, position) of its token.

    The heads look the two up and speak of the token that the text has `2 + i` places on, or, at a share `corrupted` of
    the places (which ones depends on head, position and seed alone), of another, with the right one second. So drafts
    are right only where the drafter keeps the state that it should. Needs a target tapped at `tap`.
    """

    def __init__(self, texts: Mapping[int, Sequence[int]], *, tap: int, vocab_size: int, heads: int = 4,
                 topk: int = 1, corrupted: float = 0.3, seed: int = 0,
                 sample_method: SampleMethod = SampleMethod.PROBABILISTIC) -> None:  # fmt: skip
        self.taps = (tap,)
        self._lengths: dict[int, int] = {}
        script = Script(texts, vocab_size, heads, corrupted, seed)
        self._drafter = MedusaDrafter(
            script, tap=tap, target_vocab_size=vocab_size, topk=topk, settings=GrowthSettings(sample_method)
        )

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        assert features is not None, "the target is tapped"
        self._drafter.ingest(context, self._places(context.sequence_id, len(features)))
        self._lengths[context.sequence_id] = self._length(context.sequence_id) + len(features)

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return self._drafter.propose(contexts, budgets, drafts)

    def observe(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            assert result.features is not None, "the target is tapped"
            places = self._places(result.sequence_id, len(result.features))
            self._drafter.observe([replace(result, features=places)])
            self._lengths[result.sequence_id] = self._length(result.sequence_id) + 1 + len(result.kept)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        self._drafter.fork(parent_id, sequence_id, length)
        self._lengths[sequence_id] = length

    def forget(self, sequence_id: int) -> None:
        self._drafter.forget(sequence_id)
        self._lengths.pop(sequence_id, None)

    def _length(self, sequence_id: int) -> int:
        return self._lengths.get(sequence_id, 0)

    def _places(self, sequence_id: int, count: int) -> torch.Tensor:  # [count, 1, 2]
        start = self._length(sequence_id)
        places = [[[sequence_id, position]] for position in range(start, start + count)]
        return torch.tensor(places, dtype=torch.float64).reshape(count, 1, 2)


class Script:
    """Heads that read a place and look its text up."""

    row_invariant = True
    token_map: torch.Tensor | None = None

    def __init__(self, texts: Mapping[int, Sequence[int]], vocab_size: int, count: int, corrupted: float,
                 seed: int) -> None:  # fmt: skip
        self.count = count
        self._texts, self._vocab_size, self._corrupted, self._seed = texts, vocab_size, corrupted, seed

    def __call__(self, states: torch.Tensor, count: int) -> torch.Tensor:  # [n, 2] -> [n, count, vocab]
        places = [(int(sequence), int(position)) for sequence, position in states.tolist()]
        return torch.tensor(np.array([[self._row(i, *place) for i in range(count)] for place in places]))

    def _row(self, head: int, sequence_id: int, position: int) -> np.ndarray:  # [vocab]
        row = uniform(self._seed + head, position, np.arange(self._vocab_size), purpose=0)
        text, wanted = self._texts.get(sequence_id, ()), position + 2 + head
        if wanted < len(text):
            right, wrong = text[wanted], (text[wanted] + 1) % self._vocab_size
            errs = uniform(self._seed + head, position, np.arange(1), purpose=1)[0] < self._corrupted
            row[right] += _PEAK / 2 if errs else _PEAK
            row[wrong] += _PEAK if errs else 0.0
        return row
