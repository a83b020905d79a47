"""Matrix products of draft heads, and how others take their places."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Product = Callable[[torch.Tensor], torch.Tensor]
"""A matrix product: [rows, in] -> [rows, out]."""

MakeProduct = Callable[[torch.Tensor, torch.Tensor | None], Product]
"""The product of a weight [out, in] and a bias [out] or None."""


def swapped(linear: nn.Linear, make: MakeProduct) -> nn.Module:
    """The product that `make` gives for a layer's weight and bias, as a module that holds neither."""
    bias = None if linear.bias is None else linear.bias.detach()
    return _Swapped(make(linear.weight.detach(), bias))


class _Swapped(nn.Module):
    """A matrix product that is no torch module of its own."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [rows, in] -> [rows, out]
        return self._product(x)
