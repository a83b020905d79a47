"""`HfCache`: the keys and values of one sequence of a transformers model, with our own rollback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from outrider.errors import ModelLoadError

_REFUSED_IMPLEMENTATIONS = {
    "static": "StaticCache",
    "offloaded_static": "StaticCache",
    "quantized": "QuantizedCache",
}


class HfCache:
    """Certain keys and values first, then the rows of the last forward as scratch.

    Every layer keeps all its keys, also where the model attends to a window only: transformers' own cache of such a
    layer drops old keys, so that a rollback would leave holes. The model's mask then cuts the window.
    """

    def __init__(self) -> None:
        from transformers import DynamicCache

        self.length = 0
        self.store: Any = DynamicCache()

    def drop_scratch(self) -> None:
        self._map(lambda part: part[..., : self.length, :])

    def keep(self, rows: Sequence[int]) -> None:
        """Makes certain these rows of the last forward, in this order, and drops the others."""
        start, end = self.length, self.length + len(rows)
        if list(rows) == list(range(len(rows))):
            self._map(lambda part: part[..., :end, :])
        else:
            slots = torch.tensor([*range(start), *(start + row for row in rows)])
            self._map(lambda part: part.index_select(-2, slots.to(part.device)))
        self.length = end

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` certain tokens."""
        assert 0 <= length <= self.length, "a cache can only be cut back"
        self.length = length
        self.drop_scratch()

    def copy(self, length: int) -> HfCache:
        """A cache of its own that holds the first `length` certain tokens."""
        assert 0 <= length <= self.length, "a fork cannot hold more than its parent"
        child = HfCache()
        child.length = length
        for index, layer in enumerate(self.store.layers):
            if layer.keys is not None and length:
                child.store.update(
                    layer.keys[..., :length, :].clone(), layer.values[..., :length, :].clone(), index
                )
        return child

    def _map(self, change: Any) -> None:
        # Layers that share another's keys hold none of their own.
        for layer in self.store.layers:
            if layer.keys is not None and layer.keys.numel():
                layer.keys, layer.values = change(layer.keys), change(layer.values)


def check_rewindable(model: Any) -> None:
    """Raises `ModelLoadError`, naming the class, when the model's cache cannot be rewound exactly."""
    from transformers import DynamicCache

    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelLoadError(f"{name} is an encoder-decoder model; use a decoder-only (causal) model")
    if getattr(model, "_is_stateful", False):
        raise ModelLoadError(
            f"{name} keeps a recurrent state that cannot be rewound; use a model with attention only"
        )
    chosen = getattr(getattr(model, "generation_config", None), "cache_implementation", None)
    if chosen in _REFUSED_IMPLEMENTATIONS:
        raise ModelLoadError(
            f"{_REFUSED_IMPLEMENTATIONS[chosen]} (generation_config.cache_implementation={chosen!r}) "
            f"cannot be rewound; set it to None for {name}"
        )
    for layer in DynamicCache(config=model.config).layers:
        kind = type(layer).__name__
        if kind not in ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"):
            raise ModelLoadError(
                f"{name} has layers with a {kind}, which cannot be rewound; use another model"
            )
