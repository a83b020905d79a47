"""`best_tokens`: the largest logits of every row of a score, found in one pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from outrider.core.law import Ids

_COLUMNS = 1024  # peaks per row; each stands for vocab / 1024 logits, looked at only where the peak is high


def best_tokens(logits: torch.Tensor, count: int) -> tuple[Ids, npt.NDArray[Any]]:  # [n, vocab]
    """The `count` best tokens of each row with their logits, both [n, min(count, vocab)], best first.

    A function of each row alone. Both are copies: they outlive the logits. NaN counts as the largest number.
    """
    logits, count = logits.detach(), min(count, logits.shape[1])
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if logits.device.type != "cpu" or logits.shape[1] < 4 * _COLUMNS or count > _COLUMNS:
        best = logits.topk(count, dim=1)
        return best.indices.cpu().numpy(), best.values.cpu().numpy()
    ids = _candidates(logits, count)
    best = logits.gather(1, ids).topk(count, dim=1)
    return ids.gather(1, best.indices).numpy(), best.values.numpy()


def _candidates(logits: torch.Tensor, count: int) -> torch.Tensor:  # [n, vocab] -> [n, c]
    """Ids that hold the `count` largest values of each row: whole columns of a [height, 1024] view of it.

    A value among the largest lies in one of the `count` columns with the largest peaks. A fraction of the time that
    topk of the rows takes on a CPU; NumPy's maximum is the faster one.
    """
    n, vocab = logits.shape
    whole = vocab - vocab % _COLUMNS
    peaks = torch.from_numpy(logits.numpy()[:, :whole].reshape(n, -1, _COLUMNS).max(axis=1))
    columns = peaks.topk(count, dim=1).indices
    ids = (torch.arange(0, whole, _COLUMNS)[:, None] + columns[:, None, :]).view(n, -1)
    return torch.cat((ids, torch.arange(whole, vocab).expand(n, -1)), dim=1) if whole < vocab else ids
