"""The counter-based hash under all noise: a pure function of a key and a token id, the finaliser of splitmix64.

A key stands for (seed, position, purpose); the hash of key + (id + 1) * golden ratio, cut to 53 bits, is the uniform
of that token. `hashed_at_least` finds the large ones of a row without making any of them a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from outrider.core.law import Floats, Ids

Words = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64
TOP_BITS = 31
"""Bits of a hash that its last step, an xor with itself shifted right by 31, leaves as they are: the highest."""

_MASK = (1 << 64) - 1
_BLOCK = 16384  # tokens hashed at a time: their numbers stay in the caches
_STEPS = tuple(
    (np.uint64(shift), np.uint64(factor))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
)
_LAST_SHIFT = np.uint64(31)


def mix(value: int) -> int:
    """One step of splitmix64 from `value`: its increment, then its finaliser."""
    value = (value + GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def hash_key(seed: int, position: int, purpose: int) -> np.uint64:
    """What a seed, a position and a purpose add to every token of a row."""
    key: np.uint64 = np.uint64(mix(mix(mix(seed) + position * GOLDEN) + purpose * GOLDEN))
    return key


def uniforms(key: np.uint64, token_ids: Ids) -> Floats:  # [n] -> [n]
    """Uniforms in (0, 1) with 53 bits, one per token id; the same for an id in whatever subset or order."""
    numbers = np.empty(token_ids.size)
    for start in range(0, token_ids.size, _BLOCK):
        state = _multiples(token_ids[start : start + _BLOCK])
        shifted = np.empty_like(state)
        _hash_into(state, state, shifted, key)
        state ^= np.right_shift(state, _LAST_SHIFT, shifted)
        state >>= np.uint64(11)
        np.maximum(state, np.uint64(1), out=state)
        np.multiply(state, 2.0**-53, out=numbers[start : start + _BLOCK])
    return numbers


def gumbels(key: np.uint64, token_ids: Ids) -> Floats:  # [n] -> [n]
    """Standard Gumbel noise, float64, from `uniforms`; finite by construction."""
    return gumbels_of(uniforms(key, token_ids))


def gumbels_of(uniforms: Floats) -> Floats:  # [n] -> [n]
    """The Gumbel noise that uniforms in (0, 1) stand for, in their place."""
    for _ in range(2):
        np.log(uniforms, uniforms)
        np.negative(uniforms, uniforms)
    return uniforms


def hashed_at_least(key: np.uint64, tokens: Ids | None, count: int, top: int) -> Ids:  # [n]
    """Columns whose hash starts with `top` or more in its first 31 bits, ascending.

    `tokens`: the ids of the `count` columns, None where column i is token i.
    """
    least = np.uint64(top << (64 - TOP_BITS))
    state, shifted = np.empty(_BLOCK, dtype=np.uint64), np.empty(_BLOCK, dtype=np.uint64)
    found = [np.empty(0, dtype=np.int64)]
    for start, multiples in _blocks(tokens, count):
        size = multiples.size
        _hash_into(multiples, state[:size], shifted[:size], key)
        hits = (state[:size] >= least).nonzero()[0]
        if hits.size:
            found.append(hits + start)
    return np.concatenate(found)


def _blocks(tokens: Ids | None, count: int) -> Iterator[tuple[int, Words]]:
    """The multiples of the golden ratio of some columns, block by block, with the first column of each."""
    known = _first_multiples(count) if tokens is None else None
    for start in range(0, count, _BLOCK):
        if known is not None:
            yield start, known[start : start + _BLOCK]
        else:
            assert tokens is not None
            yield start, _multiples(tokens[start : start + _BLOCK])


@lru_cache(maxsize=4)
def _first_multiples(count: int) -> Words:  # [n]
    multiples = _multiples(np.arange(count, dtype=np.int64))
    multiples.flags.writeable = False
    return multiples


def _multiples(token_ids: Ids) -> Words:  # [n] -> [n]
    """(id + 1) * golden ratio: what the key is added to."""
    multiples = token_ids.astype(np.uint64)
    multiples += np.uint64(1)
    multiples *= np.uint64(GOLDEN)
    return multiples


def _hash_into(multiples: Words, state: Words, shifted: Words, key: np.uint64) -> None:  # [n] each
    """All but the last step of the finaliser, in place of `state`; `shifted` is scratch."""
    np.add(multiples, key, state)
    for shift, factor in _STEPS:
        np.right_shift(state, shift, shifted)
        np.bitwise_xor(state, shifted, state)
        np.multiply(state, factor, state)
