"""Kinds of nodes that a model drafts, and how often a text keeps each before it has shown its own share."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")
_WIDEST = 8  # ranks told apart; further ones count as the last of them
LEADS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Between the classes of leads that are told apart, in nats."""
_CONFIDENCES = tuple(math.log(p) for p in (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 0.97))
"""Between the classes of log-probabilities."""

GOES_ON = "any child of an expanded node"
"""Kept where one of the children is."""

# How often a child was kept whose parent was. With noise shared it hangs on the rank and the lead and hardly on the
# draft's own probability (24,000 positions of a trained EAGLE-3 head at temperatures 1 and 0.8); of drawn children, on
# the rank (60,000 positions of three better drafts). At temperature 0 the likeliest child is right somewhat more often
# than its probability says, the others as often (68,000 positions of that head; docs/log.md, node values).
_DRAWN = (0.64, 0.09, 0.045, 0.03, 0.02, 0.015, 0.01, 0.01)
_RANKED = (
    (0.17, 0.20, 0.25, 0.36, 0.55, 0.83),
    (0.14, 0.14, 0.13, 0.095, 0.065, 0.025),
    (0.08, 0.08, 0.08, 0.063, 0.042, 0.02),
    (0.055, 0.06, 0.06, 0.045, 0.03, 0.01),
)
_LIKELIEST = (0.07, 0.10, 0.19, 0.31, 0.43, 0.59, 0.74, 0.85, 0.89, 0.98)
_OTHERS = (0.02, 0.07, 0.15, 0.25, 0.35, 0.49, 0.49, 0.49, 0.49, 0.49)
PRIORS: Mapping[Hashable, float] = {
    GOES_ON: 0.5,
    **{("drawn", rank): chance for rank, chance in enumerate(_DRAWN)},
    **{
        ("ranked", rank, lead): chance * 0.75 ** max(0, rank - 3)
        for rank in range(_WIDEST)
        for lead, chance in enumerate(_RANKED[min(rank, 3)])
    },
    **{
        ("likeliest", rank, confidence): chance
        for rank in range(_WIDEST)
        for confidence, chance in enumerate(_OTHERS if rank else _LIKELIEST)
    },
}
_RANKED_KINDS = tuple(
    tuple(("ranked", rank, lead) for lead in range(len(LEADS) + 1)) for rank in range(_WIDEST)
)
_LIKELIEST_KINDS = tuple(
    tuple(("likeliest", rank, confidence) for confidence in range(len(_CONFIDENCES) + 1))
    for rank in range(_WIDEST)
)
_DRAWN_KINDS = tuple(("drawn", rank) for rank in range(_WIDEST))


def ranked_kinds(leads: Sequence[float]) -> list[Hashable]:
    """Of children ranked under the text's noise, best first, by their leads in nats (`Contest.leads`)."""
    return [kinds[bisect(LEADS, lead)] for kinds, lead in zip(_by_rank(_RANKED_KINDS, len(leads)), leads)]


def likeliest_kinds(log_probs: Sequence[float]) -> list[Hashable]:
    """Of the likeliest children at temperature 0, best first, by their raw log-probabilities."""
    ranks = _by_rank(_LIKELIEST_KINDS, len(log_probs))
    return [kinds[bisect(_CONFIDENCES, log_prob)] for kinds, log_prob in zip(ranks, log_probs)]


def drawn_kinds(count: int) -> list[Hashable]:
    """Of `count` children in the order in which they are drawn."""
    return list(_by_rank(_DRAWN_KINDS, count))


def _by_rank(kinds: tuple[_T, ...], count: int) -> tuple[_T, ...]:
    """Those of the first `count` ranks: further ranks count as the last one that is told apart."""
    return kinds[:count] if count <= _WIDEST else kinds + kinds[-1:] * (count - _WIDEST)
