"""`LayerList`: where a transformers model keeps its decoder layers, and how to run only some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, eq=False)
class LayerList:
    """The list of decoder layers, with the module and the attribute that hold it."""

    holder: nn.Module
    attribute: str
    layers: nn.ModuleList

    @staticmethod
    def of_model(model: nn.Module, num_layers: int) -> LayerList | None:
        """The only list of `num_layers` modules that no other such list contains; None without exactly one."""
        found = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) == num_layers
        }
        outer = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
        if len(outer) != 1 or not outer[0]:
            return None
        parent, _, attribute = outer[0].rpartition(".")
        return LayerList(model.get_submodule(parent), attribute, found[outer[0]])

    @contextmanager
    def only(self, chosen: Sequence[int], config: Any) -> Iterator[None]:
        """Inside, the model runs these layers alone, in this order; afterwards it is as it was.

        A layer keeps its own number, and so its place in the cache. Where the configuration lists a kind per layer,
        which some models look up by place, it lists those of the chosen layers meanwhile.
        """
        kinds = getattr(config, "layer_types", None)
        setattr(self.holder, self.attribute, nn.ModuleList([self.layers[index] for index in chosen]))
        try:
            if kinds is not None:
                config.layer_types = [kinds[index] for index in chosen]
            yield
        finally:
            setattr(self.holder, self.attribute, self.layers)
            if kinds is not None:
                config.layer_types = kinds

    @contextmanager
    def states_after(self, layer: int) -> Iterator[list[torch.Tensor]]:
        """Collects the hidden states [rows, hidden] that a layer gives in the forwards inside, of one text each."""
        states: list[torch.Tensor] = []

        def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            states.append((output if isinstance(output, torch.Tensor) else output[0])[0])

        handle = self.layers[layer].register_forward_hook(leaving)
        try:
            yield states
        finally:
            handle.remove()
