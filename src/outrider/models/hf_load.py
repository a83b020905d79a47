"""Builds a transformers model from a GGUF file or a folder, through Outrider's own reader for the former."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from outrider.errors import ModelLoadError
from outrider.models.arch import Arch
from outrider.models.arch_config import arch_config
from outrider.models.load import ModelSource, SourceKind, load_arch, load_state


def build_model(source: ModelSource, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal language model in evaluation mode. Raises `ModelLoadError` in one line."""
    try:
        with _quiet():
            model = _of_gguf(source, dtype) if source.kind is SourceKind.GGUF else _of_folder(source, dtype)
    except ModelLoadError:
        raise
    except Exception as error:  # whatever third-party loading code raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelLoadError(f"{source.path}: transformers cannot load it: {reason[:300]}") from None
    return model.to(device).eval()


def _of_gguf(source: ModelSource, dtype: torch.dtype) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = config_of(load_arch(source))
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return _complete(
        kind.from_pretrained(
            None, config=config, state_dict=dict(load_state(source)), dtype=dtype, output_loading_info=True
        )
    )


def _of_folder(source: ModelSource, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source.path, local_files_only=True)
    if config.is_encoder_decoder:
        name = (config.architectures or [type(config).__name__])[0]
        raise ModelLoadError(f"{name} is an encoder-decoder model; use a decoder-only (causal) model")
    return _complete(
        AutoModelForCausalLM.from_pretrained(
            source.path, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    )


def _complete(loaded: tuple[Any, Mapping[str, Any]]) -> Any:
    """The model of a load that found every weight; transformers fills what is missing with random numbers."""
    model, report = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        names = sorted(str(name) for name in report.get(problem, ()))
        if names:
            kind = problem.split("_")[0]
            raise ModelLoadError(
                f"the checkpoint does not fit {type(model).__name__}: {kind} {names[0]} ({len(names)} in all); "
                "download it again"
            )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar, and its advice to authors of its own code."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def config_of(arch: Arch) -> Any:
    """The transformers configuration of an architecture that was read from GGUF metadata."""
    from transformers import AutoConfig

    settings = {**arch_config(arch), "sliding_window": None, "pad_token_id": None}
    family = settings.pop("model_type")
    if settings["rope_scaling"] is None:
        del settings["rope_scaling"]
    if family == "qwen2":
        del settings["attention_bias"], settings["mlp_bias"]
    else:  # a bias that the file lacks is then missed by its name
        settings["attention_bias"] = arch.qkv_bias
    return AutoConfig.for_model(family, **settings)
