"""The noise: a pure function of its keys, uniform and independent; decisions with the laws they promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from outrider.core.law import NodeLaw
from outrider.core.noise import Place, Purpose, RoundNoise, choice_seed, fresh_seed, gumbel, uniform

GOLDEN = 0x9E3779B97F4A7C15
ROOT = Place(0, 0)
LEAST_P = 1e-4  # of a correct noise at the fixed seeds below; a wrong one falls under it by many orders

Array = npt.NDArray[np.float64]


def ids(count: int, start: int = 0) -> npt.NDArray[np.int64]:
    return np.arange(start, start + count, dtype=np.int64)


def goodness(counts: npt.ArrayLike, probs: npt.ArrayLike) -> float:
    """The p-value of the chi-square test of counts against probabilities."""
    counts = np.asarray(counts)
    return float(stats.chisquare(counts, np.asarray(probs) * counts.sum()).pvalue)


def independence(left: Array, right: Array) -> float:
    """The p-value of the chi-square test that pairs of uniforms fill a 10 x 10 grid evenly."""
    cells = np.bincount((left * 10).astype(int) * 10 + (right * 10).astype(int), minlength=100)
    return goodness(cells, np.full(100, 0.01))


def test_a_token_has_the_same_bits_in_any_subset_and_order() -> None:
    tokens = ids(20_000)
    whole = uniform(7, 3, tokens, Purpose.TEXT)
    noise = gumbel(7, 3, tokens, Purpose.TEXT)
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 8, 9, 31, 500, 10_000):
        subset = rng.permutation(20_000)[:size]
        assert uniform(7, 3, subset, Purpose.TEXT).tobytes() == whole[subset].tobytes()
        assert gumbel(7, 3, subset, Purpose.TEXT).tobytes() == noise[subset].tobytes()
    assert gumbel(7, 3, tokens[5::7], Purpose.TEXT).tobytes() == noise[5::7].tobytes()
    assert gumbel(7, 3, tokens[::-1], Purpose.TEXT).tobytes() == noise[::-1].tobytes()


def test_every_key_matters() -> None:
    base = uniform(7, 3, ids(50), 0)
    for other in (uniform(8, 3, ids(50), 0), uniform(7, 4, ids(50), 0), uniform(7, 3, ids(50), 1),
                  uniform(7, 3, ids(50, 50), 0), uniform(3, 7, ids(50), 0)):  # fmt: skip
        assert not np.isin(other, base).any()


def unmix(value: int) -> int:
    """The state that the finaliser of splitmix64 turns into `value`."""
    value ^= (value >> 31) ^ (value >> 62)
    value = value * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    value ^= (value >> 27) ^ (value >> 54)
    value = value * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return value ^ (value >> 30) ^ (value >> 60)


def mix(value: int) -> int:
    """The finaliser of splitmix64, after one step of its generator."""
    value = (value + GOLDEN) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


@pytest.mark.parametrize(("hashed", "expected"), [(0, 2.0**-53), (2**64 - 1, 1 - 2.0**-53)])
def test_the_extreme_hashes_stay_inside_the_open_interval(hashed: int, expected: float) -> None:
    key = mix(mix(mix(1) + 2 * GOLDEN) + 3 * GOLDEN)
    token = ((unmix(hashed) - key) * pow(GOLDEN, -1, 2**64) - 1) % 2**64  # the one token with this hash
    tokens = np.array([token], dtype=np.uint64).view(np.int64)
    assert uniform(1, 2, tokens, 3)[0] == expected
    assert np.isfinite(gumbel(1, 2, tokens, 3)).all()


def test_uniforms_are_uniform() -> None:
    values = uniform(11, 0, ids(1_000_000), Purpose.TEXT)
    assert values.min() > 0.0
    assert values.max() < 1.0
    assert abs(values.mean() - 0.5) < 4 * (1 / 12 / 1e6) ** 0.5
    assert abs(values.var() - 1 / 12) < 4 * (1 / 180 / 1e6) ** 0.5
    assert goodness(np.bincount((values * 1000).astype(int), minlength=1000), np.full(1000, 1e-3)) > LEAST_P
    low_bits = (values * 2.0**53).astype(np.uint64) & np.uint64(255)
    assert goodness(np.bincount(low_bits.astype(int), minlength=256), np.full(256, 1 / 256)) > LEAST_P


def test_gumbel_noise_has_its_law() -> None:
    values = gumbel(12, 5, ids(200_000), Purpose.TEXT)
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > LEAST_P
    assert abs(values.mean() - np.euler_gamma) < 4 * (np.pi**2 / 6 / 2e5) ** 0.5


NEIGHBOURS: dict[str, Callable[[int], tuple[Array, Array]]] = {
    "seeds": lambda n: (uniform(5, 9, ids(n), 0), uniform(6, 9, ids(n), 0)),
    "positions": lambda n: (uniform(5, 9, ids(n), 0), uniform(5, 10, ids(n), 0)),
    "purposes": lambda n: (uniform(5, 9, ids(n), 0), uniform(5, 9, ids(n), 1)),
    "tokens": lambda n: (uniform(5, 9, ids(n), 0), uniform(5, 9, ids(n, 1), 0)),
    "seed for position": lambda n: (uniform(5, 6, ids(n), 0), uniform(6, 5, ids(n), 0)),
    "position for purpose": lambda n: (uniform(5, 1, ids(n), 2), uniform(5, 2, ids(n), 1)),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbouring_keys_are_independent(name: str) -> None:
    left, right = NEIGHBOURS[name](100_000)
    assert independence(left, right) > LEAST_P
    assert abs(np.corrcoef(left, right)[0, 1]) < 4 / 100_000**0.5


def test_neighbouring_keys_are_independent_at_one_token() -> None:
    by_position = np.array([uniform(5, position, ids(3), 0) for position in range(20_001)])
    by_seed = np.array([uniform(seed, 5, ids(3), 0) for seed in range(20_001)])
    for values in (by_position, by_seed):
        assert independence(values[:-1, 0], values[1:, 0]) > LEAST_P
        assert independence(values[:, 0], values[:, 1]) > LEAST_P
        assert independence(values[:-1, 2], values[1:, 1]) > LEAST_P


LAW = NodeLaw.of_probs(np.array([0.4, 0.0, 0.25, 0.2, 0.1, 0.05]))
SUPPORTED = np.array([0, 2, 3, 4, 5])


def test_the_largest_noisy_logit_follows_the_law() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.04, 0.01])
    noise = gumbel(3, 8, ids(5 * 200_000), Purpose.TEXT).reshape(200_000, 5)
    counts = np.bincount((logits + noise).argmax(axis=1), minlength=5)
    assert goodness(counts, np.exp(logits)) > LEAST_P


def test_decisions_follow_the_law_over_positions() -> None:
    rounds = [RoundNoise(21, start) for start in range(15_000)]
    text = np.bincount([noise.argmax(LAW, ROOT) for noise in rounds], minlength=6)
    chosen = np.bincount([noise.choose(3 * LAW.probs, ROOT) for noise in rounds], minlength=6)
    for counts in (text, chosen):
        assert counts[1] == 0
        assert goodness(counts[SUPPORTED], LAW.probs[SUPPORTED]) > LEAST_P
    accepted = sum(noise.accept(0.3, ROOT) for noise in rounds)
    assert goodness([accepted, 15_000 - accepted], [0.3, 0.7]) > LEAST_P


def test_acceptance_is_certain_at_the_ends() -> None:
    rounds = [RoundNoise(22, start) for start in range(1000)]
    assert all(noise.accept(1.0, ROOT) for noise in rounds)
    assert not any(noise.accept(0.0, ROOT) for noise in rounds)


def test_draws_without_replacement_have_the_plackett_luce_law() -> None:
    law = NodeLaw.of_probs(np.array([0.5, 0.0, 0.3, 0.15, 0.05]))
    counts = Counter(RoundNoise(23, start).draw(law, 2, ROOT) for start in range(20_000))
    outcomes = list(permutations([0, 2, 3, 4], 2))
    expected = [law.probs[first] * law.probs[second] / (1 - law.probs[first]) for first, second in outcomes]
    assert set(counts) <= set(outcomes)
    assert goodness([counts[outcome] for outcome in outcomes], expected) > LEAST_P


def test_draws_are_distinct_and_stop_at_the_support() -> None:
    for start in range(200):
        noise = RoundNoise(24, start)
        drawn = noise.draw(LAW, 99, ROOT)
        assert sorted(drawn) == SUPPORTED.tolist()
        assert noise.draw(LAW, 3, ROOT) == drawn[:3]


def test_the_best_ranked_token_is_the_text() -> None:
    rng = np.random.default_rng(1)
    for start in range(200):
        law = NodeLaw.of_probs(rng.dirichlet(np.ones(300)))
        noise, place = RoundNoise(25, start), Place(start % 3, start % 5)
        ranked = noise.ranked(law, 7, place)
        assert ranked[0] == noise.argmax(law, place)
        scores = law.logits + gumbel(25, start + start % 3, ids(300), Purpose.TEXT)
        assert list(ranked) == np.argsort(-scores)[:7].tolist()


def test_greedy_laws_ignore_noise_and_ties_go_to_the_lowest_id() -> None:
    greedy = NodeLaw.of_support(9, np.array([4]), np.zeros(1), greedy=True)
    assert RoundNoise(1, 2).argmax(greedy, ROOT) == 4
    assert RoundNoise(1, 2).ranked(greedy, 3, ROOT) == (4,)
    twins = NodeLaw.of_support(5, None, np.zeros(5), greedy=True)
    assert RoundNoise(1, 2).ranked(twins, 3, ROOT) == (0, 1, 2)


def test_text_noise_depends_on_the_position_alone() -> None:
    for position in range(50):
        expected = RoundNoise(26, position).ranked(LAW, 5, ROOT)
        for depth in range(min(position, 4) + 1):
            assert RoundNoise(26, position - depth).ranked(LAW, 5, Place(depth, depth * 3)) == expected
    by_row = {RoundNoise(26, 7).ranked(LAW, 5, Place(1, row)) for row in range(30)}
    assert len(by_row) == 1


def coin(noise: RoundNoise, place: Place) -> int:
    return int(noise.accept(0.5, place))


def side(law: NodeLaw, token: int) -> int:
    return int(law.probs[:token].sum() >= 0.4)  # tokens 2 to 5 of LAW against token 0


PAIRS: dict[str, Callable[[int], tuple[int, int]]] = {
    "rows": lambda t: (coin(RoundNoise(27, t), Place(1, 2)), coin(RoundNoise(27, t), Place(1, 3))),
    "depths": lambda t: (coin(RoundNoise(27, t), Place(1, 2)), coin(RoundNoise(27, t), Place(2, 2))),
    "rounds at one position": lambda t: (
        coin(RoundNoise(27, t), Place(1, 2)), coin(RoundNoise(27, t + 1), Place(0, 2))),
    "draft and text": lambda t: (
        side(LAW, RoundNoise(27, t).draw(LAW, 1, ROOT)[0]), side(LAW, RoundNoise(27, t).argmax(LAW, ROOT))),
    "draft and residual": lambda t: (
        side(LAW, RoundNoise(27, t).draw(LAW, 1, ROOT)[0]),
        side(LAW, RoundNoise(27, t).choose(LAW.probs, ROOT))),
    "draws of two rows": lambda t: (
        side(LAW, RoundNoise(27, t).draw(LAW, 1, Place(1, 1))[0]),
        side(LAW, RoundNoise(27, t).draw(LAW, 1, Place(1, 2))[0])),
    "acceptance and residual": lambda t: (
        coin(RoundNoise(27, t), ROOT), side(LAW, RoundNoise(27, t).choose(LAW.probs, ROOT))),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_decisions_at_different_places_are_independent(name: str) -> None:
    pairs = Counter(PAIRS[name](time) for time in range(3000))
    table = np.array([[pairs[left, right] for right in (0, 1)] for left in (0, 1)])
    assert table.min() > 100
    assert stats.chi2_contingency(table).pvalue > LEAST_P


def test_asking_twice_gives_the_same_answer() -> None:
    noise = RoundNoise(28, 4)
    assert noise == RoundNoise(28, 4)
    assert noise.draw(LAW, 4, ROOT) == noise.draw(LAW, 4, ROOT)
    assert noise.choose(LAW.probs, ROOT) == noise.choose(LAW.probs, ROOT)
    assert [coin(noise, Place(0, row)) for row in range(64)] == [
        coin(noise, Place(0, row)) for row in range(64)
    ]


def test_choices_of_a_request_have_seeds_of_their_own() -> None:
    assert choice_seed(5, 0) == 5
    seeds = {choice_seed(seed, choice) for seed in range(50) for choice in range(1, 50)}
    assert len(seeds) == 50 * 49
    assert not seeds & set(range(50))
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert (
        independence(uniform(5, 0, ids(100_000), 0), uniform(choice_seed(5, 1), 0, ids(100_000), 0)) > LEAST_P
    )
    largest = 2**64 - 1
    assert 0 <= choice_seed(largest, 3) < 2**64
    assert len({fresh_seed() for _ in range(100)}) == 100
