"""Toy languages: pure functions from the tokens so far to the logits of the next one, float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from outrider.core.law import Floats

Language = Callable[[Sequence[int]], Floats]
"""Tokens so far -> logits [vocab]; pure."""

_WIDTH = 16  # of the vectors a hashed language thinks in
_REMEMBERED = 65_536  # rows kept, so that a long test does not hold every row it saw


class HashedLanguage:
    """A random language in which the last `order` tokens decide the next; pure, bit for bit.

    `sharpness` is the standard deviation of the logits: 0 is a flat law, 8 an almost certain one. Rows that were asked
    for are remembered, up to a number.
    """

    def __init__(self, vocab_size: int, seed: int = 0, order: int = 2, sharpness: float = 2.0) -> None:
        self.vocab_size, self.seed, self.order, self.sharpness = vocab_size, seed, order, sharpness
        self._rows: dict[tuple[int, ...], Floats] = {}

    def __call__(self, tokens: Sequence[int]) -> Floats:  # [vocab]
        key = tuple(tokens[-self.order :])
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= _REMEMBERED:
                self._rows.clear()
            row = self._rows[key] = (self._heads * self.state(key)).sum(axis=1) * self.sharpness
            row.flags.writeable = False
        return row

    def state(self, tokens: Sequence[int]) -> Floats:  # [width]
        """The hidden vector after these tokens: unit variance, a function of the last `order` of them."""
        mixed = np.zeros(_WIDTH)
        for place, token in enumerate(reversed(tokens[-self.order :])):
            mixed += self._embeddings[place, token]
        vector: Floats = np.sin(5.0 * mixed)
        vector *= np.sqrt(2.0 / _WIDTH)
        return vector

    @cached_property
    def _embeddings(self) -> Floats:  # [order, vocab, width]
        return np.random.default_rng((self.seed, 1)).standard_normal((self.order, self.vocab_size, _WIDTH))

    @cached_property
    def _heads(self) -> Floats:  # [vocab, width]
        return np.random.default_rng((self.seed, 2)).standard_normal((self.vocab_size, _WIDTH))


@dataclass(frozen=True, eq=False)
class TableLanguage:
    """A language read from a table of probabilities: the longest key that ends the text so far names the row.

    The empty key is every text's row of last resort. Rows may hold zeros, and NaN to play a broken model.
    """

    table: Mapping[tuple[int, ...], Sequence[float]]

    @cached_property
    def vocab_size(self) -> int:
        sizes = {len(row) for row in self.table.values()}
        assert len(sizes) == 1, f"rows of one length, not of {sorted(sizes)}"
        return sizes.pop()

    def __call__(self, tokens: Sequence[int]) -> Floats:  # [vocab]
        longest = min(len(tokens), max(map(len, self.table)))
        for length in range(longest, -1, -1):
            row = self.table.get(tuple(tokens[len(tokens) - length :]))
            if row is not None:
                with np.errstate(divide="ignore"):
                    logits: Floats = np.log(np.asarray(row, dtype=np.float64))
                return logits
        raise KeyError(f"no row for {list(tokens)}: give the table the empty key ()")


@dataclass(frozen=True, eq=False)
class BlurredLanguage:
    """Another language seen through noise: its first `vocab_size` logits plus `noise` times a hashed row."""

    language: Language
    vocab_size: int
    noise: float
    seed: int = 1

    def __call__(self, tokens: Sequence[int]) -> Floats:  # [vocab]
        clear = self.language(tokens)[: self.vocab_size]
        blurred = self._blur(tokens) * self.noise
        blurred[: len(clear)] += clear
        blurred[len(clear) :] = -np.inf
        return blurred

    @cached_property
    def _blur(self) -> HashedLanguage:
        return HashedLanguage(self.vocab_size, self.seed, sharpness=1.0)
