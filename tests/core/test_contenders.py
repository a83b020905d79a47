"""The search for tokens that may be best: NumPy and every instruction set find the same, and miss nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.compiled.contenders import CompiledSearch, Contenders, Wanted
from outrider.compiled.library import NativeError, NativeUnavailable, shared_library
from outrider.core.contenders import contenders, contenders_by_numpy
from outrider.core.hashing import TOP_BITS, hash_key, uniforms
from outrider.core.scaled_row import ScaledRow

Array = npt.NDArray[Any]
Rng = np.random.Generator

SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 500, 512, 513, 1000, 3000, 9001)
FLOAT32 = np.finfo(np.float32)


def compiled() -> list[CompiledSearch]:
    """The search on each instruction set of this machine."""
    try:
        shared = shared_library()
    except NativeUnavailable as reason:
        pytest.skip(str(reason))
    return [CompiledSearch(shared, isa) for isa in shared.instruction_sets()]


def row_of(rng: Rng, size: int) -> Array:
    """Bells, ties, masks, zeros of both signs, and numbers at the ends of float32."""
    kind = rng.integers(6)
    if kind == 0:
        return rng.normal(rng.normal(0, 20), 3, size)
    if kind == 1:
        return rng.integers(-3, 3, size) / 2
    if kind == 2:
        return np.where(rng.random(size) < rng.random(), -np.inf, rng.normal(0, 3, size))
    if kind == 3:
        return np.where(rng.random(size) < 0.5, -0.0, 0.0)
    if kind == 4:
        return rng.choice([FLOAT32.min, FLOAT32.max, FLOAT32.tiny, -FLOAT32.tiny, 1e-45, -np.inf], size)
    return np.sort(rng.normal(0, 3, size))


def case(rng: Rng, size: int) -> tuple[ScaledRow, np.uint64, Wanted]:
    raw = row_of(rng, size).astype(np.float32)
    tokens = np.sort(rng.choice(4 * size, size, replace=False)) if rng.integers(2) else None
    groups = int(rng.choice([1, size, min(size, 512), 1 + rng.integers(size)]))
    top = int(rng.choice([0, 1, 1 << 30, (1 << TOP_BITS) - 1, rng.integers(1 << TOP_BITS)]))
    wanted = Wanted(groups, int(1 + rng.integers(groups)), top)
    return ScaledRow(raw, float(raw.max()), 0.7, tokens), hash_key(3, int(rng.integers(1 << 40)), 0), wanted


def parts(found: Contenders) -> tuple[list[int], bytes, bytes, float]:
    return found.columns.tolist(), found.values.tobytes(), found.uniforms.tobytes(), found.floor


def test_every_instruction_set_finds_what_numpy_finds() -> None:
    rng = np.random.default_rng(1)
    searches = compiled()
    for number in range(600):
        row, key, wanted = case(rng, SIZES[number % len(SIZES)])
        expected = parts(contenders_by_numpy(row, key, wanted))
        for search in searches:
            assert parts(search.find(row.raw, row.tokens, int(key), wanted)) == expected


def test_they_are_the_tokens_above_the_floor_and_those_with_a_large_hash_and_no_others() -> None:
    rng = np.random.default_rng(2)
    for number in range(300):
        row, key, wanted = case(rng, SIZES[number % len(SIZES)])
        size = row.raw.size
        ids = np.arange(size) if row.tokens is None else row.tokens
        noise = uniforms(key, ids)
        highest = [row.raw[group :: wanted.groups].max() for group in range(wanted.groups)]
        floor = max(np.sort(highest)[-wanted.near], FLOAT32.min)
        columns = np.flatnonzero((row.raw > floor) | ((noise * 2.0**TOP_BITS).astype(np.int64) >= wanted.top))
        found = contenders(row, key, wanted)
        assert found.floor == floor
        assert found.columns.tolist() == columns.tolist()
        assert found.values.tobytes() == row.raw[columns].astype(np.float64).tobytes()
        assert found.uniforms.tobytes() == noise[columns].tobytes()


def test_numbers_one_unit_around_the_floor_are_told_apart() -> None:
    floor = np.float32(3.7)
    raw = np.full(2000, np.nextafter(floor, np.float32(0)), dtype=np.float32)
    raw[100:600], raw[[5, 777, 1999]] = floor, np.nextafter(floor, np.float32(9))
    row = ScaledRow(raw, float(raw.max()), 1.0)
    wanted = Wanted(512, 300, (1 << TOP_BITS) - 1)
    for found in (contenders_by_numpy(row, hash_key(1, 1, 1), wanted),
                  *(search.find(raw, None, int(hash_key(1, 1, 1)), wanted) for search in compiled())):  # fmt: skip
        assert found.floor == floor
        assert found.columns.tolist() == [5, 777, 1999]


def test_rows_that_the_library_does_not_take_are_searched_all_the_same() -> None:
    rng = np.random.default_rng(4)
    wide = rng.normal(0, 3, (3000, 2)).astype(np.float32)
    wanted, key = Wanted(512, 100, 2_100_000_000), hash_key(1, 2, 0)
    row = ScaledRow(np.ascontiguousarray(wide[:, 0]), 20.0, 1.0)
    expected = parts(contenders(row, key, wanted))
    assert parts(contenders(ScaledRow(wide[:, 0], 20.0, 1.0), key, wanted)) == expected
    assert parts(contenders(ScaledRow(row.raw.astype(np.float64), 20.0, 1.0), key, wanted)) == expected


def test_more_than_there_is_room_for_at_first_are_all_found() -> None:
    row = ScaledRow(np.zeros(5000, dtype=np.float32), 0.0, 1.0)
    for search in compiled():
        found = search.find(row.raw, None, int(hash_key(1, 2, 0)), Wanted(512, 64, 0))
        assert found.columns.tolist() == list(range(5000))
        assert found.uniforms.tobytes() == uniforms(hash_key(1, 2, 0), np.arange(5000)).tobytes()


def test_a_search_that_makes_no_sense_is_refused() -> None:
    row = np.zeros(10, dtype=np.float32)
    for wanted in (Wanted(11, 1, 0), Wanted(4, 5, 0), Wanted(4, 0, 0)):
        with pytest.raises(NativeError, match="as many numbers as groups"):
            compiled()[0].find(row, None, 1, wanted)
    with pytest.raises(NativeError, match="no such instruction set"):
        CompiledSearch(shared_library(), "sse2").find(row, None, 1, Wanted(4, 1, 0))
