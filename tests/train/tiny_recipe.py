"""A recipe of a few hundred numbers on random texts: what tests of the loop train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from outrider.train.evaluation import HeldOut
from outrider.train.loop import Data
from outrider.train.losses import kl_div
from outrider.train.recipe import Judged
from outrider.train.texts import Batch, Text, batch_of

VOCAB, HIDDEN, STEPS = 12, 6, 3


class TinyRecipe:
    """Guesses the next three tokens from the features of a position; features are a fixed table of the tokens.

    Its loss is a mean over texts, and dropout makes it ask for random numbers.
    """

    method = "tiny"
    taps = (0,)
    steps = STEPS

    def __init__(self, dropout: float = 0.1) -> None:
        generator = torch.Generator().manual_seed(1)
        self.module = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(HIDDEN, 16), nn.Tanh(), nn.Linear(16, STEPS * VOCAB)
        )
        for parameter in self.module.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        self._target = torch.randn(VOCAB, VOCAB, generator=generator) * 3

    def judge(self, batch: Batch) -> Judged:
        texts, length = batch.tokens.shape
        logits = self.module(batch.features[:, :, 0]).view(texts, length, STEPS, VOCAB)
        losses, overlaps, counts = [], [], []
        mean = logits.new_zeros(texts)
        hits = torch.zeros(texts, length, STEPS, dtype=torch.bool)
        for j in range(STEPS):
            guessed = torch.zeros_like(batch.answered)
            guessed[:, : length - 1 - j] = batch.answered[:, 1 + j :]
            rows, places = guessed.nonzero(as_tuple=True)
            truth = batch.tokens[rows, places + 1 + j]
            before = batch.tokens[rows, places + j]
            found = kl_div(logits[rows, places, j].float(), self._target[before])
            sums = torch.zeros(texts).index_add(0, rows, found.losses)
            mean = mean + sums / guessed.sum(1).clamp_min(1)
            losses.append(found.losses.sum().detach())
            overlaps.append(found.overlaps.sum())
            counts.append(guessed.sum())
            hits[rows, places, j] = logits[rows, places, j].argmax(1) == truth
        return Judged(mean.mean(), torch.stack(losses), torch.stack(overlaps), torch.stack(counts), hits)

    def write(self, folder: Path, form: str) -> None:
        raise NotImplementedError


class TinyTexts:
    """Texts with features made up of their tokens."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts = texts
        self._table = torch.randn(VOCAB, 1, HIDDEN, generator=torch.Generator().manual_seed(2))

    def lengths(self) -> list[int]:
        return [len(text.tokens) for text in self.texts]

    def batch(self, indices: Sequence[int]) -> Batch:
        texts = [self.texts[index] for index in indices]
        return batch_of(texts, [self._table[torch.tensor(text.tokens)] for text in texts])


def random_texts(count: int, seed: int) -> list[Text]:
    generator = torch.Generator().manual_seed(seed)
    found: list[Text] = []
    for index in range(count):
        prompt, answer = (int(torch.randint(2, 9, (), generator=generator)) for _ in range(2))
        tokens = torch.randint(VOCAB, (prompt + answer,), generator=generator).tolist()
        found.append(Text(tuple(tokens[:prompt]), tuple(tokens[prompt:]), 0.7 * (index % 2), "tests"))
    return found


def tiny_data() -> Data:
    held_out = random_texts(7, 4)
    return Data(TinyTexts(random_texts(30, 3)), HeldOut(held_out, TinyTexts(held_out)))
