"""Untrained EAGLE heads of a few hundred weights, made to measure for any tapped target."""

from __future__ import annotations

import torch

from outrider.core.protocols import TappedTarget
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_cache import CachedHead
from outrider.models.heads import EagleConfig
from outrider.models.linear import Linear


def tiny_eagle(target: TappedTarget, *, seed: int = 0, max_positions: int = 4096) -> CachedHead:
    """An EAGLE-1 head for this target, whose taps it adds to the target's."""
    config = EagleConfig(False, tiny_arch(target, max_positions), target.hidden_size, target.vocab_size)
    return _cached(target, config, seed)


def tiny_eagle3(
    target: TappedTarget, *, seed: int = 0, draft_vocab: int | None = None, max_positions: int = 4096
) -> CachedHead:
    """An EAGLE-3 head for this target, whose taps it adds to the target's; `draft_vocab` tokens, evenly spread."""
    config = EagleConfig(
        True, tiny_arch(target, max_positions), target.hidden_size, draft_vocab or target.vocab_size,
        taps=(0, 1, target.num_layers),
    )  # fmt: skip
    return _cached(target, config, seed)


def tiny_arch(target: TappedTarget, max_positions: int) -> Arch:
    """A layer of two heads, as wide as the target's hidden states."""
    hidden = target.hidden_size
    return Arch("llama", 1, hidden, 2 * hidden, 2, 1, hidden // 2, target.vocab_size, 1e-5, 10000.0, RopeScaling(),
                False, False, False, False, False, max_positions)  # fmt: skip


def _cached(target: TappedTarget, config: EagleConfig, seed: int) -> CachedHead:
    mapped = config.draft_vocab < config.arch.vocab_size
    spread = torch.arange(config.draft_vocab) * config.arch.vocab_size // config.draft_vocab
    head = fresh_head(config, seed=seed, token_map=spread if mapped else None)
    module = EagleHead(head, target.token_weights(), num_layers=target.num_layers)
    module.swap_products(Linear)  # sums that do not hang on the neighbours
    target.tap(module.taps)
    return CachedHead(module)
