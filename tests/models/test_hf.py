"""`HfTarget` over tiny random transformers models: caches, rollback, trees, taps, refusals."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

import outrider
from outrider import LLM, SamplingParams
from outrider.core.protocols import Chunk, LayeredTarget
from outrider.core.records import Context, Draft, RoundResult, Scores
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError, ModelLoadError, ParameterError
from outrider.models.arch import Arch
from outrider.models.hf import HfTarget, load_hf
from outrider.models.load import ModelSource, SourceKind
from outrider.testing.contract import check_target
from outrider.text import Tokenizer

PROMPTS = Path(__file__).parents[1] / "data" / "prompts.json"
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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads only get in each other's way on models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


def test_the_target_keeps_the_protocol(name: str) -> None:
    target = HfTarget.wrap(model(name))
    assert isinstance(target, LayeredTarget)
    assert target.vocab_size == VOCAB
    assert target.max_length == 64
    assert target.supports_trees
    assert not target.row_invariant
    assert target.cached_length(5) == 0


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_the_shipped_contract_holds(name: str) -> None:
    target = HfTarget.wrap(model(name))
    check_target(lambda: target, tolerance=1e-5)


def test_a_chain_scores_as_the_plain_forward(name: str) -> None:
    tokens = [*PROMPT, 2, 13, 40]
    scores = score(HfTarget.wrap(model(name)), PROMPT, TokenTree.chain(tokens[len(PROMPT) :]))
    assert close(scores.logits, plain(name, tokens)[len(PROMPT) - 1 :])


def test_chunks_of_any_size_equal_one(name: str) -> None:
    target = HfTarget.wrap(model(name))
    for size in (1, 2, 3, 4):
        for start in range(0, len(PROMPT) - 1, size):
            target.extend([Chunk(size, PROMPT[start : min(start + size, len(PROMPT) - 1)])])
        assert target.cached_length(size) == len(PROMPT) - 1
        scores = target.score([context(PROMPT, size)], [drafted(TokenTree.chain(()))])[0]
        assert close(scores.logits, plain(name, PROMPT)[-1:])


def test_a_long_chunk_is_read_in_passes_of_bounded_width() -> None:
    config = transformers.LlamaConfig(**{**SMALL, "max_position_embeddings": 1024})
    torch.manual_seed(0)
    held = transformers.LlamaForCausalLM(config).double().eval()
    tokens = [(7 * i * i + i) % VOCAB for i in range(601)]
    target = HfTarget.wrap(held, taps=(1,))
    widths: list[int] = []
    handle = held.model.layers[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    [features] = target.extend([Chunk(0, tokens[:-1])])
    handle.remove()
    assert widths == [256, 256, 88]
    assert target.cached_length(0) == 600
    with torch.no_grad():
        whole = held(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    assert close(features[:, 0], whole.hidden_states[1][0, :-1])
    assert close(score(target, tokens, TokenTree.chain(())).logits, whole.logits[0, -1:])


@pytest.mark.parametrize("attention", [None, "eager"])
def test_every_row_of_a_tree_equals_its_own_chain(name: str, attention: str | None) -> None:
    target = HfTarget.wrap(model(name, attention))
    for prompt in (PROMPT, PROMPT[:1]):
        sequence_id = len(prompt)
        scores = score(target, prompt, TREE, sequence_id)
        for leaf in TREE.leaves:
            rows = [0, *(node + 1 for node in TREE.path(leaf))]
            expected = plain(name, [*prompt, *TREE.path_tokens(leaf)], attention)[len(prompt) - 1 :]
            assert close(scores.logits[rows], expected)


@pytest.mark.parametrize("path", [(), (0, 2), (1, 4), (1, 3, 5)])
def test_after_a_commit_the_next_rows_equal_a_fresh_prefill(name: str, path: tuple[int, ...]) -> None:
    target = HfTarget.wrap(model(name))
    commit(target, score(target, PROMPT, TREE), TREE, path, last=33)
    tokens = [*PROMPT, *(TREE.tokens[node] for node in path), 33]
    assert target.cached_length(0) == len(tokens) - 1
    scores = score(target, tokens, TREE)
    for leaf in TREE.leaves:
        rows = [0, *(node + 1 for node in TREE.path(leaf))]
        expected = plain(name, [*tokens, *TREE.path_tokens(leaf)])[len(tokens) - 1 :]
        assert close(scores.logits[rows], expected)


def test_a_truncated_round_keeps_what_was_emitted(name: str) -> None:
    target, tree = HfTarget.wrap(model(name)), TokenTree.chain((4, 6, 8))
    scores = score(target, PROMPT, tree)
    target.commit([RoundResult(0, (4, 6), (0, 1, 2), drafted(tree), scores)])
    assert target.cached_length(0) == len(PROMPT) + 1
    assert close(score(target, [*PROMPT, 4, 6], TREE).logits[0], plain(name, [*PROMPT, 4, 6])[-1])


def test_a_round_without_tokens_caches_nothing() -> None:
    target = HfTarget.wrap(model("llama"))
    scores = score(target, PROMPT, TREE)
    target.commit([RoundResult(0, (), (), drafted(TREE), scores)])
    assert target.cached_length(0) == len(PROMPT) - 1


def test_a_rewind_past_the_window_equals_a_fresh_prefill(name: str) -> None:
    target = HfTarget.wrap(model(name))
    score(target, [*PROMPT, *PROMPT], TREE)
    target.rewind(0, 4)
    other = [*PROMPT[:4], 17, 18]
    assert close(score(target, other, TokenTree.chain(())).logits, plain(name, other)[-1:])
    target.rewind(0, 0)
    assert close(score(target, PROMPT, TREE).logits[0], plain(name, PROMPT)[-1])


def test_parent_and_fork_are_independent(name: str) -> None:
    target = HfTarget.wrap(model(name))
    score(target, PROMPT, TREE)
    target.fork(0, 1, 4)
    assert target.cached_length(1) == 4
    child = [*PROMPT[:4], 8, 15]
    assert close(score(target, child, TREE, 1).logits[0], plain(name, child)[-1])
    assert close(score(target, PROMPT, TokenTree.chain(())).logits, plain(name, PROMPT)[-1:])
    target.fork(0, 2, 0)
    assert close(score(target, child, TREE, 2).logits[0], plain(name, child)[-1])
    target.release(0)
    target.release(99)
    assert target.cached_length(0) == 0
    assert close(score(target, child, TREE, 1).logits[0], plain(name, child)[-1])


@torch.no_grad()
def plain_of_layers(name: str, tokens: list[int], layers: Sequence[int]) -> torch.Tensor:
    """Logits [n, vocab] of a model that was built with these layers of the other alone."""
    kind = getattr(transformers, MODELS[name][0])
    whole = model(name)
    config = copy.deepcopy(whole.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [whole.config.layer_types[index] for index in layers]
    small = kind(config).to(torch.float64).eval()
    held = layer_list(whole)
    state = {k: v for k, v in whole.state_dict().items() if not k.startswith(f"{held}.")}
    for place, index in enumerate(layers):
        for key, value in whole.get_submodule(f"{held}.{index}").state_dict().items():
            state[f"{held}.{place}.{key}"] = value
    small.load_state_dict(state)
    return small(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def layer_list(held: Any) -> str:
    return next(name for name, m in held.named_modules() if isinstance(m, torch.nn.ModuleList))


@pytest.mark.parametrize("layers", [(0,), (0, 1), (0, 2), (2,), (1, 2)])
def test_chosen_layers_equal_a_model_built_of_them(name: str, layers: tuple[int, ...]) -> None:
    target = HfTarget.wrap(model(name))
    pending, tree = 7, TREE  # a first token: what the whole model cached before it would differ
    [rows] = target.draft_rows([context([pending])], [tree], layers)
    for leaf in tree.leaves:
        path = [0, *(node + 1 for node in tree.path(leaf))]
        assert close(rows[path], plain_of_layers(name, [pending, *tree.path_tokens(leaf)], layers))


def test_the_first_layers_read_the_cache_that_the_whole_model_wrote(name: str) -> None:
    target = HfTarget.wrap(model(name))
    target.extend([Chunk(0, PROMPT[:-1])])
    [rows] = target.draft_rows([context(PROMPT)], [TokenTree.chain((4, 6))], range(2))
    expected = plain_of_layers(name, [*PROMPT, 4, 6], (0, 1))
    assert close(rows, expected[len(PROMPT) - 1 :])


def test_drafting_with_some_layers_leaves_no_trace(name: str) -> None:
    held = model(name)
    target = HfTarget.wrap(held, taps=(1, 3))
    settings, listed = held.config.to_dict(), held.get_submodule(layer_list(held))
    wanted = score(target, PROMPT, TREE)
    for layers in ((0,), (1, 2), (0, 2), (0, 1, 2)):
        target.draft_rows([context(PROMPT)], [TREE], layers)
        assert held.config.to_dict() == settings
        assert held.get_submodule(layer_list(held)) is listed
        assert all(layer.keys.shape[-2] == len(PROMPT) - 1 for layer in target._caches[0].store.layers)
    after = score(target, PROMPT, TREE)
    assert torch.equal(after.logits, wanted.logits)
    assert torch.equal(after.features, wanted.features)
    target.draft_rows([context(PROMPT)], [TREE], (1,))
    target.extend([Chunk(0, [PROMPT[-1]])])
    assert close(score(target, [*PROMPT, 2], TREE).logits[0], plain(name, [*PROMPT, 2])[-1])
    assert number_of_hooks(held) == 0


def test_an_empty_cache_is_as_empty_after_drafting_with_later_layers(name: str) -> None:
    target = HfTarget.wrap(model(name))
    target.draft_rows([context([7])], [TREE], (2,))
    assert close(score(target, [7], TREE).logits[0], plain(name, [7])[-1])


def test_a_model_is_restored_when_its_layers_fail() -> None:
    held = copy.deepcopy(model("llama"))
    target = HfTarget.wrap(held)
    listed, first = held.model.layers, held.model.layers[0].forward

    def failing(*args: Any, **options: Any) -> Any:
        raise KeyError("the keys of layer 1")

    held.model.layers[0].forward = failing
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*the keys of layer 1"):
        target.draft_rows([context([7])], [TREE], (0,))
    assert held.model.layers is listed
    held.model.layers[0].forward = first
    assert close(score(target, [7], TREE).logits[0], plain("llama", [7])[-1])


def test_a_model_with_two_lists_of_layers_is_refused_by_its_class() -> None:
    held = copy.deepcopy(model("llama"))
    held.more = torch.nn.ModuleList([torch.nn.Identity() for _ in range(3)])
    target = HfTarget.wrap(held)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*list of 3 layers"):
        target.draft_rows([context([7])], [TREE], (0,))


@pytest.mark.parametrize(
    "settings", [{"assistant_early_exit": 1}, {"skip_layers": [1]}, {"skip_layers": [0]}]
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_drafting_with_some_layers_changes_no_text(family: str, settings: dict[str, Any]) -> None:
    vocabulary = {f"w{index}": index for index in range(VOCAB)}
    words = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0")))
    held = model(family)
    plain_llm = LLM.from_model(held, words)
    config = {"method": "self_draft", "num_speculative_tokens": 3, **settings}
    drafting = LLM.from_model(held, words, speculative_config=config)
    for sampling in (SamplingParams(temperature=0.0, max_tokens=16), SamplingParams(seed=3, max_tokens=16)):
        prompts = [PROMPT, [5, 6], [9]]
        wanted, done = plain_llm.generate(prompts, sampling), drafting.generate(prompts, sampling)
        assert [c.token_ids for c in done] == [c.token_ids for c in wanted]
        assert sum(c.stats.num_draft_tokens for c in done) > 0


def test_a_row_is_the_same_beside_any_neighbours(name: str) -> None:
    target = HfTarget.wrap(model(name))
    solo = score(target, PROMPT, TREE).logits
    target.extend([Chunk(1, PROMPT[:3]), Chunk(2, PROMPT[:-1]), Chunk(3, [])])
    contexts = [context(PROMPT[:4], 1), context(PROMPT, 2), context([5], 3)]
    batched = target.score(contexts, [drafted(TokenTree.chain((1, 2))), drafted(TREE), drafted(TREE)])
    assert torch.equal(batched[1].logits, solo)


def test_scores_are_forgotten_by_the_next_extend() -> None:
    target = HfTarget.wrap(model("llama"))
    score(target, PROMPT, TREE)
    target.extend([Chunk(0, [PROMPT[-1]])])
    tokens = [*PROMPT, 2]
    assert close(score(target, tokens, TREE).logits[0], plain("llama", tokens)[-1])


def test_features_are_the_states_between_the_layers(name: str) -> None:
    held = model(name)
    target = HfTarget.wrap(held, taps=(0, 2, 3))
    chain = [*PROMPT, 4, 6]
    with torch.no_grad():
        states = held(input_ids=torch.tensor([chain]), output_hidden_states=True).hidden_states
    [prefilled] = target.extend([Chunk(0, PROMPT[:-1])])
    scored = target.score([context(PROMPT)], [drafted(TokenTree.chain((4, 6)))])[0].features
    assert prefilled is not None
    assert scored is not None
    features = torch.cat([prefilled, scored])
    assert features.shape == (len(chain), 3, 32)
    assert close(features[:, 0], states[0][0])
    assert close(features[:, 1], states[2][0])
    norm = next(m for n, m in held.named_modules() if n.endswith((".norm", "ln_f", "final_layer_norm")))
    assert close(norm(features[:, 2]), states[3][0])
    [empty] = target.extend([Chunk(9, [])])
    assert empty is not None
    assert empty.shape == (0, 3, 32)


def test_without_taps_there_are_no_features() -> None:
    target = HfTarget.wrap(model("llama"))
    assert target.extend([Chunk(0, PROMPT[:-1])]) == [None]
    assert score(target, PROMPT, TREE).features is None
    with pytest.raises(ConfigError, match="tap 4"):
        HfTarget.wrap(model("llama"), taps=(4,))


def number_of_hooks(held: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in held.modules())


def test_the_users_model_is_left_as_it_was() -> None:
    held = copy.deepcopy(model("llama"))
    weights = {key: value.clone() for key, value in held.state_dict().items()}
    settings, config = held.generation_config.to_dict(), held.config.to_dict()
    hooks = number_of_hooks(held)
    target = HfTarget.wrap(held, taps=(1,))
    score(target, PROMPT, TREE)
    assert target.model is held
    assert held.generation_config.to_dict() == settings
    assert held.config.to_dict() == config
    assert not held.training
    assert all(torch.equal(value, weights[key]) for key, value in held.state_dict().items())
    assert number_of_hooks(held) == hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in held.parameters())


def test_a_model_in_training_mode_is_refused() -> None:
    held = copy.deepcopy(model("llama")).train()
    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM.*eval"):
        HfTarget.wrap(held)
    assert held.training


@pytest.mark.parametrize(
    ("class_name", "settings", "message"),
    [
        ("MambaForCausalLM", {"num_hidden_layers": 2, "hidden_size": 16}, "MambaForCausalLM"),
        ("RwkvForCausalLM", {"num_hidden_layers": 2, "hidden_size": 16, "attention_hidden_size": 16}, "Rwkv"),
        (
            "T5ForConditionalGeneration",
            {"d_model": 16, "d_ff": 16, "num_layers": 1, "d_kv": 8, "num_heads": 2},
            "T5",
        ),
    ],
)
def test_models_that_cannot_rewind_are_refused_by_name(
    class_name: str, settings: dict[str, Any], message: str
) -> None:
    kind = getattr(transformers, class_name)
    held = kind(kind.config_class(vocab_size=VOCAB, **settings)).eval()
    with pytest.raises(ModelLoadError, match=message):
        HfTarget.wrap(held)


def test_hybrid_layers_are_refused_by_the_class_of_their_cache() -> None:
    config = transformers.Qwen3NextConfig(
        **{**SMALL, "num_hidden_layers": 2}, layer_types=["linear_attention", "full_attention"],
        num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, head_dim=8,
    )  # fmt: skip
    with torch.device("meta"):
        held = transformers.Qwen3NextForCausalLM(config).eval()
    with pytest.raises(ModelLoadError, match="Qwen3NextForCausalLM"):
        HfTarget.wrap(held)


@pytest.mark.parametrize(("chosen", "named"), [("static", "StaticCache"), ("quantized", "QuantizedCache")])
def test_a_chosen_cache_that_cannot_rewind_is_refused_by_class(chosen: str, named: str) -> None:
    held = copy.deepcopy(model("llama"))
    held.generation_config.cache_implementation = chosen
    with pytest.raises(ModelLoadError, match=named):
        HfTarget.wrap(held)


def test_attention_that_ignores_masks_gets_chains_only() -> None:
    held = copy.deepcopy(model("llama"))
    forward = held.model.forward

    def deaf(*args: Any, **options: Any) -> Any:
        return forward(*args, **{**options, "attention_mask": None})

    held.model.forward = deaf
    target = HfTarget.wrap(held)
    assert not target.supports_trees
    assert close(score(target, PROMPT, TokenTree.chain((4,))).logits, plain("llama", [*PROMPT, 4])[-2:])


def test_windows_that_the_model_applies_by_itself_get_chains_only() -> None:
    config = transformers.GPTNeoConfig(
        vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64, window_size=5,
        attention_types=[[["global", "local"], 1]], initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    held = transformers.GPTNeoForCausalLM(config).double().eval()
    target = HfTarget.wrap(held)
    assert not target.supports_trees
    check_target(lambda: target, tolerance=1e-5)


def test_a_model_whose_forward_fails_is_refused_in_one_line() -> None:
    held = copy.deepcopy(model("llama"))
    held.lm_head = torch.nn.Linear(5, VOCAB).double()
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM") as error:
        HfTarget.wrap(held)
    assert "\n" not in str(error.value)


def test_a_cache_that_forgets_to_rewind_is_refused() -> None:
    held = copy.deepcopy(model("llama"))
    seen: list[torch.Tensor] = []

    def remembering(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.mean(dim=1, keepdim=True))
        return output + sum(seen)

    held.model.embed_tokens.register_forward_hook(remembering)
    with pytest.raises(ModelLoadError, match="rewind"):
        HfTarget.wrap(held)


def test_a_prompt_beyond_the_context_is_refused() -> None:
    target = HfTarget.wrap(model("llama"))
    target.extend([Chunk(0, [1] * 60)])
    with pytest.raises(ParameterError, match="65 tokens"):
        target.extend([Chunk(0, [1] * 5)])


def test_weights_that_are_not_finite_are_named() -> None:
    held = copy.deepcopy(model("llama"))
    held.model.layers[1].mlp.up_proj.weight.data[3, 2] = float("nan")
    with pytest.raises(
        ModelLoadError, match=r"LlamaForCausalLM.*not finite.*model\.layers\.1\.mlp\.up_proj\.weight"
    ) as said:
        HfTarget.wrap(held)
    assert "rewind" not in str(said.value)


def test_numbers_of_a_configuration_that_are_not_finite_are_told_from_a_failing_rewind() -> None:
    held = copy.deepcopy(model("llama"))
    held.model.norm.variance_epsilon = float("nan")
    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM.*not finite.*configuration"):
        HfTarget.wrap(held)


def test_a_row_of_nan_is_passed_through() -> None:
    held = copy.deepcopy(model("llama"))
    target = HfTarget.wrap(held)
    held.lm_head.weight.data[:] = float("nan")
    assert score(target, PROMPT, TREE).logits.isnan().all()


@pytest.mark.parametrize(
    ("dtype", "given"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float32)]
)
def test_logits_are_float32_at_least_and_trees_work_in_low_precision(
    dtype: torch.dtype, given: torch.dtype
) -> None:
    held = copy.deepcopy(model("llama")).to(dtype)
    target = HfTarget.wrap(held)
    assert target.supports_trees
    logits = score(target, PROMPT, TREE).logits
    assert logits.dtype == given
    expected = plain("llama", [*PROMPT, *TREE.path_tokens(5)])[-1]
    assert (logits[6] - expected).abs().max() < 0.1 * expected.abs().max()


def folder(path: Path) -> ModelSource:
    return ModelSource("tiny", SourceKind.FOLDER, path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "auto"])
def test_a_folder_loads_at_the_asked_dtype(tmp_path: Path, dtype: str) -> None:
    model("qwen2").save_pretrained(tmp_path)
    target = load_hf(folder(tmp_path), dtype=dtype)
    assert target.dtype == (torch.float32 if dtype == "float32" else torch.float64)
    expected = plain("qwen2", PROMPT)[-1]
    assert (score(target, PROMPT, TREE).logits[0] - expected).abs().max() < 1e-4


def test_broken_folders_fail_in_one_line(tmp_path: Path) -> None:
    model("qwen2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelLoadError) as error:
        load_hf(folder(tmp_path), dtype="float32")
    assert "\n" not in str(error.value)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "model_type": "t5", "is_encoder_decoder": True})
    )
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        load_hf(folder(tmp_path), dtype="float32")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_an_architecture_becomes_the_configuration_it_was_read_from(family: str) -> None:
    from outrider.models.hf_load import config_of

    arch = Arch.from_config({**model(family).config.to_dict(), "rope_theta": 5e4})
    back = Arch.from_config(config_of(arch).to_dict())
    assert dataclasses.asdict(back) == dataclasses.asdict(arch)


def distinct_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """64 texts, no two alike: ours, then questions of Spec-Bench where its folder is given, else our own modules."""
    chats = [prompt["messages"] for prompt in json.loads(PROMPTS.read_text())]
    folder = os.environ.get("OUTRIDER_PROMPTS")
    if folder:
        lines = (Path(folder) / "spec_bench.jsonl").read_text().splitlines()
        turns = [json.loads(line)["turns"][0] for line in lines[:: len(lines) // (64 - len(chats))]]
        chats += [[{"role": "user", "content": turn}] for turn in turns]
        prompts = [tokenizer.chat(messages).token_ids for messages in chats]
    else:
        modules = sorted(Path(outrider.__file__).parent.rglob("[a-z]*.py"))
        prompts = [tokenizer.chat(messages).token_ids for messages in chats]
        prompts += [tokenizer.encode(path.read_text()) for path in modules]
    cut = dict.fromkeys(tuple(tokens[:72]) for tokens in prompts)
    return [list(tokens) for tokens in cut][:64]


@pytest.mark.model
def test_smollm2_logits_equal_the_torch_target_on_64_prompts(
    record_property: Callable[[str, object], None],
) -> None:
    from outrider.models.load import load, resolve
    from outrider.text import load_tokenizer

    source = resolve("smollm2-135m")
    targets = [load(source, target=kind, dtype="float32") for kind in ("hf", "torch")]
    prompts = distinct_prompts(load_tokenizer(source))
    assert len(prompts) == 64
    worst = 0.0
    for sequence_id, tokens in enumerate(prompts):
        half = len(tokens) // 2
        rows = []
        for target in targets:
            target.extend([Chunk(sequence_id, tokens[:half])])
            chain = drafted(TokenTree.chain(tokens[half + 1 :]))
            rows.append(target.score([context(tokens[: half + 1], sequence_id)], [chain])[0].logits)
            target.release(sequence_id)
        worst = max(worst, float((rows[0] - rows[1]).abs().max()))
    record_property("largest_difference", worst)
    print(f"64 prompts, {sum(map(len, prompts))} tokens: logits differ by at most {worst:.3g}")
    assert worst < 2e-4
