"""`Arch`: the shape and the numbers of one Llama-family decoder, read from a config.json or from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from outrider.errors import ModelLoadError
from outrider.models.arch_settings import count, flag, positive

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
BORROWING_TYPE = "outrider_draft"  # `model_type` of drafts that are no model without their target
_GGUF_FAMILIES = ("llama", "qwen2", "qwen3")  # Mistral models are written as llama

# Fields that change the maths in models this decoder does not implement, with the value that leaves it unchanged.
_NEUTRAL: Mapping[str, float] = {
    "attention_multiplier": 1.0,
    "attn_logit_softcapping": 0.0,
    "embedding_multiplier": 1.0,
    "embedding_scale": 1.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "partial_rotary_factor": 1.0,
    "residual_multiplier": 1.0,
    "no_rope_layer_interval": 0.0,
}


class UnsupportedArchitecture(ModelLoadError):
    """The model is sound, but this decoder does not compute what it asks for; `target="hf"` may."""


class RopeKind(Enum):
    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched; the last three fields matter to `LLAMA3` alone."""

    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class Arch:
    """Everything the decoder must know beside the weights. All numbers are checked at construction from outside."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_head: bool
    max_positions: int

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Arch:
        """Reads the contents of a Hugging Face config.json (transformers 4 or 5 spelling).

        Raises `ModelLoadError` on a malformed number, naming key and value, and `UnsupportedArchitecture` on a
        setting that the decoder does not compute.
        """
        family = config.get("model_type")
        if family == BORROWING_TYPE:
            raise ModelLoadError(
                "these are the layers of a draft, which borrow the rest from their target: give them as 'model' of "
                "method 'draft_model'"
            )
        if family not in FAMILIES:
            raise UnsupportedArchitecture(
                f"model_type {family!r} is not one of {', '.join(FAMILIES)}: use target='hf' for other families"
            )
        _refuse_foreign_maths(config)
        heads = count(config, "num_attention_heads")
        hidden = count(config, "hidden_size")
        max_positions = count(config, "max_position_embeddings")
        _refuse_window(config, family, max_positions)
        attention_bias = flag(config, "attention_bias", default=False)
        arch = Arch(
            family=family,
            layers=count(config, "num_hidden_layers"),
            hidden=hidden,
            intermediate=count(config, "intermediate_size"),
            heads=heads,
            kv_heads=count(config, "num_key_value_heads", default=heads),
            head_dim=count(config, "head_dim", default=hidden // heads),
            vocab_size=count(config, "vocab_size"),
            rms_eps=positive(config, "rms_norm_eps", default=1e-6),
            rope_theta=_rope_theta(config),
            rope_scaling=_rope_scaling(config, max_positions),
            qkv_bias=attention_bias or family == "qwen2",
            output_bias=attention_bias and family in ("llama", "qwen3"),
            mlp_bias=flag(config, "mlp_bias", default=False),
            qk_norm=family == "qwen3",
            tied_head=flag(config, "tie_word_embeddings", default=False),
            max_positions=max_positions,
        )
        return _checked(arch)

    @staticmethod
    def from_gguf(metadata: Mapping[str, Any], tensor_names: frozenset[str]) -> Arch:
        """Reads GGUF metadata; biases, norms and a tied head are told by which tensors the file holds."""
        family = _gguf_family(metadata, tensor_names)
        keys = {key.removeprefix(f"{family}."): value for key, value in metadata.items()}
        heads = count(keys, "attention.head_count")
        hidden = count(keys, "embedding_length")
        head_dim = count(keys, "attention.key_length", default=hidden // heads)
        max_positions = count(keys, "context_length")
        _refuse_foreign_keys(keys, family, head_dim, max_positions)
        vocab = keys.get("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ()))
        arch = Arch(
            family=family,
            layers=count(keys, "block_count"),
            hidden=hidden,
            intermediate=count(keys, "feed_forward_length"),
            heads=heads,
            kv_heads=count(keys, "attention.head_count_kv", default=heads),
            head_dim=head_dim,
            vocab_size=count({"vocab_size": vocab}, "vocab_size"),
            rms_eps=positive(keys, "attention.layer_norm_rms_epsilon"),
            rope_theta=positive(keys, "rope.freq_base", default=10000.0),
            rope_scaling=_gguf_scaling(keys),
            qkv_bias="blk.0.attn_q.bias" in tensor_names,
            output_bias="blk.0.attn_output.bias" in tensor_names,
            mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
            qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
            tied_head="output.weight" not in tensor_names,
            max_positions=max_positions,
        )
        return _checked(arch)


def _gguf_family(metadata: Mapping[str, Any], tensor_names: frozenset[str]) -> str:
    family = metadata.get("general.architecture")
    if family not in _GGUF_FAMILIES:
        raise UnsupportedArchitecture(
            f"general.architecture {family!r} is not one of {', '.join(_GGUF_FAMILIES)}: convert the model to a "
            "folder of safetensors and use target='hf'"
        )
    if "rope_freqs.weight" in tensor_names:
        raise UnsupportedArchitecture(
            "rope_freqs.weight (scaled rotary frequencies) is not read from GGUF: load the safetensors instead"
        )
    return str(family)


def _refuse_foreign_keys(keys: Mapping[str, Any], family: str, head_dim: int, max_positions: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        if count(keys, key, default=head_dim) != head_dim:
            raise UnsupportedArchitecture(f"{key} {keys[key]} differs from the head size {head_dim}")
    window = keys.get("attention.sliding_window")
    if window is not None and count(keys, "attention.sliding_window") < max_positions:
        raise UnsupportedArchitecture(
            f"{family}: attention.sliding_window {window!r} is below the {max_positions} positions of the model "
            "and is not honoured from GGUF: use a folder of safetensors with target='hf'"
        )


def _checked(arch: Arch) -> Arch:
    if arch.heads % arch.kv_heads:
        raise ModelLoadError(
            f"num_attention_heads {arch.heads} is not a multiple of num_key_value_heads {arch.kv_heads}"
        )
    if arch.head_dim % 2:
        raise ModelLoadError(f"head_dim {arch.head_dim} is odd: rotary embedding needs an even one")
    return arch


def _refuse_foreign_maths(config: Mapping[str, Any]) -> None:
    for key, neutral in _NEUTRAL.items():
        value = config.get(key)
        if value is not None and value != neutral:
            raise UnsupportedArchitecture(
                f"{key} {value!r} is not supported by the torch target: use target='hf'"
            )
    act = config.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise UnsupportedArchitecture(
            f"hidden_act {act!r} is not supported by the torch target: use target='hf'"
        )
    quantisation = config.get("quantization_config")
    if quantisation is not None:
        if not isinstance(quantisation, Mapping):
            raise ModelLoadError(
                f"quantization_config must be a table of settings, not {quantisation!r}: repair the model's config"
            )
        method = quantisation.get("quant_method", "unknown")
        raise UnsupportedArchitecture(
            f"quantization_config {method!r} is not supported: load the unquantised weights"
        )


def _refuse_window(config: Mapping[str, Any], family: str, max_positions: int) -> None:
    window = config.get("sliding_window")
    types = config.get("layer_types")
    odd = [kind for kind in types or () if kind not in ("full_attention", "sliding_attention")]
    if odd:
        raise UnsupportedArchitecture(
            f"layer_types {odd[0]!r} is not supported by the torch target: use target='hf'"
        )
    if window is None or (types is not None and "sliding_attention" not in types):
        return
    if not flag(config, "use_sliding_window", default=family == "mistral" or types is not None):
        return
    if count(config, "sliding_window") < max_positions:
        classes = config.get("architectures")
        name = classes[0] if isinstance(classes, list) and classes else family
        raise UnsupportedArchitecture(
            f"{name}: sliding_window {window!r} is below the {max_positions} positions of the model, and the torch "
            "target honours no windows: use target='hf'"
        )


def _rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope settings: `rope_parameters` in transformers 5, `rope_scaling` before."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise ModelLoadError(f"rope_scaling must be a table of settings, not {found!r}")
    return found


def _rope_theta(config: Mapping[str, Any]) -> float:
    parameters = _rope_parameters(config)
    return positive(parameters if "rope_theta" in parameters else config, "rope_theta", default=10000.0)


def _rope_scaling(config: Mapping[str, Any], max_positions: int) -> RopeScaling:
    parameters = _rope_parameters(config)
    name = parameters.get("rope_type", parameters.get("type", "default"))
    if name not in [kind.value for kind in RopeKind]:
        raise UnsupportedArchitecture(
            f"rope scaling {name!r} is not supported by the torch target: use target='hf'"
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        value = parameters["partial_rotary_factor"]
        raise UnsupportedArchitecture(f"partial_rotary_factor {value!r} is not supported: use target='hf'")
    kind = RopeKind(name)
    if kind is RopeKind.DEFAULT:
        return RopeScaling()
    if kind is RopeKind.LINEAR:
        return RopeScaling(kind, positive(parameters, "factor"))
    return RopeScaling(
        kind,
        positive(parameters, "factor"),
        positive(parameters, "low_freq_factor"),
        positive(parameters, "high_freq_factor"),
        count(parameters, "original_max_position_embeddings", default=max_positions),
    )


def _gguf_scaling(keys: Mapping[str, Any]) -> RopeScaling:
    name = keys.get("rope.scaling.type", "none")
    if name == "linear":
        return RopeScaling(RopeKind.LINEAR, positive(keys, "rope.scaling.factor"))
    if name != "none":
        raise UnsupportedArchitecture(
            f"rope.scaling.type {name!r} is not supported: load the safetensors instead"
        )
    return RopeScaling()
