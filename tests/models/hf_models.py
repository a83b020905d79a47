"""Tiny random transformers models, and what the tests of `HfTarget` do with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers

from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, RoundResult, Scores
from outrider.core.tree import TokenTree
from outrider.models.hf import HfTarget

VOCAB = 48


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


SLIDING = {"sliding_window": 5}


LOCAL = {
    **SLIDING,
    "head_dim": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


GPT2 = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": VOCAB,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SMALL),
    "mistral": ("MistralForCausalLM", {**SMALL, "sliding_window": None}),
    "mistral_window": ("MistralForCausalLM", {**SMALL, **SLIDING}),
    "qwen2": ("Qwen2ForCausalLM", SMALL),
    "qwen3": ("Qwen3ForCausalLM", {**SMALL, "head_dim": 8}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, **LOCAL, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3ForCausalLM", {**SMALL, **LOCAL, "query_pre_attn_scalar": 8}),
}


PROMPT = [7, 3, 44, 9, 9, 1, 30, 12, 5, 21]


TREE = TokenTree((4, 6, 8, 4, 11, 2), (None, None, 0, 1, 1, 3))


@cache
def model(name: str, attention: str | None = None) -> Any:
    """A random float64 model, wide enough in its weights that every context gives other logits."""
    class_name, settings = MODELS[name]
    kind = getattr(transformers, class_name)
    config = kind.config_class(**settings)
    if attention is not None:
        config._attn_implementation = attention
    torch.manual_seed(0)
    return kind(config).to(torch.float64).eval()


@torch.no_grad()
def plain(name: str, tokens: list[int], attention: str | None = None) -> torch.Tensor:
    """Logits [n, vocab] of one forward without any cache."""
    return model(name, attention)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def drafted(tree: TokenTree) -> Draft:
    return Draft.tree(tree.tokens, tree.parents)


def context(tokens: list[int], sequence_id: int = 0) -> Context:
    return Context.of(tokens, sequence_id=sequence_id)


def score(target: HfTarget, tokens: list[int], tree: TokenTree, sequence_id: int = 0) -> Scores:
    """Brings the cache to tokens[:-1], then scores the tree below the last one."""
    missing = tokens[target.cached_length(sequence_id) : -1]
    target.extend([Chunk(sequence_id, missing)])
    return target.score([context(tokens, sequence_id)], [drafted(tree)])[0]


def commit(target: HfTarget, scores: Scores, tree: TokenTree, path: tuple[int, ...], last: int) -> None:
    emitted = (*(tree.tokens[node] for node in path), last)
    target.commit([RoundResult(0, emitted, path, drafted(tree), scores)])


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    # transformers' eager attention takes the softmax in float32 even in a float64 model; other rows differ by 0.1.
    return bool((left - right).abs().max() < 1e-5)


def number_of_hooks(held: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in held.modules())
