"""Laws: distributions over tokens, both the target's at a node and the ones drafts were drawn by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from outrider.core.scaled_row import ScaledRow

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeLaw:
    """The law after every logits processor at one node: the tokens it supports, with their logits.

    Both are made when first asked for, from `row`; the law reads the row's memory until then and no more afterwards. A
    greedy law (temperature 0) supports its best token alone; noise does not move it. A function of its row alone, bit
    for bit: NumPy reduces one row in a fixed order.
    """

    vocab_size: int
    row: ScaledRow
    greedy: bool = False
    support: tuple[Ids | None, Floats] | None = None  # where tokens and logits are at hand

    @staticmethod
    def of_support(vocab_size: int, tokens: Ids | None, logits: Floats, *, greedy: bool = False) -> NodeLaw:
        """The law of these tokens (ascending ids, None: all) with these logits [s], whose maximum is 0."""
        return NodeLaw(vocab_size, ScaledRow(logits, 0.0, 1.0, tokens), greedy, (tokens, logits))

    @staticmethod
    def of_probs(probs: Floats) -> NodeLaw:
        """The law with these probabilities; zeros fall out of the support."""
        tokens = np.flatnonzero(probs)
        assert tokens.size, "a law supports at least one token"
        logits = np.log(probs[tokens])
        return NodeLaw.of_support(len(probs), tokens, logits - logits.max())

    @property
    def tokens(self) -> Ids | None:  # [s]
        """The supported tokens, ascending ids; None for the whole vocabulary."""
        return self._support[0]

    @property
    def logits(self) -> Floats:  # [s]
        """Their logits, divided by the temperature and shifted so that their maximum is 0."""
        return self._support[1]

    def settle(self) -> None:
        """Reads the row now, for whoever keeps the law longer than the row is valid; logits become read-only."""
        self.logits.flags.writeable = False

    @cached_property
    def _support(self) -> tuple[Ids | None, Floats]:
        if self.support is not None:
            return self.support
        logits = self.row.all()
        if logits.min() > -np.inf:
            return self.row.tokens, logits
        columns = np.flatnonzero(logits > -np.inf)
        return self.row.ids(columns), logits[columns]

    def token(self, index: int) -> int:
        """The token at an index of the support."""
        return index if self.tokens is None else int(self.tokens[index])

    @cached_property
    def support_probs(self) -> Floats:  # [s]
        """Probabilities of the supported tokens, in the order of `tokens`."""
        weights: Floats = np.exp(self.logits)
        probs: Floats = weights / weights.sum()
        return probs

    @cached_property
    def probs(self) -> Floats:  # [vocab]
        """Probabilities over the whole vocabulary, float64, zero off the support. Read-only."""
        if self.tokens is None:
            dense = self.support_probs
        else:
            dense = np.zeros(self.vocab_size)
            dense[self.tokens] = self.support_probs
        dense.flags.writeable = False
        return dense


@dataclass(frozen=True)
class PointMass:
    """Tokens chosen without chance (n-gram, argmax, shared-noise ranking): each stands for itself."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """One token drawn from `probs`, given as they are or as a law, which is spread over the vocabulary when asked."""

    source: Floats | NodeLaw

    def __post_init__(self) -> None:
        _settle(self.source)

    @property
    def probs(self) -> Floats:  # [vocab]
        return _probs_of(self.source)


@dataclass(frozen=True, eq=False)
class DrawnWithoutReplacement:
    """Tokens drawn one after another from `probs`, each excluded from the next draw; order is drawing order.

    `source` as of `Drawn`.
    """

    source: Floats | NodeLaw

    def __post_init__(self) -> None:
        _settle(self.source)

    @property
    def probs(self) -> Floats:  # [vocab]
        return _probs_of(self.source)


def _settle(source: Floats | NodeLaw) -> None:
    """Keeps a law beyond the row that it was read from: a draft outlives the rows it was drawn from."""
    if isinstance(source, NodeLaw):
        source.settle()


def _probs_of(source: Floats | NodeLaw) -> Floats:  # [vocab]
    return source.probs if isinstance(source, NodeLaw) else source


Law = PointMass | Drawn | DrawnWithoutReplacement
POINT_MASS = PointMass()
