"""`Fingerprint`: some numbers of a target's embedding, by which drafts know it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.core.records import TokenWeights

_NEAR = 0.25  # 4-bit weights are about 0.1 from their origin, other models above 1


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """The embedding of some tokens in some columns, which every precision nearly keeps.

    Models that were trained on from one another may be too near to be told apart; a draft for one is then merely less
    often right for the other.
    """

    tokens: tuple[int, ...]
    columns: tuple[int, ...]
    values: torch.Tensor  # [tokens, columns]

    @staticmethod
    def of(weights: TokenWeights, tokens: Sequence[int], columns: Sequence[int]) -> Fingerprint:
        """Of a loaded target; the values as float32 on the host."""
        found = weights.embedding[list(tokens)][:, list(columns)].to("cpu", torch.float32)
        return Fingerprint(tuple(tokens), tuple(columns), found)

    def distance(self, weights: TokenWeights) -> float:
        """How far a target's numbers are from these, as a share of their length."""
        theirs = Fingerprint.of(weights, self.tokens, self.columns).values
        mine = self.values.float()
        return float((mine - theirs).norm() / mine.norm())

    def is_of(self, weights: TokenWeights) -> bool:
        """Whether these are the target's, in whatever precision it was loaded."""
        return self.distance(weights) <= _NEAR


def spread(count: int, wanted: int) -> tuple[int, ...]:
    """Up to `wanted` numbers below `count`, evenly apart."""
    wanted = min(wanted, count)
    return tuple(index * count // wanted for index in range(wanted))
