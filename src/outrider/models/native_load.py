"""Builds a `NativeDecoder`: chooses weights and activations, feeds the library, starts its threads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from outrider.compiled.library import NativeError, NativeUnavailable, chosen_isa
from outrider.errors import ConfigError
from outrider.models.arch import Arch
from outrider.models.gguf import GGUFFile
from outrider.models.native import NativeDecoder
from outrider.models.native_library import (
    Activations,
    CacheType,
    Format,
    NativeLibrary,
    Shape,
    library,
    thread_count,
)
from outrider.models.native_model import NativeModel, NativeSetup
from outrider.models.native_weights import WeightFeed, stored_as_blocks
from outrider.models.settings import RunSettings
from outrider.models.taps import joined_taps
from outrider.models.weights import StateReader

_FORMATS = {
    "float32": Format.FLOAT32,
    "bfloat16": Format.BFLOAT16,
    "int8": Format.INT8,
    "int4": Format.INT4,
}


def load_native(
    arch: Arch, state: Mapping[str, torch.Tensor], file: GGUFFile | None, settings: RunSettings, *,
    spoken_size: int | None = None,
) -> NativeDecoder:  # fmt: skip
    """Packs a model. `file`: the GGUF file it comes from, whose blocks `dtype="gguf"` keeps; None for other sources.

    `dtype` auto: gguf for a file of blocks, else bfloat16. `activations` auto: float32 for float32 weights, else
    bfloat16. `threads` None: one for each core of this process. `spoken_size`: rows of `lm_head.weight`, where a draft
    model speaks fewer tokens than it reads; None: all. Raises `NativeUnavailable`, `ConfigError`, or `ModelLoadError`
    naming a tensor that does not fit.
    """
    assert spoken_size is None or not arch.tied_head, "a tied head has the rows of the embedding"
    isa = chosen_isa(library().instruction_sets())
    joined_taps((), settings.taps, arch.layers)  # before anything costly
    dtype = chosen_dtype(settings.dtype, file)
    rounding = chosen_activations(settings.activations, dtype)
    setup = NativeSetup(dtype, rounding, isa, thread_count(settings.threads), spoken_size or arch.vocab_size)
    model = packed(arch, state, file if dtype == "gguf" else None, setup)
    if file is not None:
        file.forget_pages()
    norm = state["model.norm.weight"].detach().to(torch.float32)
    return NativeDecoder(model, norm, settings.taps)


def packed(
    arch: Arch, state: Mapping[str, torch.Tensor], file: GGUFFile | None, setup: NativeSetup
) -> NativeModel:
    """The weights in the compiled library; blocks of a `file` as they are. Raises as `load_native`."""
    opened = library()
    try:
        model = opened.create(_shape(arch, setup), setup.isa)
    except NativeError as error:
        raise NativeUnavailable(f"the compiled decoder does not run this model ({error})") from None
    try:
        _fill(opened, model, arch, state, file, setup)
        opened.finish(model)
    except BaseException:
        opened.destroy(model)
        raise
    return NativeModel(opened, model, arch, setup)


def chosen_dtype(dtype: str, file: GGUFFile | None) -> str:
    """What `dtype` means for this model. Raises `ConfigError` on gguf for a model that has no blocks."""
    if dtype == "auto":
        return "gguf" if file is not None and stored_as_blocks(file) else "bfloat16"
    if dtype == "gguf" and file is None:
        raise ConfigError(
            "dtype 'gguf' keeps the blocks of a GGUF file, and this model is none: use 'bfloat16'"
        )
    assert dtype == "gguf" or dtype in _FORMATS, "`load` asks for no dtype that the decoder lacks"
    return dtype


def chosen_activations(activations: str, dtype: str) -> Activations:
    """What `activations` means for these weights. Raises `ConfigError` on a pair that has no kernel."""
    if activations == "auto":
        return Activations.FLOAT32 if dtype == "float32" else Activations.BFLOAT16
    if (activations == "float32") != (dtype == "float32"):
        remedy = (
            "use float32 activations"
            if dtype == "float32"
            else "use dtype 'float32', or leave them at 'auto'"
        )
        raise ConfigError(f"activations {activations!r} do not go with dtype {dtype!r}: {remedy}")
    if activations == "int8" and dtype == "bfloat16":
        raise ConfigError(
            "activations 'int8' do not go with dtype 'bfloat16': use dtype 'int8', 'int4' or 'gguf'"
        )
    return Activations[activations.upper()]


def _shape(arch: Arch, setup: NativeSetup) -> Shape:
    cache = CacheType.FLOAT32 if setup.dtype == "float32" else CacheType.BFLOAT16
    inputs, columns = (setup.fusing.inputs, setup.fusing.columns) if setup.fusing else (0, 0)
    return Shape(
        arch.layers, arch.hidden, arch.intermediate, arch.heads, arch.kv_heads, arch.head_dim, arch.vocab_size,
        setup.spoken_size, setup.stream, inputs, columns, setup.activations, cache, setup.threads, arch.rms_eps,
    )  # fmt: skip


def _fill(
    opened: NativeLibrary, model: int, arch: Arch, state: Mapping[str, torch.Tensor], file: GGUFFile | None,
    setup: NativeSetup,
) -> None:  # fmt: skip
    reader = StateReader(state, torch.float32)
    if file is not None:  # what the file does not keep as blocks
        plain = Format.INT8 if setup.activations is Activations.INT8 else Format.BFLOAT16
        feed = WeightFeed(opened, model, plain, setup)
        feed.blocks(arch, reader, file)
    else:
        feed = WeightFeed(opened, model, _FORMATS[setup.dtype], setup)
        feed.numbers(arch, reader)
    feed.vectors(arch, reader)
    reader.forget("lm_head.weight")
    reader.finish()
