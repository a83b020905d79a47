"""Writes small draft heads in the public formats, for the tests that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB, DRAFT_VOCAB, HIDDEN, TARGET_HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 40, 12, 8, 8, 16, 2, 1, 4
DRAFT_IDS = [0, 1, 3, 4, 7, 11, 12, 20, 21, 30, 38, 39]  # the target's id of each draft id

LAYER_CONFIG = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 2048, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
EAGLE1_CONFIG = {**LAYER_CONFIG, "architectures": ["LlamaForCausalLM"]}
EAGLE3_CONFIG = {
    **LAYER_CONFIG, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB,
}  # fmt: skip
SPECULATORS_CONFIG = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.6.0",
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": 3,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "verifier": {"name_or_path": "someone/target", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": LAYER_CONFIG,
    "draft_vocab_size": DRAFT_VOCAB,
    "norm_before_residual": True,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
    "embed_requires_grad": False,
}

State = dict[str, torch.Tensor]


def weight(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def layer_state(prefix: str, inputs: int) -> State:
    """The tensors of one decoder layer but for the norms before attention."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        f"{prefix}.self_attn.q_proj.weight": weight(queries, inputs),
        f"{prefix}.self_attn.k_proj.weight": weight(keys, inputs),
        f"{prefix}.self_attn.v_proj.weight": weight(keys, inputs),
        f"{prefix}.self_attn.o_proj.weight": weight(HIDDEN, queries),
        f"{prefix}.mlp.gate_proj.weight": weight(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": weight(INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": weight(HIDDEN, INTERMEDIATE),
        f"{prefix}.post_attention_layernorm.weight": weight(HIDDEN),
    }


def eagle1_state() -> State:
    return {
        "embed_tokens.weight": weight(VOCAB, HIDDEN),
        "fc.weight": weight(HIDDEN, 2 * HIDDEN),
        "fc.bias": weight(HIDDEN),
        **layer_state("layers.0", HIDDEN),
    }


def maps() -> State:
    """`d2t` (offsets) and `t2d` (marks) of `DRAFT_IDS`."""
    ids = torch.tensor(DRAFT_IDS)
    marks = torch.zeros(VOCAB, dtype=torch.bool)
    marks[ids] = True
    return {"d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": marks}


def eagle3_state(prefix: str = "midlayer", *, target_hidden: int = TARGET_HIDDEN) -> State:
    return {
        **layer_state(prefix, 2 * HIDDEN),
        f"{prefix}.hidden_norm.weight": weight(HIDDEN),
        f"{prefix}.input_layernorm.weight": weight(HIDDEN),
        "fc.weight": weight(HIDDEN, 3 * target_hidden),
        "norm.weight": weight(HIDDEN),
        "lm_head.weight": weight(DRAFT_VOCAB, HIDDEN),
        **maps(),
    }


def whole_vocabulary(state: State) -> State:
    """The same with an output matrix of all tokens, without a map of draft ids."""
    kept = {name: tensor for name, tensor in state.items() if name not in ("d2t", "t2d", "token_map")}
    return kept | {"lm_head.weight": weight(VOCAB, HIDDEN)}


def speculators_state() -> State:
    return {**eagle3_state("layers.0"), "embed_tokens.weight": weight(VOCAB, HIDDEN)}


def medusa_state(heads: int = 5, layers: int = 1, prefix: str = "") -> State:
    state = {}
    for head in range(heads):
        for layer in range(layers):
            state[f"{prefix}{head}.{layer}.linear.weight"] = weight(HIDDEN, HIDDEN)
            state[f"{prefix}{head}.{layer}.linear.bias"] = weight(HIDDEN)
        state[f"{prefix}{head}.{layers}.weight"] = weight(VOCAB, HIDDEN)
    return state


def vllm_medusa_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "medusa", "num_heads": 3, "num_hidden_layers": 2, "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "truncated_vocab_size": DRAFT_VOCAB, "medusa_fc_bias": False, "original_lm_head": False, **changes,
    }  # fmt: skip


def vllm_medusa_state(heads: int = 3, layers: int = 2, rows: int = DRAFT_VOCAB) -> State:
    blocks = {
        f"blocks.{head}.layers.{layer}.weight": weight(HIDDEN, HIDDEN)
        for head in range(heads)
        for layer in range(layers)
    }
    outs = {f"lm_heads.{head}.weight": weight(rows, HIDDEN) for head in range(heads)}
    return {**blocks, **outs, "token_map": torch.tensor(DRAFT_IDS)}


def write(
    folder: Path, config: Mapping[str, Any] | None, state: State, file: str = "model.safetensors"
) -> Path:
    """A folder with config.json (none for None) and one file of weights, pickled unless it is a .safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(state, folder / file)
    else:
        torch.save(state, folder / file)
    return folder


def write_shards(folder: Path, config: Mapping[str, Any], state: State, suffix: str) -> Path:
    """The same in two shards with an index; `suffix` is safetensors or bin."""
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(state)
    halves = {f"{stem}-0000{n + 1}-of-00002.{suffix}": names[n::2] for n in range(2)}
    for file, own in halves.items():
        write(folder, config, {name: state[name] for name in own}, file)
    index = {"weight_map": {name: file for file, own in halves.items() for name in own}}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


def same_tensors(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same names with the same bits."""
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in expected.items()
    )
