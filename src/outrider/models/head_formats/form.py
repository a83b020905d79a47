"""`HeadForm`: the contents of the files that hold a head in one format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from outrider.errors import ModelLoadError


@dataclass(frozen=True, eq=False)
class HeadForm:
    """config.json, and one file of tensors under the names of the format."""

    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    file: str = "model.safetensors"


def cannot_hold(form: str, reason: str) -> ModelLoadError:
    """The error of a form that has no place for something a head needs; `reason` ends with the remedy."""
    return ModelLoadError(f"form {form!r} cannot hold this head: {reason}")


def dtype_name(tensor: torch.Tensor) -> str:
    """As configs spell it."""
    return str(tensor.dtype).removeprefix("torch.")
