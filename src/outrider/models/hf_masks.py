"""`TreeMasks`: 4-D attention masks that let each drafted node see the context and its own ancestors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from outrider.core.tree import TokenTree

_FULL, _SLIDING = "full_attention", "sliding_attention"
_KNOWN = ("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern")


@dataclass(frozen=True)
class TreeMasks:
    """The masks a model's layers need. `windows`: for each kind of layer, how many positions back it sees.

    A model with one kind of layer gets a tensor; one with several gets them by the kind's name.
    """

    windows: tuple[tuple[str, int | None], ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of_config(config: Any, dtype: torch.dtype, device: torch.device) -> TreeMasks | None:
        """From a transformers configuration; None when a layer may see keys in another way than these two."""
        if any(_limits_attention(name, value) for name, value in vars(config).items()):
            return None
        window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None)
        if kinds is None:
            kinds = [_FULL if window is None else _SLIDING]
        windows = {_FULL: None, _SLIDING: window}
        if any(kind not in windows or (kind == _SLIDING and window is None) for kind in kinds):
            return None
        return TreeMasks(tuple((kind, windows[kind]) for kind in sorted(set(kinds))), dtype, device)

    def of_tree(self, tree: TokenTree, past: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Additive masks [1, 1, n + 1, past + n + 1]: 0 where a row sees a key, the lowest number elsewhere."""
        certain = torch.ones(len(tree) + 1, past, dtype=torch.bool)
        visible = torch.cat([certain, torch.tensor(tree.sees)], dim=1)
        rows = torch.tensor([past, *(past + depth for depth in tree.depths)])
        keys = torch.cat([torch.arange(past), rows])
        masks = {}
        for kind, window in self.windows:
            seen = visible if window is None else visible & (keys[None, :] > rows[:, None] - window)
            mask = torch.zeros(seen.shape, dtype=self.dtype).masked_fill(~seen, torch.finfo(self.dtype).min)
            masks[kind] = mask[None, None].to(self.device)
        return next(iter(masks.values())) if len(masks) == 1 else masks


def _limits_attention(name: str, value: object) -> bool:
    """Whether a setting may be a window that the model applies by itself, which a short probe cannot show."""
    hints = ("window", "attention_chunk", "local_att")
    return value is not None and name.lstrip("_") not in _KNOWN and any(hint in name for hint in hints)
