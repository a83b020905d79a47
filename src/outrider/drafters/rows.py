"""Rows of draft models and heads: over the target's ids, and what stands beside the token of a greedy law."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.largest import largest
from outrider.core.law import Ids


def fitted(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:  # [draft vocab] -> [vocab_size]
    """The row over the target's ids: padding beyond either vocabulary is never drafted."""
    missing = vocab_size - logits.shape[0]
    if missing <= 0:
        return logits[:vocab_size]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


def likeliest(logits: npt.NDArray[Any], count: int) -> Ids:  # [n]
    """Indices of up to `count` of the largest finite logits, largest first."""
    indices = largest(logits, count)
    kept: Ids = indices[logits[indices] > -np.inf]
    return kept


def around(best: int, row: npt.NDArray[Any], count: int) -> tuple[int, ...]:  # [vocab]
    """The token of a greedy law, then the best others of the raw row on the host, `count` in all where it has so many.

    A greedy law holds its winner alone. Siblings are guesses at where the draft model is wrong; which ones they are
    cannot change the text.
    """
    if count == 1:
        return (best,)
    others = [token for token in likeliest(row, count).tolist() if token != best]
    return (best, *others[: count - 1])
