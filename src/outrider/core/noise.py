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

from outrider.core.champion import champions
from outrider.core.hashing import GOLDEN, gumbels, hash_key, mix, uniforms
from outrider.core.largest import largest
from outrider.core.law import Floats, Ids, NodeLaw

_SMALL = 4096  # tokens, scored all at once


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
    return seed if choice == 0 else mix(mix(seed) + choice * GOLDEN)


def uniform(seed: int, position: int, token_ids: Ids, purpose: int) -> Floats:  # [n] -> [n]
    """Uniforms in (0, 1) with 53 bits, one per token id; the same for an id in whatever subset or order."""
    return uniforms(hash_key(seed, position, purpose), token_ids)


def gumbel(seed: int, position: int, token_ids: Ids, purpose: int) -> Floats:  # [n] -> [n]
    """Standard Gumbel noise, float64, from `uniform`; finite by construction."""
    return gumbels(hash_key(seed, position, purpose), token_ids)


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
        return self._text(law, count, place)[0]

    def contest(self, law: NodeLaw, count: int, place: Place) -> Contest:
        tokens, scores = self._text(law, max(count, 2), place)
        behind = scores[0] - scores
        leads = (float(behind[1]) if len(tokens) > 1 else math.inf, *behind[1:].tolist())
        return Contest(tokens[:count], leads[:count])

    def draw(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return self._best(law, count, self._purpose(Purpose.DRAFT, place), place)[0]

    def accept(self, probability: float, place: Place) -> bool:
        token = np.zeros(1, dtype=np.int64)
        u = uniform(self.seed, self.start + place.depth, token, self._purpose(Purpose.ACCEPT, place))
        return bool(u[0] < probability)

    def choose(self, probs: Floats, place: Place) -> int:
        return self._best(NodeLaw.of_probs(probs), 1, self._purpose(Purpose.RESIDUAL, place), place)[0][0]

    def _text(self, law: NodeLaw, count: int, place: Place) -> tuple[tuple[int, ...], Floats]:  # [k], [k]
        """The best tokens under the text's noise, which does not move a greedy law, with their scores."""
        if not law.greedy:
            return self._best(law, count, Purpose.TEXT, place)
        best = largest(law.logits, count)
        return tuple(map(law.token, best.tolist())), law.logits[best]

    def _best(self, law: NodeLaw, count: int, purpose: int,
              place: Place) -> tuple[tuple[int, ...], Floats]:  # [k], [k]  # fmt: skip
        """Tokens with the largest scores, logit and noise, and these: best first, lowest id first on ties."""
        key = hash_key(self.seed, self.start + place.depth, purpose)
        if law.row.raw.size > _SMALL and (found := champions(law.row, key, count)) is not None:
            columns, scores = found
            return tuple(law.row.ids(columns).tolist()), scores
        scores = law.logits + gumbels(key, _ids(law))
        best = largest(scores, count)
        return tuple(map(law.token, best.tolist())), scores[best]

    def _purpose(self, purpose: Purpose, place: Place) -> int:
        return mix(mix(int(purpose)) + self.start * GOLDEN) + place.row


def _ids(law: NodeLaw) -> Ids:
    return np.arange(law.vocab_size, dtype=np.int64) if law.tokens is None else law.tokens
