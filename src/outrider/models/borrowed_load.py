"""Loads a draft model that borrows from its target: in the compiled decoder where that runs it, else in torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from outrider.compiled.library import NativeUnavailable
from outrider.core.protocols import TappedTarget, TargetModel
from outrider.errors import ConfigError
from outrider.models.borrowed import BorrowingDraft
from outrider.models.load import device_named
from outrider.models.native_load import load_native
from outrider.models.settings import RunSettings
from outrider.models.torch_decoder import TorchDecoder

_LOG = logging.getLogger(__name__)
_TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class MappedModel:
    """A draft model that speaks a part of its target's tokens: column i of its rows is token `token_map[i]`."""

    decoder: TargetModel
    token_map: torch.Tensor  # [columns] int64, ascending


def load_borrowing(draft: BorrowingDraft, target: TappedTarget, settings: RunSettings,
                   device: str) -> TargetModel | MappedModel:  # fmt: skip
    """The draft model with what `target` lends it.

    `settings.dtype` auto is int8 in the compiled decoder, bfloat16 elsewhere: how exactly a draft computes changes how
    often it is right, and no text. Raises `PairError` where `target` is not what it was trained for, `ConfigError`, and
    `ModelLoadError`.
    """
    place = device_named(device, "draft_device")
    state = draft.state(target.token_weights())
    spoken = len(state["lm_head.weight"])
    decoder: TargetModel | None = None
    obstacle = f"the draft runs on {str(place)!r}"
    if place.type == "cpu" and settings.dtype not in ("float16", "float64"):
        try:
            native = replace(settings, dtype="int8" if settings.dtype == "auto" else settings.dtype)
            decoder = load_native(draft.arch, state, None, native, spoken_size=spoken)
        except NativeUnavailable as error:
            obstacle = str(error)
            _LOG.warning("%s; taking the torch target for the draft", obstacle)
    if decoder is None:
        dtype = _TORCH_DTYPES.get("bfloat16" if settings.dtype == "auto" else settings.dtype)
        if dtype is None:
            raise ConfigError(
                f"draft_dtype {settings.dtype!r} needs the compiled decoder, but {obstacle}: use 'bfloat16'"
            )
        decoder = TorchDecoder(draft.arch, state, dtype=dtype, device=place, spoken_size=spoken)
    return decoder if draft.token_map is None else MappedModel(decoder, draft.token_map)
