"""Counter-based noise: every random decision is a pure function of (seed, position, token, purpose).

Rules ask for decisions, never for numbers, so that `testing.branching` can walk every outcome of the same code.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from outrider.core.largest import largest
from outrider.core.law import Floats, Ids, NodeLaw

_MASK = (1 << 64) - 1
_BLOCK = 8192  # tokens hashed at a time: their numbers stay in the first-level caches
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64


class Purpose(IntEnum):
    """What a number decides. Only `TEXT` is shared between target and drafter; the others are independent."""

    TEXT = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True)
class Place:
    """Where in a round a decision falls: `depth` tokens after the context's end, at the row of its node.

    For a decision about node i the row is i + 1; for a token emitted or drafted *below* a node, the row is that
    node's, and `depth` the number of drafted tokens above it (0 at the pending token).
    """

    depth: int
    row: int


@dataclass(frozen=True)
class Contest:
    """The best tokens of a row under the text's noise, and how clearly each stands.

    `leads[0]` is how far the first is ahead of the second, `leads[r]` how far rank r is behind the first, in nats of
    perturbed logits; infinite where there is no other.
    """

    tokens: tuple[int, ...]
    leads: tuple[float, ...]


class Noise(Protocol):
    """The decisions of one round of one request. Pure: asking twice gives the same answer."""

    def argmax(self, law: NodeLaw, place: Place) -> int:
        """The token plain decoding emits here at this seed (docs/exactness.md)."""

    def ranked(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        """Up to `count` tokens, best first, ranked by `law` under the noise that `argmax` uses."""

    def contest(self, law: NodeLaw, count: int, place: Place) -> Contest:
        """What `ranked` answers, with leads: for drafters, which may guess by them; no rule asks."""

    def draw(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        """Up to `count` distinct tokens drawn from `law` without replacement, in drawing order."""

    def accept(self, probability: float, place: Place) -> bool:
        """True with this probability, independent of every draw."""

    def choose(self, probs: Floats, place: Place) -> int:
        """One token from `probs` (float64 [vocab], need not sum to one), independent of drafts and acceptance."""


def fresh_seed() -> int:
    """64 random bits for a request that names no seed."""
    return secrets.randbits(64)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice i of n; choice 0 keeps the seed itself."""
    return seed if choice == 0 else _mix(_mix(seed) + choice * _GOLDEN)


def uniform(seed: int, position: int, token_ids: Ids, purpose: int) -> Floats:  # [n] -> [n]
    """Uniforms in (0, 1) with 53 bits, one per token id; the same for an id in whatever subset or order."""
    key = np.uint64(_mix(_mix(_mix(seed) + position * _GOLDEN) + purpose * _GOLDEN))
    numbers = np.empty(token_ids.size)
    for start in range(0, token_ids.size, _BLOCK):
        _hash_into(numbers[start : start + _BLOCK], token_ids[start : start + _BLOCK], key)
    return numbers


def _hash_into(numbers: Floats, token_ids: Ids, key: np.uint64) -> None:  # [n], [n]
    """The finaliser of splitmix64 on key + (id + 1) * golden ratio, as numbers in (0, 1)."""
    state = token_ids.astype(np.uint64)
    shifted = np.empty_like(state)
    state += np.uint64(1)
    state *= np.uint64(_GOLDEN)
    state += key
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= np.right_shift(state, np.uint64(shift), out=shifted)
        state *= np.uint64(factor)
    state ^= np.right_shift(state, np.uint64(31), out=shifted)
    state >>= np.uint64(11)
    np.multiply(np.maximum(state, np.uint64(1), out=state), 2.0**-53, out=numbers)


def gumbel(seed: int, position: int, token_ids: Ids, purpose: int) -> Floats:  # [n] -> [n]
    """Standard Gumbel noise, float64, from `uniform`; finite by construction."""
    return -np.log(-np.log(uniform(seed, position, token_ids, purpose)))


@dataclass(frozen=True)
class RoundNoise:
    """The noise of the round that starts at absolute position `start` (the length of its context).

    Text noise depends on (seed, position, token) alone, so a text does not depend on how it was cut into rounds.
    Every other decision is keyed by its round and row besides: a number that an earlier round has
    looked at is never used again, nor shared by two nodes.
    """

    seed: int
    start: int

    def argmax(self, law: NodeLaw, place: Place) -> int:
        return self.ranked(law, 1, place)[0]

    def ranked(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return _best(law, self._perturbed(law, place), count)

    def contest(self, law: NodeLaw, count: int, place: Place) -> Contest:
        scores = self._perturbed(law, place)
        best = largest(scores, max(count, 2))
        behind = scores[best[0]] - scores[best]
        leads = (float(behind[1]) if len(best) > 1 else math.inf, *behind[1:].tolist())
        return Contest(tuple(law.token(int(index)) for index in best[:count]), leads[:count])

    def draw(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return _best(law, law.logits + self._gumbel(law, Purpose.DRAFT, place), count)

    def accept(self, probability: float, place: Place) -> bool:
        token = np.zeros(1, dtype=np.int64)
        u = uniform(self.seed, self.start + place.depth, token, self._purpose(Purpose.ACCEPT, place))
        return bool(u[0] < probability)

    def choose(self, probs: Floats, place: Place) -> int:
        law = NodeLaw.of_probs(probs)
        return _best(law, law.logits + self._gumbel(law, Purpose.RESIDUAL, place), 1)[0]

    def _perturbed(self, law: NodeLaw, place: Place) -> Floats:  # [s]
        if law.greedy:
            return law.logits
        return law.logits + gumbel(self.seed, self.start + place.depth, _ids(law), Purpose.TEXT)

    def _gumbel(self, law: NodeLaw, purpose: Purpose, place: Place) -> Floats:
        return gumbel(self.seed, self.start + place.depth, _ids(law), self._purpose(purpose, place))

    def _purpose(self, purpose: Purpose, place: Place) -> int:
        return _mix(_mix(int(purpose)) + self.start * _GOLDEN) + place.row


def _mix(value: int) -> int:
    """The finaliser of splitmix64 on one integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _ids(law: NodeLaw) -> Ids:
    return np.arange(law.vocab_size, dtype=np.int64) if law.tokens is None else law.tokens


def _best(law: NodeLaw, scores: Floats, count: int) -> tuple[int, ...]:
    """Tokens with the largest scores, best first, lowest id first on ties."""
    return tuple(law.token(int(index)) for index in largest(scores, count))
