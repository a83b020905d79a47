"""The best tokens of a row under Gumbel noise, without a logarithm over the vocabulary: exact pruning.

The score of a token is l + g: its logit in nats below the row's peak, and its noise. Scores of the tokens near the
peak say how good the best are at least; every other token then needs so much noise that its hash alone tells, for all
but a few, that it has less. The few are scored by the very arithmetic that would score all, so the answer is the same.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.core.hashing import TOP_BITS, gumbels, hashed_at_least
from outrider.core.largest import largest
from outrider.core.law import Floats, Ids
from outrider.core.scaled_row import ScaledRow

_SAMPLE = 768  # values of a row that tell where its best lie
_NEAR = 8  # of the sample's values count as near the peak: scoring such a share is cheap beside a pass over the row
_MANY = 4096  # ties at the peak
_MOST_NOISE = 36.8  # nats; -log(-log(1 - 2^-53)) is 36.74
_OUT_OF_REACH = 40.0  # nats below the peak: the most noise there loses to the least at the peak, or nearly so
_ROUNDING = 1e-9  # nats; see `_least_hash`


def champions(row: ScaledRow, key: np.uint64, count: int) -> tuple[Ids, Floats] | None:  # [count], [count]
    """Columns and scores of the `count` best, best first, lowest column first on ties: of all scores, bit for bit.

    None where so few tokens lie near the peak that all must be scored.
    """
    near, bound = _near_peak(row)
    if near.size < count:
        return None
    scores = row.at(near) + gumbels(key, row.ids(near))
    least = float(scores.max() if count == 1 else np.partition(scores, near.size - count)[near.size - count])
    if least == -math.inf:
        return None
    if least - bound <= _MOST_NOISE:
        far = hashed_at_least(key, row.tokens, row.raw.size, _least_hash(least - bound))
        far = far[near[np.searchsorted(near[:-1], far)] != far]
        if far.size:
            near = np.sort(np.concatenate((near[scores >= least], far)))
            scores = row.at(near) + gumbels(key, row.ids(near))
    best = largest(scores, count)
    return near[best], scores[best]


def _near_peak(row: ScaledRow) -> tuple[Ids, float]:
    """Some of the largest values of a row: their columns, ascending, and a logit that no other column exceeds.

    Which ones they are is a matter of cost alone. A row is cut in its own dtype: of values below a floor the largest
    possible is the next one down, and scaling keeps the order, rounding included, so its logit bounds all of theirs.
    """
    sample = np.sort(row.raw[:: max(1, row.raw.size // _SAMPLE)])
    floor = max(row.below_peak(_OUT_OF_REACH), sample[-min(_NEAR, sample.size)])
    near = (row.raw >= floor).nonzero()[0]
    if near.size > _MANY:
        return near[:_MANY], 0.0
    with np.errstate(over="ignore"):  # the number below the lowest is -inf
        below = np.nextafter(floor, floor.dtype.type(-np.inf))
    return near, row.scaled(float(below))


def _least_hash(noise: float) -> int:
    """The first 31 bits of the smallest hash whose token has at least this much noise; a little less, never more.

    A score is rounded from l + g by half a unit in the last place, g itself carries a few units of the two logarithms,
    and none of l, g and the score that matters here is as large as 100: 1e-12 nats in all, against which `_ROUNDING`
    is ample. g >= c means u >= exp(-exp(-c)); what `exp` rounds, 1e-15, is nothing beside the unit of 2^-31 that is
    taken off. Where 1 or more is left, u is the hash's own first 53 bits, not the 2^-53 that stands for zero.
    """
    u = math.exp(-math.exp(_ROUNDING - noise))
    return max(0, math.floor(u * (1 << TOP_BITS)) - 1)
