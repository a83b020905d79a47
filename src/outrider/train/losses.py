"""Losses: how far a draft's law is from the target's, row by row, with the share of guesses that would be kept.

The gradient is worked out beside the loss, a few rows at a time: of all that lies between logits and loss one
tensor of the logits' size is kept. Overlap is what rejection sampling accepts (Leviathan 2211.17192, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch.autograd.function import FunctionCtx, once_differentiable

from outrider.errors import ConfigError, nearest

LK_SCALE = 1.0
LK_DECAY = 3.0
"""The weight of KL in `lk_hybrid` is LK_SCALE * exp(-LK_DECAY * overlap)."""

_BLOCK = {"cpu": 1 << 18}  # numbers worked on at a time: what lies between two steps stays in the caches
_BLOCK_ELSEWHERE = 1 << 25


@dataclass(frozen=True, eq=False)
class RowLosses:
    """One number per row."""

    losses: torch.Tensor  # [n] float32, float64 of float64 logits; carries the gradient of the draft's logits
    overlaps: torch.Tensor  # [n] sum of min(p, q) = 1 - TV; no gradient


Loss = Callable[[torch.Tensor, torch.Tensor], RowLosses]
"""(draft logits [n, draft vocab], target logits [n, draft vocab]) -> `RowLosses`. Logits are finite; no gradient
flows to the target's."""


@dataclass(frozen=True, eq=False)
class _Laws:
    """The laws p of the target and q of the draft on some rows."""

    p: torch.Tensor  # [n, vocab]
    q: torch.Tensor  # [n, vocab]
    log_p: torch.Tensor  # [n, vocab]
    log_q: torch.Tensor  # [n, vocab]

    @cached_property
    def overlaps(self) -> torch.Tensor:  # [n]
        return torch.minimum(self.p, self.q).sum(1)

    @cached_property
    def lk_weights(self) -> torch.Tensor:  # [n]
        return LK_SCALE * torch.exp(-LK_DECAY * self.overlaps)


@dataclass(frozen=True)
class _Measure:
    """A loss of rows, and its derivative by the draft's logits."""

    value: Callable[[_Laws], torch.Tensor]  # -> [n]
    slope: Callable[[_Laws], torch.Tensor]  # -> [n, vocab]


def _ce_value(laws: _Laws) -> torch.Tensor:
    return -(laws.p * laws.log_q).sum(1)


def _kl_value(laws: _Laws) -> torch.Tensor:
    return (laws.p * (laws.log_p - laws.log_q)).sum(1)


def _ce_slope(laws: _Laws) -> torch.Tensor:
    return laws.q - laws.p


def _tv_value(laws: _Laws) -> torch.Tensor:
    return 1.0 - laws.overlaps


def _tv_slope(laws: _Laws) -> torch.Tensor:
    # q where more of it would be accepted
    short = torch.sub(laws.p, laws.q).sign_().clamp_min_(0.0).mul_(laws.q)
    return torch.addcmul(short.neg(), laws.q, short.sum(1, keepdim=True))


def _lk_value(laws: _Laws) -> torch.Tensor:
    return torch.lerp(_tv_value(laws), _kl_value(laws), laws.lk_weights)


def _lk_slope(laws: _Laws) -> torch.Tensor:
    return torch.lerp(_tv_slope(laws), _ce_slope(laws), laws.lk_weights[:, None])


class _Rows(torch.autograd.Function):
    """Losses and overlaps of all rows, block by block."""

    @staticmethod
    def forward(ctx: FunctionCtx, draft: torch.Tensor, target: torch.Tensor,
                measure: _Measure) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        wide = torch.float64 if draft.dtype == torch.float64 else torch.float32
        losses, overlaps = draft.new_empty(2, len(draft), dtype=wide)
        slopes = torch.empty_like(draft) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        count = max(1, _BLOCK.get(draft.device.type, _BLOCK_ELSEWHERE) // draft.shape[1])
        for start in range(0, len(draft), count):
            rows = slice(start, start + count)
            log_p, log_q = F.log_softmax(target[rows].to(wide), 1), F.log_softmax(draft[rows].to(wide), 1)
            laws = _Laws(log_p.exp(), log_q.exp(), log_p, log_q)
            losses[rows], overlaps[rows] = measure.value(laws), laws.overlaps
            if slopes is not None:
                slopes[rows] = measure.slope(laws)
        if slopes is not None:
            ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(overlaps)
        return losses, overlaps

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, losses: torch.Tensor,
                 overlaps: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # fmt: skip
        [slopes] = ctx.saved_tensors  # type: ignore[attr-defined]
        return slopes * losses[:, None].to(slopes), None, None


def _loss(measure: _Measure, draft: torch.Tensor, target: torch.Tensor) -> RowLosses:
    assert draft.shape == target.shape, f"laws over {draft.shape[1]} and {target.shape[1]} tokens"
    return RowLosses(*_Rows.apply(draft, target.detach(), measure))  # type: ignore[no-untyped-call]


def kl_div(draft: torch.Tensor, target: torch.Tensor) -> RowLosses:
    """KL(p || q), in nats."""
    return _loss(_Measure(_kl_value, _ce_slope), draft, target)


def ce(draft: torch.Tensor, target: torch.Tensor) -> RowLosses:
    """Soft cross-entropy of q under p, in nats: KL and the target's own entropy, so its gradient is that of KL."""
    return _loss(_Measure(_ce_value, _ce_slope), draft, target)


def tv(draft: torch.Tensor, target: torch.Tensor) -> RowLosses:
    """Total variation: the share of guesses drawn from q that rejection sampling refuses."""
    return _loss(_Measure(_tv_value, _tv_slope), draft, target)


def lk_hybrid(draft: torch.Tensor, target: torch.Tensor) -> RowLosses:
    """KL where laws are far apart, TV where they overlap: w KL + (1 - w) TV (LK loss of type lambda, 2602.23881).

    w falls with the row's own overlap and passes no gradient.
    """
    return _loss(_Measure(_lk_value, _lk_slope), draft, target)


LOSSES: Mapping[str, Loss] = MappingProxyType({loss.__name__: loss for loss in (kl_div, ce, tv, lk_hybrid)})
"""By the names of `--loss-fn`."""


def loss_named(name: str) -> Loss:
    """Raises `ConfigError` naming the known losses."""
    if name not in LOSSES:
        raise ConfigError(f"loss must be one of {', '.join(LOSSES)}, not {name!r}{nearest(name, LOSSES)}")
    return LOSSES[name]
