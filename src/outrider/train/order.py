"""Order: which texts make up which batch, a function of seed and epoch alone, so that a resumed run sees the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from outrider.core.noise import uniform

_WINDOW = 32  # batches among whose texts those of similar length are brought together
_TEXTS, _BATCHES = 16, 17  # what a number orders: texts of an epoch, batches of a window


def batches(lengths: Sequence[int], batch_tokens: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Batches without end, epoch after epoch; indices of texts whose `lengths` in tokens are given."""
    for epoch in count():
        yield from epoch_batches(lengths, batch_tokens, seed, epoch)


def epoch_batches(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """Every text once, in batches as `packed` makes them.

    Texts are shuffled, sorted by length within windows of some thirty batches, and the batches of a window shuffled.
    """
    shuffled = np.argsort(uniform(seed, epoch, np.arange(len(lengths)), _TEXTS), kind="stable").tolist()
    found: list[tuple[int, ...]] = []
    for window in _windows(shuffled, lengths, _WINDOW * batch_tokens):
        own = packed(sorted(window, key=lengths.__getitem__), lengths, batch_tokens)
        places = uniform(seed, epoch, np.arange(len(found), len(found) + len(own)), _BATCHES)
        found += [own[place] for place in np.argsort(places, kind="stable")]
    return found


def packed(indices: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> list[tuple[int, ...]]:
    """The texts in their order, cut into batches of at most `batch_tokens` tokens with their padding.

    A text that is longer than that is a batch of its own.
    """
    found: list[tuple[int, ...]] = []
    batch: list[int] = []
    longest = 0
    for index in indices:
        longest = max(longest, lengths[index])
        if batch and longest * (len(batch) + 1) > batch_tokens:
            found.append(tuple(batch))
            batch, longest = [], lengths[index]
        batch.append(index)
    return [*found, tuple(batch)] if batch else found


def _windows(indices: Sequence[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The texts in their order, cut where they come to `tokens` tokens."""
    window: list[int] = []
    held = 0
    for index in indices:
        window.append(index)
        held += lengths[index]
        if held >= tokens:
            yield window
            window, held = [], 0
    if window:
        yield window
