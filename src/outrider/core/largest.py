"""The largest values of a row without sorting it; on ties the lowest index counts as larger."""

from __future__ import annotations

import numpy as np

from outrider.core.law import Floats, Ids

_FEW, _CHEAP_TO_PASS = 8, 1024  # values wanted, of so many: passing over them for each is the quickest


def kth_largest(values: Floats, k: int) -> float:
    """The k-th largest value, ties counted, for k <= n.

    The k-th largest of the column maxima of a [rows, 8 k] view bounds it from below; few values pass it.
    """
    columns = 8 * k
    rows = values.size // columns
    if rows >= 2:
        peaks = values[: rows * columns].reshape(rows, columns).max(axis=0)
        values = values[values >= np.partition(peaks, columns - k)[columns - k]]
    return float(np.partition(values, values.size - k)[values.size - k])


def largest(values: Floats, count: int) -> Ids:  # [n] -> [min(count, n)]
    """Indices of the `count` largest values, best first, lowest index first on ties."""
    if count == 1:
        return np.array([values.argmax()])
    count = min(count, values.size)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    if (
        count <= _FEW
        and values.size <= _CHEAP_TO_PASS
        and (one_by_one := _one_by_one(values, count)) is not None
    ):
        return one_by_one
    candidates = np.flatnonzero(values >= kth_largest(values, count))
    best: Ids = candidates[np.argsort(-values[candidates], kind="stable")[:count]]
    return best


def _one_by_one(values: Floats, count: int) -> Ids | None:  # [n] -> [count]
    """The same, the best of what is left each time; None where so few are above -inf."""
    left, best = values.copy(), np.empty(count, dtype=np.int64)
    for rank in range(count):
        best[rank] = place = left.argmax()
        if left[place] == -np.inf:
            return None
        left[place] = -np.inf
    return best
