"""`RowCosts`: what a pass over several rows costs beside one over one, as far as drafters must know beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from outrider.core.protocols import TargetModel
from outrider.models.native import NativeDecoder
from outrider.models.native_library import Activations


@dataclass(frozen=True)
class RowCosts:
    """`relative[r - 1]`: the cost of r rows in passes of one row. Beyond the table costs rise as on average in it.

    Fixed figures, not measured at load: the same request gets the same drafts on every run.
    """

    relative: tuple[float, ...]

    def of(self, rows: int) -> float:
        """The cost of a pass over `rows` rows, at least 1."""
        if rows <= len(self.relative):
            return self.relative[rows - 1]
        step = (self.relative[-1] - self.relative[0]) / (len(self.relative) - 1)
        return self.relative[-1] + step * (rows - len(self.relative))

    @cached_property
    def free(self) -> bool:
        """Whether no row costs more than the first."""
        return self.relative[0] == max(self.relative) == self.relative[-1]

    @staticmethod
    def linear(per_row: float) -> RowCosts:
        """Every further row costs the same share of a pass."""
        return RowCosts((1.0, 1.0 + per_row))

    def worthwhile(
        self, chances: Sequence[float], *, promised: float = 1.0, rows: int = 1, sunk: float = 0.0
    ) -> int:
        """How many of these nodes to score, so that the tokens that a pass promises per cost are most.

        `chances[i]`: that node i is kept, all above it included; nodes come in the order in which they would be added.
        `promised` tokens and `rows` are there before, and passes that drafting cost are `sunk`. Of equal numbers the
        largest.
        """
        if self.free:
            return len(chances)
        best, most = 0, promised / (self.of(rows) + sunk)
        for count, chance in enumerate(chances, start=1):
            promised += chance
            worth = promised / (self.of(rows + count) + sunk)
            if worth >= most:
                best, most = count, worth
        return best


@dataclass(frozen=True)
class DraftCosts:
    """What a draft of a model costs, in passes of the target over one row: rows to score, forwards of its own, and what
    comes once a round, however short the draft."""

    rows: RowCosts
    level: float  # a forward of the draft model
    asking: float = 0.0

    def of(self, rows: int, levels: int) -> float:
        """The cost of a round that scores `rows` rows after `levels` forwards."""
        return self.rows.of(rows) + self.sunk(levels)

    def sunk(self, levels: int) -> float:
        """The cost of a draft of so many forwards, whatever of it is scored."""
        return self.asking + self.level * levels if levels else 0.0

    def price(self, rows: int, levels: int, *, promised: float = 1.0, given: int = 1) -> float:
        """Tokens that a round would make of what its draft costs: of `promised` tokens for a pass over `given` rows."""
        rest = self.rows.of(given)
        return (self.of(rows, levels) - rest) * promised / rest

    @cached_property
    def free(self) -> bool:
        """Whether drafts cost nothing."""
        return self.level == 0.0 and self.asking == 0.0 and self.rows.free


FREE = DraftCosts(RowCosts.linear(0.0), 0.0)
"""Drafts as long as their budgets."""

# SmolLM2-135M, 256 cached tokens, 2 threads, AVX-512 VNNI, rows 1, 2, ... (docs/log.md, row costs). Kernels exist for 1
# to 8, 10 and 12 rows; rows beyond four wait for products more than for memory.
_BLOCKS_INT8 = (1.0, 1.08, 1.12, 1.18, 1.25, 1.37, 1.5, 1.58, 1.8, 1.85, 2.1, 2.15, 2.3, 2.4, 2.65, 2.7)
_FOUR_BITS = (1.0, 1.02, 1.1, 1.25, 1.42, 1.6, 1.95, 2.1, 2.55, 2.6, 3.0, 3.1, 3.45, 3.55, 3.8, 3.9)
_EIGHT_BITS = (1.0, 1.0, 1.0, 1.03, 1.15, 1.3, 1.55, 1.75, 2.0, 2.1, 2.35, 2.45, 2.6, 2.6, 2.85, 2.85)
# By int8 inputs:
_BYTES = (1.0, 1.0, 1.0, 1.0, 1.05, 1.06, 1.1, 1.12, 1.2, 1.22, 1.32, 1.36, 1.48, 1.53, 1.7, 1.72)
_WIDE = (1.0, 1.02, 1.02, 1.05, 1.07, 1.08, 1.09, 1.13, 1.15, 1.17, 1.22, 1.24, 1.32, 1.35, 1.41, 1.46)
_NATIVE = {
    ("gguf", Activations.INT8): _BLOCKS_INT8,
    ("int4", Activations.INT8): _BLOCKS_INT8,  # not measured: as the file's blocks
    ("int8", Activations.INT8): _BYTES,
    ("gguf", Activations.BFLOAT16): _FOUR_BITS,
    ("int4", Activations.BFLOAT16): _FOUR_BITS,  # likewise
    ("int8", Activations.BFLOAT16): _EIGHT_BITS,
}
_OTHERS = RowCosts.linear(0.04)

_LAUNCH = 0.03  # of a forward beside its weights: what it costs in Python and between threads
_ROUND = 0.12  # of a round with a draft, beside that: what certain tokens and the draft itself cost there
_CACHED = 16 << 20  # bytes that stay in a processor's cache from the last forward,
_CACHED_SHARE = 0.4  # and what reading them costs beside others
_UNKNOWN_SHARE = 0.1


def bytes_of(model: TargetModel) -> int | None:
    """Bytes of weights that a pass of a model reads; None where it does not tell."""
    found: int | None = getattr(model, "weight_bytes", None)
    return found


def draft_costs(target: TargetModel, weight_bytes: int | None) -> DraftCosts:
    """What drafts are taken to cost of a model that reads so many bytes of weights in a forward.

    Reading them bounds both models. The first forward of a round finds them out of the cache. Where either number is
    not known, a forward is taken for a tenth of the target's pass.
    """
    whole = bytes_of(target)
    share, cached = _UNKNOWN_SHARE, _UNKNOWN_SHARE
    if weight_bytes is not None and whole:
        share = weight_bytes / whole
        cached = share * (_CACHED_SHARE if weight_bytes <= _CACHED else 1.0)
    return DraftCosts(expected_costs(target), _LAUNCH + cached, _ROUND + share - cached)


def expected_costs(target: TargetModel) -> RowCosts:
    """What rows are taken to cost on a target: by the form of its weights on native, elsewhere 4 % each."""
    if isinstance(target, NativeDecoder):
        return RowCosts(_NATIVE.get((target.setup.dtype, target.setup.activations), _WIDE))
    return _OTHERS
