"""Exit heads on disk: our own form, since no other trainer writes them.

config.json: `model_type` outrider_exit_head, `exit_layer`, the sizes, and `target` (what it was trained for). Tensors:
those of the head, and `d2t` and `t2d` as in EAGLE-3 where it speaks a part of the vocabulary. The output rows are the
target's and are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from outrider.errors import ModelLoadError
from outrider.models.exit_head import exit_shapes
from outrider.models.head_formats.form import HeadForm, dtype_name
from outrider.models.head_formats.settings import count
from outrider.models.head_formats.tensors import HeadTensors
from outrider.models.head_formats.vocabulary import d2t_of, read_offsets, t2d_of
from outrider.models.heads import ExitConfig, Head

EXIT_TYPE = "outrider_exit_head"


def is_exit(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is an exit head's."""
    return config.get("model_type") == EXIT_TYPE


def read_exit(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> Head:
    """An exit head. Raises `ModelLoadError` naming the key or the tensor that does not fit."""
    vocab_size = _needed(config, "vocab_size")
    shape = ExitConfig(
        exit_layer=_needed(config, "exit_layer"),
        hidden=_needed(config, "hidden_size"),
        intermediate=_needed(config, "intermediate_size"),
        vocab_size=vocab_size,
        draft_vocab=count(config, "draft_vocab_size") or vocab_size,
    )
    tensors, findings = HeadTensors(state, str), list[str]()
    for tensor, sizes in exit_shapes(shape).items():
        tensors.take(tensor, *sizes)
    token_map = read_offsets(tensors, shape.draft_vocab, vocab_size, findings)
    return Head(shape, tensors.finish("an exit head"), token_map, name, tuple(findings))


def exit_form(head: Head, config: ExitConfig, target: str | None) -> HeadForm:
    """`target`: the name of the model that it was trained for."""
    settings = {
        "architectures": ["OutriderExitHead"],
        "model_type": EXIT_TYPE,
        "target": target,
        "exit_layer": config.exit_layer,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab,
        "torch_dtype": dtype_name(head.tensors["norm.weight"]),
    }
    tensors = dict(head.tensors)
    if head.token_map is not None:
        tensors |= {"d2t": d2t_of(head.token_map), "t2d": t2d_of(head.token_map, config.vocab_size)}
    return HeadForm(settings, tensors)


def _needed(config: Mapping[str, Any], key: str) -> int:
    value = count(config, key)
    if value is None:
        raise ModelLoadError(f"config.json has no {key}: download the head again")
    return value
