"""The pruned search for the best tokens: bit for bit what scoring every token finds, whatever the row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.compiled.contenders import CompiledSearch, Contenders
from outrider.compiled.library import NativeUnavailable, shared_library
from outrider.core.champion import _least_hash, champions
from outrider.core.hashing import GOLDEN, gumbels, hash_key, hashed_at_least, uniforms
from outrider.core.largest import largest
from outrider.core.law import Floats, Ids, NodeLaw
from outrider.core.noise import Place, RoundNoise, gumbel
from outrider.core.scaled_row import ScaledRow

Array = npt.NDArray[Any]
Rng = np.random.Generator


def searches() -> list[Any]:
    """NumPy, and each instruction set of this machine."""
    try:
        shared = shared_library()
    except NativeUnavailable:
        return [pytest.param(None, id="numpy")]
    sets = shared.instruction_sets()
    return [
        pytest.param(None, id="numpy"),
        *(pytest.param(CompiledSearch(shared, isa), id=isa) for isa in sets),
    ]


@pytest.fixture(params=searches(), autouse=True)
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CompiledSearch | None:
    """What finds the tokens that may be best in rows of float32; every test is of each."""
    monkeypatch.setattr("outrider.core.contenders.compiled_search", lambda: request.param)
    return request.param


TEMPERATURES = (5e-324, 1e-300, 1e-30, 1e-6, 0.01, 0.2, 0.8, 1.0, 1.7, 40.0, 1e6, 1e30, 1e38, 1e300, 1.7e308)


def masked(row: Array, rng: Rng) -> Array:
    """Some tokens at -inf, never the best."""
    hidden = rng.random(row.size) < rng.choice([0.1, 0.9, 0.999])
    hidden[row.argmax()] = False
    return np.where(hidden, -np.inf, row)


ROWS: dict[str, Callable[[Rng, int], Array]] = {
    "bell": lambda rng, n: rng.normal(rng.normal(0, 20), 3, n),
    "peaked": lambda rng, n: rng.normal(0, 3, n) + 15 * (rng.random(n) < 3 / n),
    "all equal": lambda rng, n: np.full(n, rng.normal(0, 5)),
    "all zero": lambda rng, n: np.zeros(n),
    "nearly equal": lambda rng, n: np.float32(7) + np.spacing(np.float32(7)) * rng.integers(-2, 2, n),
    "ties": lambda rng, n: rng.integers(-4, 4, n) / 2,
    "one above equals": lambda rng, n: np.where(np.arange(n) == rng.integers(n), rng.choice([0.1, 3, 12, 60]), 0),
    "steps": lambda rng, n: -np.sort(rng.exponential(6, n)),
    "vast": lambda rng, n: rng.normal(0, 1e30, n),
    "minute": lambda rng, n: rng.normal(0, 1e-40, n),
    "masked": lambda rng, n: masked(rng.normal(0, 3, n), rng),
    "masked equals": lambda rng, n: masked(np.zeros(n), rng),
}  # fmt: skip


def scored_in_full(row: ScaledRow, key: np.uint64, count: int) -> tuple[list[int], bytes]:
    """Columns and scores of the best, every token scored."""
    with np.errstate(over="ignore"):
        logits = (row.raw.astype(np.float64) - row.peak) / row.temperature
    ids = np.arange(logits.size) if row.tokens is None else row.tokens
    scores = logits + gumbels(key, ids)
    best = largest(scores, count)
    return best.tolist(), scores[best].tobytes()


def scaled(row: Array, temperature: float, tokens: Ids | None = None) -> ScaledRow:
    return ScaledRow(row, float(row.max()), temperature, tokens)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ROWS)
def test_it_is_the_full_computation_bit_for_bit(kind: str, dtype: type) -> None:
    rng = np.random.default_rng([len(kind), np.dtype(dtype).itemsize])
    pruned = 0
    for case in range(100):
        size = int(rng.choice([2, 3, 9, 40, 300, 1500, 9000], p=[0.1, 0.1, 0.1, 0.2, 0.3, 0.1, 0.1]))
        tokens = None if case % 3 else np.sort(rng.choice(3 * size, size, replace=False))
        row = scaled(ROWS[kind](rng, size).astype(dtype), float(rng.choice(TEMPERATURES)), tokens)
        key = hash_key(case, int(rng.integers(1000)), 0)
        for count in (1, 2, 5):
            found = champions(row, key, count)
            if found is not None:
                pruned += 1
                assert (found[0].tolist(), found[1].tobytes()) == scored_in_full(row, key, count)
    assert pruned > 100, "this says nothing unless rows are pruned"


def test_every_row_of_a_vocabulary_is_pruned_for_one_token() -> None:
    rng = np.random.default_rng(1)
    for case in range(30):
        kind = list(ROWS)[case % len(ROWS)]
        row = scaled(ROWS[kind](rng, 30_000).astype(np.float32), (0.2, 0.8, 1.5)[case % 3])
        key = hash_key(case, 7, 0)
        found = champions(row, key, 1)
        assert found is not None
        assert (found[0].tolist(), found[1].tobytes()) == scored_in_full(row, key, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_lowest_number_there_is_may_be_near_the_peak(dtype: type) -> None:
    """As where a mask is made of it: no number of the row is below."""
    values = np.full(50_000, -np.inf, dtype=dtype)
    values[::25], values[7] = np.finfo(dtype).min, 0.0
    row = scaled(values, 1e308)
    found = champions(row, hash_key(3, 1, 0), 2)
    assert found is not None
    assert (found[0].tolist(), found[1].tobytes()) == scored_in_full(row, hash_key(3, 1, 0), 2)


def test_equal_scores_go_to_the_lowest_column(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = np.full(900, 0.5)
    equal[0] = 0.1
    found = Contenders(np.arange(900), np.zeros(900), equal, -50.0)
    monkeypatch.setattr(
        "outrider.core.champion.contenders", lambda *search: found._replace(uniforms=equal.copy())
    )
    for count in (1, 3, 20):
        best = champions(scaled(np.zeros(5000, dtype=np.float32), 1.0), hash_key(1, 2, 3), count)
        assert best is not None
        assert best[0].tolist() == list(range(1, count + 1))


def test_one_best_token_far_below_many_that_tie_at_the_peak() -> None:
    """None of those that tie is near the peak or has much noise: only the second search finds the best."""
    values = np.full(20_000, -300.0, dtype=np.float32)
    values[:200] = 0.0
    missed = 0
    for position in range(30):
        key = hash_key(5, position, 0)
        row = scaled(values, 1.0)
        found = champions(row, key, 3)
        assert found is not None
        assert (found[0].tolist(), found[1].tobytes()) == scored_in_full(row, key, 3)
        missed += not (uniforms(key, np.arange(200)) > 1 - 256 / 20_000).any()
    assert missed


def test_no_token_is_below_the_hash_that_its_own_noise_asks_for() -> None:
    ids = np.arange(30_000)
    for seed in range(3):
        key = hash_key(seed, 1, 0)
        first_bits = (uniforms(key, ids) * 2.0**31).astype(np.int64)
        least = np.array([_least_hash(noise) for noise in gumbels(key, ids).tolist()])
        assert (first_bits >= least).all()
        assert (first_bits - least).max() <= 3, "and not far above it"


def test_few_hashes_pass_where_much_noise_is_needed() -> None:
    key = hash_key(4, 2, 0)
    for noise in (-20.0, 0.0, 2.0, 6.0, 9.0):
        passed = hashed_at_least(key, None, 200_000, _least_hash(noise))
        with_more = np.flatnonzero(gumbels(key, np.arange(200_000)) >= noise)
        assert np.isin(with_more, passed).all()
        assert passed.size <= with_more.size + 1
        assert (passed == hashed_at_least(key, np.arange(200_000), 200_000, _least_hash(noise))).all()


def hashing_to(value: int, key: int) -> int:
    """The id whose hash, the last step of the finaliser included, is `value`."""
    value ^= (value >> 31) ^ (value >> 62)
    value = value * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    value ^= (value >> 27) ^ (value >> 54)
    value = value * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    value ^= (value >> 30) ^ (value >> 60)
    return ((value - key) * pow(GOLDEN, -1, 2**64) - 1) % 2**64


@pytest.mark.parametrize("depth", [5.0, 20.0, 30.0, 33.0])
def test_the_most_noise_there_is_lifts_a_token_from_far_below(depth: float) -> None:
    seed = next(s for s in range(99) if 2**40 < hashing_to(2**64 - 1, int(hash_key(s, 0, 0))) < 2**63)
    key = hash_key(seed, 0, 0)
    lucky = hashing_to(2**64 - 1, int(key))
    tokens = np.array([*range(9999), lucky])
    assert gumbels(key, tokens)[-1] > 36.7
    row = scaled(np.where(tokens == lucky, -depth, np.where(tokens < 20, 0.0, -60.0)), 1.0, tokens)
    found = champions(row, key, 1)
    assert found is not None
    assert found[0].tolist() == scored_in_full(row, key, 1)[0] == [9999]


def test_decisions_over_a_vocabulary_are_those_of_scores() -> None:
    rng = np.random.default_rng(3)
    for start in range(20):
        raw = rng.normal(0, 3, 20_000).astype(np.float32)
        law = NodeLaw(20_000, scaled(raw, 0.7))
        noise, place = RoundNoise(9, start), Place(2, 5)
        scores = law.logits + gumbel(9, start + 2, np.arange(20_000), 0)
        best = np.argsort(-scores)[:6]
        assert noise.argmax(law, place) == best[0]
        assert noise.ranked(law, 6, place) == tuple(best)
        contest = noise.contest(law, 6, place)
        assert contest.tokens == tuple(best)
        gaps: Floats = scores[best[0]] - scores[best]
        assert contest.leads == (gaps[1], *gaps[1:])
        assert noise.contest(law, 1, place).leads == (gaps[1],)


def test_more_tokens_than_there_are_near_the_peak() -> None:
    row = np.full(20_000, -np.inf, dtype=np.float32)
    row[[5, 700]] = 1.0, 2.0
    law = NodeLaw(20_000, scaled(row, 1.0))
    assert sorted(RoundNoise(1, 2).ranked(law, 9, Place(0, 0))) == [5, 700]
    assert math.isfinite(RoundNoise(1, 2).contest(law, 2, Place(0, 0)).leads[0])
