"""Packs an EAGLE-3 head for the compiled library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from outrider.compiled.library import chosen_isa
from outrider.core.records import TokenWeights
from outrider.errors import ConfigError
from outrider.models.eagle_shapes import checked_shapes, feature_taps
from outrider.models.heads import EagleConfig, Head
from outrider.models.native_library import Activations, Stream, library, thread_count
from outrider.models.native_load import packed
from outrider.models.native_matrices import FORMATS
from outrider.models.native_model import Floats, Fusing, NativeModel, NativeSetup


@dataclass(frozen=True, eq=False)
class PackedEagle:
    """An EAGLE-3 head as the compiled library runs it."""

    model: NativeModel
    reading: Reading
    token_map: torch.Tensor | None  # [draft vocab] int64, ascending: the target's ids of the columns of rows
    norm_output: bool  # whether the next step is fed the state after the final norm


def pack_eagle(
    head: Head, weights: TokenWeights, *, num_layers: int, dtype: str = "int8", threads: int | None = None
) -> PackedEagle:
    """`weights` and `num_layers`: the target's. `dtype`: float32, bfloat16 or int8 (also what inputs are rounded to).

    Raises `ModelLoadError` naming a tensor that does not fit, and `NativeUnavailable` where the library is not there.
    """
    config = head.config
    assert isinstance(config, EagleConfig), "an EAGLE head has an EAGLE configuration"
    assert config.is_eagle3, "EAGLE-1 and 2 have no compiled pass"
    checked_shapes(head, weights)
    if dtype not in FORMATS:
        raise ConfigError(f"draft_dtype must be one of {', '.join(FORMATS)} here, not {dtype!r}")
    read = feature_taps(config, num_layers)
    fusing = _fusing(head, len(read))
    order = None if head.token_map is None else torch.argsort(head.token_map.cpu())
    stream = Stream.NORMED_STATE if config.norm_before_residual else Stream.STATE
    setup = NativeSetup(
        dtype, Activations[dtype.upper()], chosen_isa(library().instruction_sets()), thread_count(threads),
        len(_spoken(head, weights)), stream, fusing,
    )  # fmt: skip
    arch = replace(config.arch, layers=1, tied_head=False)
    return PackedEagle(
        packed(arch, _state(head, weights, order) | _fusing_state(head, fusing), None, setup),
        Reading(read),
        None if head.token_map is None else head.token_map.cpu()[order],
        config.norm_output,
    )


class Reading:
    """The target's features in the order in which the head reads them. `taps`: the columns of those it is given."""

    def __init__(self, read: Sequence[int]) -> None:
        """`read`: the hidden states in the order of `fc`; may repeat one."""
        self.taps = tuple(dict.fromkeys(read))
        columns = [self.taps.index(tap) for tap in read]
        self._columns = None if columns == list(range(len(self.taps))) else columns

    def __call__(self, features: Sequence[torch.Tensor]) -> Floats:  # [n, taps, target hidden] each
        """[rows of all, columns read x target hidden], contiguous."""
        joined = torch.cat(list(features)) if len(features) > 1 else features[0]
        read: Floats = joined.to("cpu", torch.float32).numpy()
        if self._columns is not None:
            read = read[:, self._columns]
        rows, columns, width = read.shape
        return np.ascontiguousarray(read).reshape(rows, columns * width)


def _fusing(head: Head, columns: int) -> Fusing:
    config, tensors = head.config, head.tensors
    assert isinstance(config, EagleConfig), "features belong to EAGLE heads"
    return Fusing(
        columns * config.target_hidden, columns, config.fc_norm, config.norm_before_fc,
        "fc.weight" in tensors, "fc.bias" in tensors,
    )  # fmt: skip


def _fusing_state(head: Head, fusing: Fusing) -> dict[str, torch.Tensor]:
    tensors = head.tensors
    state = {f"model.fuse.{name[3:]}": tensor for name, tensor in tensors.items() if name.startswith("fc.")}
    if fusing.has_column_norms:
        norms = [tensors[f"fc_norm.{column}.weight"] for column in range(fusing.columns)]
        state["model.column_norms"] = torch.cat(norms)
    if fusing.has_feature_norm:
        state["model.feature_norm"] = tensors["input_norm.weight"]
    return state


def _spoken(head: Head, weights: TokenWeights) -> torch.Tensor:  # [draft vocab, hidden]
    own = head.tensors.get("lm_head.weight")
    return weights.head if own is None else own


def _state(head: Head, weights: TokenWeights, order: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The head's tensors under the names of a decoder of one layer, the rows of its head in `order`."""
    spoken = _spoken(head, weights).cpu()
    layer = {f"model.{name}": tensor for name, tensor in head.tensors.items() if name.startswith("layers.0.")}
    norm_of_tokens = layer["model.layers.0.input_layernorm.weight"]
    norm_of_states = layer.pop("model.layers.0.hidden_norm.weight")
    return layer | {
        "model.embed_tokens.weight": head.tensors.get("embed_tokens.weight", weights.embedding),
        "model.token_norm.weight": norm_of_tokens,
        "model.layers.0.input_layernorm.weight": norm_of_states,
        "model.norm.weight": head.tensors["norm.weight"],
        "lm_head.weight": spoken if order is None else spoken[order],
    }
