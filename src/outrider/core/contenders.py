"""Columns of a row that may be best under noise: found by the compiled library or, column for column, by NumPy."""

from __future__ import annotations

import numpy as np

from outrider.compiled.contenders import Contenders, Wanted, compiled_search
from outrider.core.hashing import hashed_at_least, uniforms
from outrider.core.scaled_row import ScaledRow


def contenders(row: ScaledRow, key: np.uint64, wanted: Wanted) -> Contenders:
    """The columns that `wanted` describes, under the noise of `key`."""
    raw, tokens = row.raw, row.tokens
    whole = raw.flags.c_contiguous and (tokens is None or tokens.flags.c_contiguous)
    compiled = compiled_search() if raw.dtype == np.float32 and whole else None
    if compiled is None:
        return contenders_by_numpy(row, key, wanted)
    return compiled.find(raw, tokens, int(key), wanted)


def contenders_by_numpy(row: ScaledRow, key: np.uint64, wanted: Wanted) -> Contenders:
    """The same columns, for a row of any dtype."""
    raw, groups = row.raw, wanted.groups
    whole = raw.size - raw.size % groups
    peaks = raw[:whole].reshape(-1, groups).max(axis=0)
    rest = raw[whole:]
    np.maximum(peaks[: rest.size], rest, out=peaks[: rest.size])
    floor = max(np.partition(peaks, groups - wanted.near)[groups - wanted.near], np.finfo(raw.dtype).min)
    chosen = raw > floor
    chosen[hashed_at_least(key, row.tokens, raw.size, wanted.top)] = True
    columns = chosen.nonzero()[0]
    return Contenders(columns, raw[columns].astype(np.float64), uniforms(key, row.ids(columns)), float(floor))
