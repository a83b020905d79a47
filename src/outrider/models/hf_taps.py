"""`Taps`: hidden states between the layers of a transformers model, by hooks that live for one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from outrider.errors import ModelLoadError
from outrider.models.hf_layers import LayerList


class Listener:
    """What one forward showed at the tapped layers."""

    def __init__(self, taps: Sequence[int]) -> None:
        self._taps = taps
        self.states: dict[int, torch.Tensor] = {}  # by tap: [1, rows, hidden]

    def features(self) -> torch.Tensor | None:
        """[rows, taps, hidden], None without taps."""
        return torch.stack([self.states[tap][0] for tap in self._taps], dim=1) if self._taps else None


class Taps:
    """Tap i is the hidden state entering layer i; tap `num_layers` the state after the last layer.

    Hooks see the state before the final norm, which `output_hidden_states` does not give. Raises `ModelLoadError`
    when taps are asked of a model whose list of layers cannot be found.
    """

    def __init__(self, model: Any, num_layers: int, taps: Sequence[int]) -> None:
        self._taps = tuple(taps)
        self._last = num_layers
        self._layers = _layers(model, num_layers) if taps else nn.ModuleList()

    def empty(self, hidden: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """The features of no tokens."""
        return torch.empty(0, len(self._taps), hidden, dtype=dtype, device=device) if self._taps else None

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """Collects the tapped states of the forward inside; the model is unchanged afterwards."""
        listener = Listener(self._taps)
        handles = [self._hook(tap, listener) for tap in self._taps]
        try:
            yield listener
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, tap: int, listener: Listener) -> Any:
        if tap < self._last:

            def entering(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
                listener.states[tap] = args[0] if args else options["hidden_states"]

            return self._layers[tap].register_forward_pre_hook(entering, with_kwargs=True)

        def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            listener.states[tap] = output if isinstance(output, torch.Tensor) else output[0]

        return self._layers[self._last - 1].register_forward_hook(leaving)


def _layers(model: Any, num_layers: int) -> nn.ModuleList:
    found = LayerList.of_model(model, num_layers)
    if found is None:
        raise ModelLoadError(
            f"{type(model).__name__} has no list of {num_layers} layers to tap; use the torch target"
        )
    return found.layers
