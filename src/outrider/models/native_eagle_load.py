"""Packs an EAGLE-3 head for the compiled library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from outrider.core.records import TokenWeights
from outrider.models.eagle_shapes import checked_shapes, feature_taps
from outrider.models.heads import EagleConfig, Head
from outrider.models.native_library import Activations, Stream, chosen_isa, library, thread_count
from outrider.models.native_load import packed
from outrider.models.native_matrices import NativeLinear, NativeMatrices
from outrider.models.native_model import Floats, NativeModel, NativeSetup


@dataclass(frozen=True, eq=False)
class PackedEagle:
    """An EAGLE-3 head as the compiled library runs it."""

    model: NativeModel
    fusion: Fusion
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
    matrices = NativeMatrices(dtype, threads)
    order = None if head.token_map is None else torch.argsort(head.token_map.cpu())
    stream = Stream.NORMED_STATE if config.norm_before_residual else Stream.STATE
    setup = NativeSetup(
        dtype, Activations[dtype.upper()], chosen_isa(library()), thread_count(threads),
        len(_spoken(head, weights)), stream,
    )  # fmt: skip
    arch = replace(config.arch, layers=1, tied_head=False)
    return PackedEagle(
        packed(arch, _state(head, weights, order), None, setup),
        Fusion(head, feature_taps(config, num_layers), matrices),
        None if head.token_map is None else head.token_map.cpu()[order],
        config.norm_output,
    )


class Fusion:
    """The target's features in the form that entries take. `taps`: the columns of the features it is given."""

    def __init__(self, head: Head, read: Sequence[int], matrices: NativeMatrices) -> None:
        """`read`: the hidden states in the order of `fc`; may repeat one."""
        config, tensors = head.config, head.tensors
        assert isinstance(config, EagleConfig), "features belong to EAGLE heads"
        self.taps = tuple(dict.fromkeys(read))
        self._columns = [self.taps.index(tap) for tap in read]
        self._eps, self._hidden = config.arch.rms_eps, config.arch.hidden
        self._column_norms: torch.Tensor | None = None  # [columns, target hidden]
        if config.fc_norm:
            self._column_norms = torch.stack(
                [tensors[f"fc_norm.{i}.weight"].float() for i in range(len(read))]
            )
        self._norm = tensors["input_norm.weight"].float() if config.norm_before_fc else None
        self._fc: NativeLinear | None = None  # one feature of the head's own width needs no fusing
        if "fc.weight" in tensors:
            self._fc = matrices.linear(tensors["fc.weight"], tensors.get("fc.bias"))

    def __call__(self, features: Sequence[torch.Tensor]) -> Floats:  # [n, taps, target hidden] each
        """[rows of all, hidden]"""
        joined = torch.cat(list(features)) if len(features) > 1 else features[0]
        fused = joined.to("cpu", torch.float32)
        if self._columns != list(range(len(self.taps))):
            fused = torch.stack([fused[:, column] for column in self._columns], dim=1)
        if self._column_norms is not None:
            fused = self._normed(fused, self._column_norms)
        fused = fused.flatten(1)
        if self._norm is not None:
            fused = self._normed(fused, self._norm)
        states: Floats = (fused if self._fc is None else self._fc(fused)).numpy()
        return states

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape[-1:], None, self._eps) * weight


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
