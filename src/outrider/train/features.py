"""`Features`: the target's hidden states of texts, computed when they are asked for and kept while there is room."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from outrider.core.protocols import Chunk, TappedTarget
from outrider.train.texts import Batch, Text, batch_of


class Features:
    """Hidden states of every token of some texts, as bfloat16 in memory, within `most_bytes`.

    What does not fit is computed anew each time: nothing is written to disk. The target is tapped, and its other
    users keep their columns.
    """

    def __init__(
        self, target: TappedTarget, texts: Sequence[Text], taps: Sequence[int], most_bytes: int
    ) -> None:
        target.tap(taps)
        self._target, self._texts = target, texts
        self._columns = [target.taps.index(tap) for tap in taps]
        self._room = most_bytes
        self._kept: dict[int, torch.Tensor] = {}
        self._ids = itertools.count(-1, -1)  # no request has a negative id

    def __len__(self) -> int:
        return len(self._texts)

    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(text.prompt) + len(text.answer) for text in self._texts]

    def batch(self, indices: Sequence[int]) -> Batch:
        """The texts at `indices` with their features."""
        missing = [index for index in indices if index not in self._kept]
        fresh = dict(zip(missing, self._computed([self._texts[index].tokens for index in missing])))
        for index, states in fresh.items():
            size = states.numel() * states.element_size()
            if size <= self._room:
                self._kept[index], self._room = states, self._room - size
        found = [self._kept[index] if index in self._kept else fresh[index] for index in indices]
        return batch_of([self._texts[index] for index in indices], found)

    def _computed(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Hidden states [tokens, taps, hidden] of each text, bfloat16."""
        if not texts:
            return []
        chunks = [Chunk(next(self._ids), tuple(tokens)) for tokens in texts]
        try:
            states = self._target.extend(chunks)
        finally:
            for chunk in chunks:
                self._target.release(chunk.sequence_id)
        return [own[:, self._columns].to(torch.bfloat16).contiguous() for own in states if own is not None]
