"""Probes at load: does a model's cache rewind exactly, and do its layers follow a tree mask?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from outrider.core.tree import TokenTree
from outrider.errors import ModelLoadError
from outrider.models.hf_cache import HfCache

if TYPE_CHECKING:
    from outrider.models.hf import HfTarget

# Seven tokens that every vocabulary has; a tree whose second branch must not see its first.
_TOKENS = (1, 5, 3, 2, 4, 6, 7)
_TREE = TokenTree((4, 6, 7), (None, None, 1))
_FLAT = TokenTree.chain((4, 6, 7))
_PATH = TokenTree.chain((6, 7))
_SHARE = 0.1  # of the difference that a wrong result would make


@torch.no_grad()
def check_rollback(target: HfTarget) -> int:
    """The number of logits per row.

    Raises `ModelLoadError` when the model's forward fails, or a rewound cache differs from a fresh one.
    """
    try:
        return _check_rollback(target)
    except ModelLoadError:
        raise
    except Exception as error:  # third-party code may raise anything
        name, reason = type(target.model).__name__, " ".join(str(error).split())
        raise ModelLoadError(f"{name}: a forward of seven tokens fails: {reason[:200]}") from error


def _check_rollback(target: HfTarget) -> int:
    fresh = HfCache()
    right, _ = target.rows(fresh, _TOKENS[0], TokenTree.chain(_TOKENS[1:]))
    _check_finite(target, right)
    rewound = HfCache()
    wrong, _ = target.rows(rewound, _TOKENS[0], TokenTree.chain(_TOKENS[:0:-1]))
    rewound.keep(range(len(_TOKENS)))
    rewound.truncate(1)
    again, _ = target.rows(rewound, _TOKENS[1], TokenTree.chain(_TOKENS[2:]))
    if not _agree(again, right[1:], wrong[1:]):
        name = type(target.model).__name__
        raise ModelLoadError(
            f"{name}: its cache gives other results after a rewind; this model is not supported"
        )
    return int(right.shape[-1])


def _check_finite(target: HfTarget, logits: torch.Tensor) -> None:
    if bool(logits.isfinite().all()):
        return
    weights = target.model.state_dict().items()
    broken = [name for name, weight in weights if not bool(weight.isfinite().all())]
    place = f"weight {broken[0]} holds such numbers" if broken else "look for nan or inf in its configuration"
    raise ModelLoadError(
        f"{type(target.model).__name__}: its logits are not finite in {target.dtype}: {place}"
    )


@torch.no_grad()
def takes_tree_masks(target: HfTarget) -> bool:
    """Whether the model gives a tree's rows the logits of their own paths."""
    if target.masks is None:
        return False
    cache = HfCache()
    target.rows(cache, _TOKENS[0], TokenTree.chain(_TOKENS[1:3]))
    cache.keep(range(3))
    try:
        tree, _ = target.rows(cache, _TOKENS[3], _TREE)
    except Exception:  # third-party attention that does not know such a mask may raise anything
        return False
    cache.drop_scratch()
    flat, _ = target.rows(cache, _TOKENS[3], _FLAT)
    cache.drop_scratch()
    path, _ = target.rows(cache, _TOKENS[3], _PATH)
    return _agree(tree[2:], path[1:], flat[2:])


def _agree(result: torch.Tensor, right: torch.Tensor, wrong: torch.Tensor) -> bool:
    """Equal but for rounding, by the measure of a result that is known to be wrong."""
    error, gap = float((result - right).abs().max()), float((wrong - right).abs().max())
    return error <= max(_SHARE * gap, 1e-6 * float(right.abs().max()))
