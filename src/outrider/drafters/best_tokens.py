"""`best_tokens`: the largest logits of every row of a score, found in one pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.law import Ids

_COLUMNS = 1024  # peaks per row; each stands for vocab / 1024 logits, looked at only where the peak is high


def best_tokens(logits: torch.Tensor, count: int) -> tuple[Ids, npt.NDArray[Any]]:  # [n, vocab]
    """The `count` best tokens of each row with their logits, both [n, min(count, vocab)], best first.

    A function of each row alone. Both are copies: they outlive the logits. A row with a NaN shows one.
    """
    count = min(count, logits.shape[1])
    logits = logits.detach()
    if logits.device.type != "cpu":
        best = logits.float().topk(count, dim=1)
        return best.indices.cpu().numpy(), best.values.cpu().numpy()
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    rows = logits.numpy()
    ids = _candidates(rows, count)
    return _sorted(ids, np.take_along_axis(rows, ids, axis=1), count)


def _candidates(rows: npt.NDArray[Any], count: int) -> Ids:  # [n, vocab] -> [n, c]
    """Ids that hold the `count` largest values of each row: whole columns of a [height, 1024] view of it.

    A value among the largest lies in one of the `count` columns with the largest peaks. NaN passes for larger than
    every number, in a peak as well.
    """
    n, vocab = rows.shape
    height = vocab // _COLUMNS
    if height < 4 or count * 8 > _COLUMNS:
        return np.broadcast_to(np.arange(vocab), (n, vocab))
    whole = height * _COLUMNS
    peaks = rows[:, :whole].reshape(n, height, _COLUMNS).max(axis=1)
    columns = np.argpartition(peaks, _COLUMNS - count, axis=1)[:, -count:]
    ids = (np.arange(0, whole, _COLUMNS)[:, None] + columns[:, None, :]).reshape(n, height * count)
    rest = np.broadcast_to(np.arange(whole, vocab), (n, vocab - whole))
    return np.concatenate((ids, rest), axis=1)


def _sorted(ids: Ids, values: npt.NDArray[Any], count: int) -> tuple[Ids, npt.NDArray[Any]]:  # [n, c] each
    """The `count` largest values with their ids, largest first."""
    if count < values.shape[1]:
        kept = np.argpartition(values, values.shape[1] - count, axis=1)[:, -count:]
        ids, values = np.take_along_axis(ids, kept, axis=1), np.take_along_axis(values, kept, axis=1)
    order = np.lexsort((ids, -values), axis=1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
