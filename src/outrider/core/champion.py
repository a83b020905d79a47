"""The best tokens of a row under Gumbel noise, without a logarithm over the vocabulary: exact pruning.

The score of a token is l + g: its logit in nats below the row's peak, and its noise. Tokens near the peak and tokens
with much noise are scored. Of every other token both are bounded; where the sum of the bounds may reach the scores
found, the noise that it takes is known, and the tokens with so much are scored too. They are scored by the very
arithmetic that would score all, so the answer is the same.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.compiled.contenders import Wanted
from outrider.core.contenders import contenders
from outrider.core.hashing import TOP_BITS, gumbels_of
from outrider.core.largest import largest
from outrider.core.law import Floats, Ids
from outrider.core.scaled_row import ScaledRow

_GROUPS = 512  # of columns, whose largest numbers tell where the floor lies
_NEAR = 128  # groups with a number at or above the floor: somewhat more tokens are near the peak
_LUCKY = 256  # tokens, on average, whose noise is large; scoring so many is cheap beside a pass over the row
_ROUNDING = 1e-9  # see `_least_hash`


def champions(row: ScaledRow, key: np.uint64, count: int) -> tuple[Ids, Floats] | None:  # [count], [count]
    """Columns and scores of the `count` best, best first, lowest column first on ties: of all scores, bit for bit.

    None where so few tokens are near the peak or have much noise that all must be scored.
    """
    size = row.raw.size
    groups = min(_GROUPS, size)
    top = max(0, size - _LUCKY) * (1 << TOP_BITS) // size
    while True:
        found = contenders(row, key, Wanted(groups, min(_NEAR, groups), top))
        scores = row.scale(found.values)
        scores += gumbels_of(found.uniforms)
        best = largest(scores, count)
        least = float(scores[best[-1]]) if best.size == count else -math.inf
        if least == -math.inf:
            return None
        needed = _least_hash(least - row.scaled(found.floor) - _ROUNDING * abs(least))
        if needed >= top:
            return found.columns[best], scores[best]
        top = needed


def _least_hash(noise: float) -> int:
    """The first 31 bits of the smallest hash whose token has at least this much noise; a little less, never more.

    A score is rounded from l + g by half a unit in the last place, g itself carries a few units of the two logarithms,
    and no g is as large as 100: 1e-12 nats in all and 1e-15 of the score, against which `_ROUNDING` of either
    is ample. g >= c means u >= exp(-exp(-c)); what `exp` rounds, 1e-15, is nothing beside the unit of 2^-31 that is
    taken off. Where 1 or more is left, u is the hash's own first 53 bits, not the 2^-53 that stands for zero.
    """
    u = math.exp(-math.exp(min(_ROUNDING - noise, 700.0)))
    return max(0, math.floor(u * (1 << TOP_BITS)) - 1)
