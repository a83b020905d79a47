"""`HfTarget` over tiny random transformers models: caches, rollback, trees."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from hf_models import (
    PROMPT,
    SMALL,
    TREE,
    VOCAB,
    close,
    commit,
    context,
    drafted,
    model,
    number_of_hooks,
    plain,
    score,
)

from outrider.core.protocols import Chunk, LayeredTarget
from outrider.core.records import RoundResult
from outrider.core.tree import TokenTree
from outrider.errors import ParameterError
from outrider.models.hf import HfTarget
from outrider.testing.contract import check_target


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


def test_a_prompt_beyond_the_context_is_refused() -> None:
    target = HfTarget.wrap(model("llama"))
    target.extend([Chunk(0, [1] * 60)])
    with pytest.raises(ParameterError, match="65 tokens"):
        target.extend([Chunk(0, [1] * 5)])


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
