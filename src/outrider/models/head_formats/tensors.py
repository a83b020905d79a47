"""`HeadTensors`: hands out the tensors of a head under the names of `Head`, shapes checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from outrider.errors import ModelLoadError

# Buffers that every implementation computes for itself.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "self_attn.masked_bias")
_WEIGHTS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class HeadTensors:
    """Tensors by the names that `rename` gives them; errors speak of the names in the file."""

    def __init__(self, state: Mapping[str, torch.Tensor], rename: Callable[[str], str]) -> None:
        self._stored: dict[str, str] = {}
        self._state = state
        for stored in sorted(state):
            name = rename(stored)
            if name in self._stored:
                raise ModelLoadError(
                    f"tensors {self._stored[name]!r} and {stored!r} are the same part: keep one of them"
                )
            self._stored[name] = stored
        self._left = {name for name in self._stored if not name.endswith(_IGNORED_SUFFIXES)}
        self.taken: dict[str, torch.Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape as stored. Raises `ModelLoadError` when the tensor is missing or has other dimensions."""
        tensor = self._found(name)
        if tensor.dim() != dimensions:
            raise ModelLoadError(
                f"tensor {self._stored[name]!r} has shape {list(tensor.shape)}, not {dimensions} dimensions: "
                "download the head again"
            )
        return tuple(tensor.shape)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Keeps a weight in `taken`. Raises `ModelLoadError` when it is missing, misshapen or no float."""
        tensor = self._found(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"tensor {self._stored[name]!r} has shape {list(tensor.shape)}, but config and other tensors say "
                f"{list(shape)}: use the config.json that belongs to the head"
            )
        if tensor.dtype not in _WEIGHTS:
            raise ModelLoadError(
                f"tensor {self._stored[name]!r} is {_dtype(tensor)}, which is not read: use a head in "
                "bfloat16, float16 or float32"
            )
        self._left.discard(name)
        self.taken[name] = tensor
        return tensor

    def take_index(self, name: str) -> torch.Tensor | None:
        """A tensor of whole numbers or truth values [n] as int64, None where it is not stored. Raises."""
        if name not in self._stored:
            return None
        tensor = self._found(name)
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        if not whole or tensor.dim() != 1:
            raise ModelLoadError(
                f"tensor {self._stored[name]!r} is {_dtype(tensor)} {list(tensor.shape)}, not a list of whole "
                "numbers: download the head again"
            )
        self._left.discard(name)
        return tensor.to(torch.int64)

    def forget(self, name: str) -> bool:
        """Leaves out a tensor on purpose; false where it is not stored."""
        self._left.discard(name)
        return name in self._stored

    def finish(self, kind: str) -> dict[str, torch.Tensor]:
        """All that was taken. Raises `ModelLoadError` naming a tensor that nobody asked for."""
        if self._left:
            name = min(self._left)
            raise ModelLoadError(
                f"tensor {self._stored[name]!r} ({len(self._left)} in all) is no part of {kind}: use a head of "
                "that kind, or remove the tensor where it is not needed"
            )
        return self.taken

    def _found(self, name: str) -> torch.Tensor:
        stored = self._stored.get(name)
        if stored is None:
            raise ModelLoadError(f"tensor {name!r} is missing: download the head again")
        return self._state[stored]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
