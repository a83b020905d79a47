"""A target of a few hundred numbers for the recipes of heads: token matrices, texts, and features of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from outrider.core.records import TokenWeights
from outrider.models.heads import Head, read_head
from outrider.train.recipe import Judged, Recipe
from outrider.train.texts import Batch, Text, batch_of

VOCAB, HIDDEN, LAYERS = 30, 16, 4
MAP = torch.tensor([0, 1, 2, 5, 7, 8, 11, 12, 20, 29])  # a draft vocabulary


def _weights() -> TokenWeights:
    made = torch.Generator().manual_seed(3)
    embedding, head = torch.randn(2, VOCAB, HIDDEN, generator=made)
    return TokenWeights(embedding, head, 1 + 0.1 * torch.randn(HIDDEN, generator=made), 1e-5)


WEIGHTS = _weights()
LENGTHS = ((4, 9), (1, 6), (7, 1), (2, 12))  # tokens of prompt and answer


def some_texts() -> list[Text]:
    """Texts of random tokens."""
    made = torch.Generator().manual_seed(5)
    drawn = [[torch.randint(VOCAB, (n,), generator=made).tolist() for n in pair] for pair in LENGTHS]
    return [Text(tuple(prompt), tuple(answer), 0.0, "made") for prompt, answer in drawn]


def with_random_features(taps: int, texts: Sequence[Text]) -> Batch:
    """The first texts keep their features whatever the number of tokens behind them."""
    made = [torch.Generator().manual_seed(index) for index in range(len(texts))]
    features = [
        torch.randn(len(text.tokens), taps, HIDDEN, generator=g, dtype=torch.float64)
        for g, text in zip(made, texts)
    ]
    return batch_of(texts, features)


def counting_batch(taps: int, step: int = 7, known: Sequence[int] = range(VOCAB)) -> Batch:
    """Texts that count through the tokens `known` in equal strides: the target's last state speaks of the token that
    comes, and every other state is a number of its token's own."""
    table = torch.randn(VOCAB, taps, HIDDEN, generator=torch.Generator().manual_seed(2))
    texts = []
    for first in range(8):
        tokens = tuple(known[(first + i * step) % len(known)] for i in range(12))
        texts.append(Text(tokens[:3], tokens[3:], 0.0, "made"))
    features = []
    for text in texts:
        states = table[list(text.tokens)]
        states[:-1, -1] = WEIGHTS.head[list(text.tokens[1:])] / WEIGHTS.norm
        features.append(states)
    return batch_of(texts, features)


def trained_hits(recipe: Recipe, batch: Batch, steps: int, rate: float = 3e-3) -> tuple[Judged, Judged]:
    """What the recipe's guesses come to before and after so many steps on one batch."""
    optimizer = torch.optim.AdamW(recipe.module.parameters(), lr=rate, weight_decay=0.0)
    before = recipe.judge(batch)
    for _ in range(steps):
        optimizer.zero_grad()
        recipe.judge(batch).loss.backward()
        optimizer.step()
    return before, recipe.judge(batch)


def check_files(folder: Path, trained: Head) -> None:
    """What was written is the head that was trained."""
    read = read_head(folder)
    assert read.config == trained.config
    assert read.token_map is not None
    assert torch.equal(read.token_map, MAP)
    for name, tensor in trained.tensors.items():
        assert torch.equal(read.tensors[name], tensor), name


def numeric_slope(of: Callable[[], torch.Tensor], number: torch.Tensor, by: float = 1e-5) -> float:
    """The slope of a loss by one number [], by differences."""
    with torch.no_grad():
        number += by
        above = of().item()
        number -= 2 * by
        below = of().item()
        number += by
    return (above - below) / (2 * by)
