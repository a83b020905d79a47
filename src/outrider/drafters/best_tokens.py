"""`best_tokens`: the largest logits of every row of a score."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.compiled.library import NativeUnavailable
from outrider.models.native_library import NativeLibrary, library


def best_tokens(
    logits: torch.Tensor, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:  # [n, vocab]
    """The `count` best tokens of each row with their logits, both [n, min(count, vocab)], best first.

    A function of each row alone. Both are copies: they outlive the logits. A row that holds NaN has only such values.
    """
    logits, count = logits.detach(), min(count, logits.shape[1])
    compiled = _compiled() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
    if compiled is None or not logits.is_contiguous():
        wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        best = wide.topk(count, dim=1)
        values = best.values.masked_fill(logits.isnan().any(dim=1, keepdim=True), torch.nan)
        return best.indices.cpu().numpy(), values.cpu().numpy()
    rows, vocab = logits.shape
    ids, numbers = np.empty((rows, count), dtype=np.int32), np.empty((rows, count), dtype=np.float32)
    compiled.best(logits.data_ptr(), rows, vocab, count, ids.ctypes.data, numbers.ctypes.data)
    return ids.astype(np.int64), numbers


@functools.lru_cache(maxsize=1)
def _compiled() -> NativeLibrary | None:
    """The compiled library, which takes a fraction of torch's time; None where it is not there."""
    try:
        return library()
    except NativeUnavailable:
        return None
