"""Reading architectures: both spellings of a config, and a refusal by name for whatever is not computed."""

from __future__ import annotations

import math

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from outrider.errors import ModelLoadError
from outrider.models.arch import Arch, RopeKind, RopeScaling, UnsupportedArchitecture

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": True,
}
GGUF = {
    "general.architecture": "qwen2",
    "qwen2.block_count": 2,
    "qwen2.context_length": 512,
    "qwen2.embedding_length": 64,
    "qwen2.feed_forward_length": 96,
    "qwen2.attention.head_count": 4,
    "qwen2.attention.head_count_kv": 2,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen2.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": ["a"] * 100,
}


def test_a_llama_config_is_read_in_full():
    assert Arch.from_config(LLAMA) == Arch(
        family="llama", layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, vocab_size=100,
        rms_eps=1e-5, rope_theta=5000.0, rope_scaling=RopeScaling(), qkv_bias=False, output_bias=False, mlp_bias=False,
        qk_norm=False, tied_head=True, max_positions=512,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "traits"),
    [
        (LlamaConfig(), ("llama", False, False, False)),
        (LlamaConfig(attention_bias=True), ("llama", True, True, False)),
        (MistralConfig(sliding_window=None), ("mistral", False, False, False)),
        (Qwen2Config(), ("qwen2", True, False, False)),
        (Qwen3Config(), ("qwen3", False, False, True)),
    ],
)
def test_each_family_has_its_biases_and_norms(config, traits):
    arch = Arch.from_config(config.to_dict())
    assert (arch.family, arch.qkv_bias, arch.output_bias, arch.qk_norm) == traits


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_both_spellings_of_rope_settings(key: str):
    settings = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
    arch = Arch.from_config({**LLAMA, key: settings})
    assert arch.rope_scaling == RopeScaling(RopeKind.LINEAR, 2.0)
    assert arch.rope_theta == 777.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_multiplier", 0.5), ("logits_scaling", 8.0), ("logit_scale", 0.0625), ("residual_multiplier", 0.2),
        ("embedding_multiplier", 12.0), ("partial_rotary_factor", 0.5), ("final_logit_softcapping", 30.0),
        ("hidden_act", "gelu"), ("model_type", "gemma"), ("quantization_config", {"quant_method": "gptq"}),
        ("layer_types", ["full_attention", "linear_attention"]),
    ],
)  # fmt: skip
def test_a_field_that_would_change_the_maths_is_refused_by_name(key: str, value: object):
    with pytest.raises(UnsupportedArchitecture, match=key):
        Arch.from_config({**LLAMA, key: value})


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_an_unknown_rope_scaling_is_refused_by_name(kind: str):
    with pytest.raises(UnsupportedArchitecture, match=kind):
        Arch.from_config({**LLAMA, "rope_parameters": {"rope_type": kind, "factor": 2.0}})


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-5, 0.0, "1e-5", True])
@pytest.mark.parametrize(
    "key", ["rms_norm_eps", "rope_theta", "num_hidden_layers", "hidden_size", "vocab_size"]
)
def test_a_bad_number_is_named_with_its_key(key: str, value: object):
    with pytest.raises(ModelLoadError) as caught:
        Arch.from_config({**LLAMA, key: value})
    assert f"{key} must be" in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_number_inside_the_rope_settings_is_named():
    with pytest.raises(ModelLoadError, match="factor must be a finite number above 0, not nan"):
        Arch.from_config({**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": math.nan}})


def test_a_missing_key_is_named():
    with pytest.raises(ModelLoadError, match="num_attention_heads must be a whole number above 0, not None"):
        Arch.from_config({k: v for k, v in LLAMA.items() if k != "num_attention_heads"})


@pytest.mark.parametrize(
    "extra",
    [
        {"model_type": "mistral", "sliding_window": 128},
        {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True},
        {"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]},
        {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True,
         "layer_types": ["full_attention", "sliding_attention"]},
    ],
)  # fmt: skip
def test_a_sliding_window_is_refused(extra: dict[str, object]):
    with pytest.raises(UnsupportedArchitecture, match=r"SomeForCausalLM: sliding_window 128.*target='hf'"):
        Arch.from_config({**LLAMA, **extra, "architectures": ["SomeForCausalLM"]})
    with pytest.raises(
        UnsupportedArchitecture, match="sliding_window 128 is below the 512 positions"
    ) as said:
        Arch.from_config({**LLAMA, **extra, "architectures": None})
    assert str(said.value).startswith(str(extra.get("model_type", "llama")))


@pytest.mark.parametrize("value", ["gptq", ["gptq"], 4])
def test_a_quantization_config_that_is_no_table_is_named(value: object):
    with pytest.raises(ModelLoadError, match="quantization_config must be a table of settings, not"):
        Arch.from_config({**LLAMA, "quantization_config": value})


@pytest.mark.parametrize(
    "extra",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 512},
        {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False},
        {
            "model_type": "qwen2",
            "sliding_window": 128,
            "use_sliding_window": True,
            "layer_types": ["full_attention"] * 2,
        },
    ],
)
def test_a_window_that_cuts_nothing_is_taken(extra: dict[str, object]):
    assert Arch.from_config({**LLAMA, **extra}).max_positions == 512


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(
        ModelLoadError, match="num_attention_heads 4 is not a multiple of num_key_value_heads 3"
    ):
        Arch.from_config({**LLAMA, "num_key_value_heads": 3})


def test_gguf_metadata_is_read_in_full():
    names = frozenset({"token_embd.weight", "blk.0.attn_q.bias", "output.weight"})
    assert Arch.from_gguf(GGUF, names) == Arch(
        family="qwen2", layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, vocab_size=100,
        rms_eps=1e-6, rope_theta=1e6, rope_scaling=RopeScaling(), qkv_bias=True, output_bias=False, mlp_bias=False,
        qk_norm=False, tied_head=False, max_positions=512,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "mamba"), ("qwen2.rope.scaling.type", "yarn"), ("qwen2.rope.dimension_count", 8),
        ("qwen2.attention.layer_norm_rms_epsilon", math.nan), ("qwen2.attention.sliding_window", 64),
        ("qwen2.block_count", 0),
    ],
)  # fmt: skip
def test_gguf_metadata_that_cannot_be_honoured_is_refused_by_name(key: str, value: object):
    with pytest.raises(ModelLoadError, match=key.removeprefix("qwen2.")):
        Arch.from_gguf({**GGUF, key: value}, frozenset())


def test_scaled_frequencies_in_a_gguf_file_are_refused():
    with pytest.raises(UnsupportedArchitecture, match=r"rope_freqs\.weight"):
        Arch.from_gguf(GGUF, frozenset({"rope_freqs.weight"}))
