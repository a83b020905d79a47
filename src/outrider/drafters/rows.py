"""Rows of draft models and heads: which tokens they speak of, and what stands beside the token of a greedy law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.largest import largest
from outrider.core.law import Ids
from outrider.core.target_law import on_host
from outrider.core.token_map import AllTokens, Columns, TokenMap
from outrider.drafters.best_tokens import best_tokens


@dataclass(frozen=True, eq=False)
class DraftRows:
    """Rows over a draft vocabulary: column i speaks of the target's token `columns.tokens[i]`."""

    logits: torch.Tensor  # [rows, columns]
    columns: TokenMap


class DraftVocabulary:
    """The target's tokens that a head or a draft model speaks of. Made once for each of them."""

    def __init__(self, token_map: torch.Tensor, vocab_size: int) -> None:  # [draft vocab]
        """`token_map`: the target's id of each draft id, distinct, in any order; `vocab_size`: the target's."""
        ids = token_map.cpu().numpy().astype(np.int64)
        order = np.argsort(ids, kind="stable")
        self._order = None if (np.diff(ids) > 0).all() else torch.from_numpy(order).to(token_map.device)
        self._columns = TokenMap(ids[order], vocab_size)

    def rows(self, logits: torch.Tensor) -> DraftRows:  # [rows, draft vocab]
        """Rows as the head or draft model makes them."""
        return DraftRows(logits if self._order is None else logits[:, self._order], self._columns)


@dataclass(frozen=True, eq=False)
class HostRows:
    """Rows on the host, and the tokens of their columns."""

    logits: npt.NDArray[Any]  # [rows, columns]
    columns: Columns

    @staticmethod
    def of(rows: torch.Tensor | DraftRows, vocab_size: int) -> HostRows:
        """Plain rows speak of the first tokens: padding beyond either vocabulary is never drafted."""
        if isinstance(rows, DraftRows):
            return HostRows(on_host(rows.logits), rows.columns)
        logits = on_host(rows)
        width = logits.shape[1]
        if width >= vocab_size:
            return HostRows(logits[:, :vocab_size], AllTokens(vocab_size))
        return HostRows(logits, TokenMap(np.arange(width), vocab_size))

    def token(self, column: int) -> int:
        """The target's id of a column."""
        tokens = self.columns.tokens
        return column if tokens is None else int(tokens[column])


def likeliest(logits: npt.NDArray[Any], count: int) -> Ids:  # [n]
    """Indices of up to `count` of the largest finite logits, largest first."""
    indices = largest(logits, count)
    kept: Ids = indices[logits[indices] > -np.inf]
    return kept


def siblings(rows: HostRows, row: int, best: int, count: int) -> Ids:
    """Columns of the best tokens of a raw row besides that of a greedy law, `count` where it has so many.

    A greedy law holds its winner alone. Siblings are guesses at where the draft model is wrong; which ones they are
    cannot change the text.
    """
    if not count:
        return np.empty(0, dtype=np.int64)
    columns, values = best_tokens(torch.from_numpy(rows.logits[row : row + 1]), count + 1)
    finite: list[int] = columns[0, values[0] > -np.inf].tolist()
    return np.array([column for column in finite if rows.token(column) != best][:count], dtype=np.int64)


def log_probs(logits: npt.NDArray[Any], indices: Sequence[int], peak: float) -> tuple[float, ...]:  # [n] -> k
    """Log-probabilities of some indices of a row with this maximum, as exact as the row is."""
    total = peak + math.log(float(np.exp(logits - logits.dtype.type(peak)).sum()))  # numpy adds in pairs
    return tuple(float(logits[index]) - total for index in indices)
