"""What tensors an EAGLE head has, which hidden states it reads, and whether a checkpoint fits its target."""

from __future__ import annotations

import math

import torch

from outrider.core.records import TokenWeights
from outrider.errors import ModelLoadError
from outrider.models.heads import EagleConfig, Head

_ATTENTION, _MLP = "layers.0.self_attn", "layers.0.mlp"
_EAGLE3_LAYERS = 4  # the fewest of a target whose default taps all exist


def feature_taps(config: EagleConfig, num_layers: int) -> tuple[int, ...]:
    """The hidden states that a head reads of a target of `num_layers`, in the order of `fc`; may repeat one.

    Raises `ModelLoadError` where the target has no such layers.
    """
    if not config.is_eagle3:
        return (num_layers,)
    if config.taps is None and num_layers < _EAGLE3_LAYERS:
        raise ModelLoadError(
            f"an EAGLE-3 head reads layer {num_layers - 3} of the {num_layers} of its target by default: "
            "name the layers in eagle_aux_hidden_state_layer_ids"
        )
    taps = config.taps or (2, num_layers // 2, num_layers - 3)
    wrong = [tap for tap in taps if not 0 <= tap <= num_layers]
    if wrong:
        raise ModelLoadError(
            f"the head reads layer {wrong[0]}, but the target has {num_layers}: it belongs to another target"
        )
    return taps


def tensor_shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a head of this shape, by its name in `Head.tensors`; own token matrices apart."""
    arch = config.arch
    hidden, inner = arch.hidden, arch.intermediate
    width, kv_width = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    taps = len(config.taps or (2, 0, 0)) if config.is_eagle3 else 1
    fused = taps * config.target_hidden if config.is_eagle3 else 2 * hidden
    seen = 2 * hidden if config.is_eagle3 else hidden
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, fused)}
    shapes |= {"fc.bias": (hidden,)} if config.fc_bias else {}
    rows = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
    shapes |= {f"{_ATTENTION}.{name}.weight": (count, seen) for name, count in rows.items()}
    shapes |= {f"{_ATTENTION}.{name}.bias": (count,) for name, count in rows.items() if arch.qkv_bias}
    shapes |= {f"{_ATTENTION}.o_proj.weight": (hidden, width)}
    shapes |= {f"{_ATTENTION}.o_proj.bias": (hidden,)} if arch.output_bias else {}
    if arch.qk_norm:
        shapes |= {f"{_ATTENTION}.{name}_norm.weight": (arch.head_dim,) for name in "qk"}
    for name, (out, given) in {
        "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)
    }.items():  # fmt: skip
        shapes[f"{_MLP}.{name}.weight"] = (out, given)
        shapes |= {f"{_MLP}.{name}.bias": (out,)} if arch.mlp_bias else {}
    shapes["layers.0.post_attention_layernorm.weight"] = (hidden,)
    if config.is_eagle3:
        norms = ("layers.0.input_layernorm", "layers.0.hidden_norm", "norm")
        shapes |= {f"{name}.weight": (hidden,) for name in norms}
        shapes["lm_head.weight"] = (config.draft_vocab, hidden)
        shapes |= {f"fc_norm.{i}.weight": (config.target_hidden,) for i in range(taps) if config.fc_norm}
        shapes |= {"input_norm.weight": (fused,)} if config.norm_before_fc else {}
    return shapes


def fresh_head(config: EagleConfig, *, seed: int, token_map: torch.Tensor | None = None) -> Head:
    """A head of this shape before any training: scaled normal matrices, zero biases, norms of one; float32."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 2:
            tensors[name] = torch.randn(shape, generator=generator) / math.sqrt(shape[1])
        else:
            tensors[name] = torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    return Head(config, tensors, token_map, name=f"fresh head {seed}")


def checked_shapes(head: Head, weights: TokenWeights) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that the head holds itself, token matrices apart.

    Raises `ModelLoadError` on a tensor that is missing or does not fit, and on a target of another width.
    """
    config = head.config
    assert isinstance(config, EagleConfig)
    hidden = config.arch.hidden
    shapes = tensor_shapes(config)
    if "lm_head.weight" not in head.tensors and config.draft_vocab == len(weights.head):
        shapes.pop("lm_head.weight", None)  # it speaks with the target's
    if "fc.weight" not in head.tensors and shapes["fc.weight"] == (hidden, hidden):
        del shapes["fc.weight"]  # one feature of the head's own width needs no fusing
    for name, shape in shapes.items():
        found = head.tensors.get(name)
        if found is None:
            raise ModelLoadError(f"{head.name}: tensor {name} is missing: the checkpoint is not a whole head")
        if tuple(found.shape) != shape:
            said = f"is {list(found.shape)}, but the configuration says {list(shape)}"
            raise ModelLoadError(f"{head.name}: tensor {name} {said}: repair the head's config")
    borrowed = {"final norm": (len(weights.norm), config.target_hidden)}
    if "embed_tokens.weight" not in head.tensors:
        borrowed["embedding"] = (weights.embedding.shape[1], hidden)
    if "lm_head.weight" not in shapes:
        borrowed["head"] = (weights.head.shape[1], hidden)
    for name, (width, wanted) in borrowed.items():
        if width != wanted:
            raise ModelLoadError(
                f"{head.name}: the target's {name} is {width} wide, the head needs {wanted}: load a head of this target"
            )
    return shapes
