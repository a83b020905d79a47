"""`ScaledRow`: a row of logits that is scaled by peak and temperature where and when it is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from outrider.core.law import Floats, Ids

_NEVER_OVERFLOWS = 1e-250  # the temperature: differences of float32 numbers stay below 1e39


@dataclass(frozen=True, eq=False)
class ScaledRow:
    """The logits (raw - peak) / temperature in float64; `peak` is the largest of `raw`, so their maximum is 0.

    `raw` may share the memory of a model's row and is read whenever logits are asked for: valid as long as that is.
    `tokens` are the ids of its columns, ascending, None where column i is token i. Both steps of scaling keep the order
    of values, ties made by rounding included: what holds of raw values by order holds of logits.
    """

    raw: npt.NDArray[Any]  # [n], no NaN, no +inf
    peak: float
    temperature: float
    tokens: Ids | None = None  # [n]

    def ids(self, columns: Ids) -> Ids:  # [k] -> [k]
        """The token ids of some columns."""
        return columns if self.tokens is None else self.tokens[columns]

    def at(self, columns: Ids) -> Floats:  # [k] -> [k]
        """The logits of some columns."""
        return self.scale(self.raw[columns].astype(np.float64))

    def all(self) -> Floats:  # [n]
        """All logits, in memory of their own."""
        return self.scale(self.raw.astype(np.float64))

    def scaled(self, value: float) -> float:
        """The logit of one raw value."""
        return (value - self.peak) / self.temperature

    def scale(self, logits: Floats) -> Floats:  # [k] -> [k]
        """The logits of raw values, in their place."""
        if self.raw.dtype == np.float32 and self.temperature >= _NEVER_OVERFLOWS:
            return self._scale(logits)
        with np.errstate(over="ignore"):
            return self._scale(logits)

    def from_logit(self, floor: float) -> tuple[Ids, Floats]:  # [k], [k]
        """Columns whose logit is `floor` or more, ascending, with their logits."""
        columns = np.flatnonzero(self.raw >= self._surely_below(floor))
        logits = self.at(columns)
        kept = logits >= floor
        return columns[kept], logits[kept]

    def _surely_below(self, floor: float) -> float:
        """A raw value below whose logit every smaller value's lies under `floor`, too: found near it, else -inf."""
        depth = -floor * self.temperature
        with np.errstate(over="ignore"):
            guess = self.raw.dtype.type(self.peak - depth - 1e-6 * (abs(self.peak) + depth))
        value = float(np.nextafter(guess, guess.dtype.type(-np.inf)))
        return value if self.scaled(value) < floor else -math.inf

    def _scale(self, logits: Floats) -> Floats:
        logits -= self.peak
        if self.temperature != 1.0:
            logits /= self.temperature
        return logits
