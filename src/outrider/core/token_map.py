"""Which of the target's tokens the columns of a row stand for: all of them, or those of a draft vocabulary."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.core.law import Ids


class Columns(Protocol):
    """The columns of a row, in ascending order of the target's ids."""

    @property
    def vocab_size(self) -> int:
        """The target's: every id is below it."""

    @property
    def tokens(self) -> Ids | None:
        """The ids [columns], ascending; None where column i is token i, for all of the vocabulary."""

    def found(self, tokens: Ids) -> tuple[Ids, slice | npt.NDArray[np.bool_]]:  # [n]
        """The columns of those of some distinct ids that have one, and which of them these are."""


class AllTokens:
    """Column i is token i."""

    tokens: Ids | None = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def found(self, tokens: Ids) -> tuple[Ids, slice | npt.NDArray[np.bool_]]:
        inside = tokens < self.vocab_size
        return (tokens, slice(None)) if inside.all() else (tokens[inside], inside)


class TokenMap:
    """Column i is token `tokens[i]` of the target. Made once per head or draft model: it keeps a table of all ids."""

    def __init__(self, tokens: Ids, vocab_size: int) -> None:  # [columns]
        """`tokens`: distinct ids below `vocab_size`, ascending."""
        assert 0 <= tokens[0] <= tokens[-1] < vocab_size, "ids of the target"
        assert (np.diff(tokens) > 0).all(), "ids ascend"
        self.tokens: Ids = tokens
        self.vocab_size = vocab_size

    @cached_property
    def _columns(self) -> Ids:  # [vocab]; ids without a column have one past the last
        columns = np.full(self.vocab_size, self.tokens.size, dtype=np.int64)
        columns[self.tokens] = np.arange(self.tokens.size)
        return columns

    def found(self, tokens: Ids) -> tuple[Ids, slice | npt.NDArray[np.bool_]]:
        columns = self._columns[tokens.clip(max=self.vocab_size - 1)]
        has_one = (columns < self.tokens.size) & (tokens < self.vocab_size)
        return columns[has_one], has_one
