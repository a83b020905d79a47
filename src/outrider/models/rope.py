"""Rotary position tables, prepared once and looked up by position."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from outrider.models.arch import Arch, RopeKind


def inverse_frequencies(arch: Arch) -> torch.Tensor:  # [head_dim / 2] float32
    """Angle per position of each pair of dimensions; llama3 stretches long waves only (Llama 3.1 model card)."""
    exponents = torch.arange(0, arch.head_dim, 2, dtype=torch.float32) / arch.head_dim
    frequencies = 1.0 / arch.rope_theta**exponents
    scaling = arch.rope_scaling
    if scaling.kind is RopeKind.DEFAULT:
        return frequencies
    if scaling.kind is RopeKind.LINEAR:
        return frequencies / scaling.factor
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling.factor)


def angles(arch: Arch, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines of the first `count` positions, each [count, head_dim / 2] float32."""
    turned = torch.outer(torch.arange(count, dtype=torch.float32), inverse_frequencies(arch))
    return turned.cos().numpy(), turned.sin().numpy()


class RopeTable:
    """Cosines and sines of the first positions, grown on demand.

    The sine carries the sign of the rotation in its first half, so that rotating is x * cos + roll(x, half) * sin.
    """

    def __init__(self, arch: Arch, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(arch)
        self._dtype, self._device = dtype, device
        self._cos = torch.empty(0, arch.head_dim, dtype=dtype, device=device)
        self._sin = self._cos

    def at(self, positions: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each [rows, 1, head_dim], of positions [rows] that are all below `limit`."""
        if limit > len(self._cos):
            self._grow(max(limit, 2 * len(self._cos), 1024))
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def _grow(self, count: int) -> None:
        # float32 angles, as in the reference implementation; only the result takes the model's precision.
        angles = torch.outer(torch.arange(count, dtype=torch.float32), self._frequencies)
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat([cos, cos], dim=-1).to(self._device, self._dtype)
        self._sin = torch.cat([-sin, sin], dim=-1).to(self._device, self._dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates each pair (j, j + head_dim / 2) of x [rows, heads, head_dim]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
