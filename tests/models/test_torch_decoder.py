"""The PyTorch target against transformers' own forward, and its caches against a fresh prefill."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from outrider.core.protocols import Chunk, LayeredTarget
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult, Scores
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError, ModelLoadError, ParameterError
from outrider.models.arch import Arch
from outrider.models.linear import packing_available
from outrider.models.torch_decoder import TorchDecoder

VOCAB, LAYERS, LIMIT = 67, 3, 320


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.25,
}


CONFIGS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-untied-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "llama-linear-rope": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}
    ),
    "llama3-rope": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 500.0,
        },
    ),
    "mistral": MistralConfig(**SIZES, head_dim=16, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False),
}  # fmt: skip


TREE = Draft.tree([5, 9, 7, 3, 5, 11, 2], [None, None, 0, 1, 1, 4, 2])


PROMPT = [1, 17, 33, 8, 8, 21, 60, 4, 12, 45]


def reference_model(config: PreTrainedConfig, dtype: torch.dtype):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # norms and biases start at one and zero, which would hide mistakes
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def decoder(
    config: PreTrainedConfig, dtype: torch.dtype = torch.float64, taps: Sequence[int] = ()
) -> TorchDecoder:
    model = reference_model(config, dtype)
    return TorchDecoder(Arch.from_config(config.to_dict()), model.state_dict(), dtype=dtype, taps=taps)


@pytest.fixture(scope="module")
def target() -> TorchDecoder:
    return decoder(CONFIGS["llama"], taps=(0, 2, LAYERS))


def prefilled(target: TorchDecoder, tokens: Sequence[int], sequence_id: int = 0) -> Context:
    target.release(sequence_id)
    target.extend([Chunk(sequence_id, tokens[:-1])])
    return Context.of(tokens, sequence_id=sequence_id)


def fresh_row(target: TorchDecoder, tokens: Sequence[int]) -> torch.Tensor:  # [vocab]
    """The logits after `tokens`, from a sequence of its own."""
    row = target.score([prefilled(target, tokens, 999)], [EMPTY_DRAFT])[0].logits[0]
    target.release(999)
    return row


def result_of(
    draft: Draft, scores: Scores, accepted: Sequence[int], next_token: int, sequence_id: int = 0
) -> RoundResult:
    emitted = (*(draft.nodes.tokens[node] for node in accepted), next_token)
    return RoundResult(sequence_id, emitted, tuple(accepted), draft, scores)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name: str, dtype: torch.dtype):
    model = reference_model(CONFIGS[name], dtype)
    target = TorchDecoder(Arch.from_config(model.config.to_dict()), model.state_dict(), dtype=dtype)
    tokens = torch.randint(0, VOCAB, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    target.extend([Chunk(0, tokens[:40])])
    got = target.score([Context.of(tokens[:41])], [Draft.chain(tokens[41:])])[0].logits
    assert got.dtype == dtype
    assert expected.abs().max() > 1.0
    torch.testing.assert_close(
        got, expected[40:], atol=5e-5, rtol=1e-4
    )  # transformers normalises in float32 throughout


def test_fulfils_the_protocol(target: TorchDecoder):
    assert isinstance(target, LayeredTarget)


def test_ragged_batch_equals_solo(target: TorchDecoder):
    prompts = [PROMPT, PROMPT[:3], PROMPT + PROMPT, [9]]
    drafts = [TREE, EMPTY_DRAFT, Draft.chain([1, 2, 3]), TREE]
    solo = [target.score([prefilled(target, p)], [d])[0] for p, d in zip(prompts, drafts)]
    for sequence_id in range(4):
        target.release(sequence_id)
    features = target.extend([Chunk(i, p[:-1]) for i, p in enumerate(prompts)])
    assert [f.shape for f in features] == [(len(p) - 1, 3, 32) for p in prompts]
    contexts = [Context.of(p, sequence_id=i) for i, p in enumerate(prompts)]
    for alone, beside in zip(solo, target.score(contexts, drafts)):
        close(beside.logits, alone.logits)
        close(beside.features, alone.features)


@pytest.mark.parametrize("cuts", [(1,), (1, 2, 3), (5, 250), (256, 257), tuple(range(1, 40))])
def test_any_chunking_equals_the_whole(target: TorchDecoder, cuts: tuple[int, ...]):
    tokens = [(7 * i + i * i) % VOCAB for i in range(300)]
    target.release(0)
    (whole,) = target.extend([Chunk(0, tokens[:-1])])
    expected = target.score([Context.of(tokens)], [EMPTY_DRAFT])[0].logits
    target.release(0)
    edges = [0, *cuts, len(tokens) - 1]
    parts = [target.extend([Chunk(0, tokens[a:b])])[0] for a, b in itertools.pairwise(edges)]
    close(torch.cat(parts), whole)
    close(target.score([Context.of(tokens)], [EMPTY_DRAFT])[0].logits, expected)


def test_tree_rows_equal_the_chain_of_each_path(target: TorchDecoder):
    scores = target.score([prefilled(target, PROMPT)], [TREE])[0]
    close(scores.logits[0], fresh_row(target, PROMPT))
    for node in range(len(TREE)):
        chain = Draft.chain(TREE.nodes.path_tokens(node))
        alone = target.score([prefilled(target, PROMPT, 5)], [chain])[0]
        close(scores.logits[node + 1], alone.logits[-1])
        close(scores.features[node + 1], alone.features[-1])


@pytest.mark.parametrize("accepted", [(), (0,), (0, 2), (0, 2, 6), (1,), (1, 3), (1, 4), (1, 4, 5)])
def test_after_any_accepted_path_the_next_logits_equal_a_fresh_prefill(
    target: TorchDecoder, accepted: tuple[int, ...]
):
    scores = target.score([prefilled(target, PROMPT)], [TREE])[0]
    result = result_of(TREE, scores, accepted, 50)
    target.commit([result])
    tokens = [*PROMPT, *result.emitted]
    assert target.cached_length(0) == len(tokens) - 1
    again = target.score([Context.of(tokens)], [Draft.chain([13, 14])])[0].logits
    close(again[0], fresh_row(target, tokens))
    close(again[2], fresh_row(target, [*tokens, 13, 14]))


def test_a_truncated_round_keeps_what_was_emitted(target: TorchDecoder):
    draft = Draft.chain([5, 6, 7])
    scores = target.score([prefilled(target, PROMPT)], [draft])[0]
    target.commit([RoundResult(0, (5, 6), (0, 1), draft, scores)])  # stopped at token 6: it is pending now
    close(
        target.score([Context.of([*PROMPT, 5, 6])], [EMPTY_DRAFT])[0].logits[0],
        fresh_row(target, [*PROMPT, 5, 6]),
    )


def test_an_aborted_round_changes_nothing(target: TorchDecoder):
    scores = target.score([prefilled(target, PROMPT)], [TREE])[0]
    target.commit([RoundResult(0, (), (), TREE, scores)])
    assert target.cached_length(0) == len(PROMPT) - 1


def test_rewind_forgets_the_rest(target: TorchDecoder):
    prefilled(target, PROMPT)
    target.rewind(0, 4)
    tokens = [*PROMPT[:4], 30, 31]
    target.extend([Chunk(0, [30])])
    close(target.score([Context.of(tokens)], [EMPTY_DRAFT])[0].logits[0], fresh_row(target, tokens))


def test_fork_is_independent_of_its_parent(target: TorchDecoder):
    prefilled(target, PROMPT)
    target.release(1)
    target.fork(0, 1, 6)
    target.extend([Chunk(1, [40, 41])])
    child, parent = [*PROMPT[:6], 40, 41, 42], PROMPT
    close(
        target.score([Context.of(child, sequence_id=1)], [EMPTY_DRAFT])[0].logits[0], fresh_row(target, child)
    )
    close(target.score([Context.of(parent)], [EMPTY_DRAFT])[0].logits[0], fresh_row(target, parent))


def test_a_sequence_without_cached_tokens_can_be_forked(target: TorchDecoder):
    target.release(0)
    target.release(1)
    target.extend([Chunk(0, [])])
    target.fork(0, 1, 0)
    close(target.score([Context.of([5], sequence_id=1)], [EMPTY_DRAFT])[0].logits[0], fresh_row(target, [5]))


def test_release_frees_the_cache(target: TorchDecoder):
    for sequence_id in (0, 1, 5, 999):
        target.release(sequence_id)
    before = target.cache_bytes
    prefilled(target, PROMPT, 77)
    assert target.cache_bytes > before
    target.release(77)
    target.release(77)
    assert target.cache_bytes == before
    assert target.cached_length(77) == 0


def test_the_cache_grows_without_losing_tokens(target: TorchDecoder):
    tokens = [(3 * i) % VOCAB for i in range(190)]
    context = prefilled(target, tokens)
    for step in range(10):  # crosses 192 slots
        scores = target.score([context], [Draft.chain([step, step + 1])])[0]
        target.commit([result_of(Draft.chain([step, step + 1]), scores, (0,), 2)])
        tokens += [step, 2]
        context = Context.of(tokens)
    close(target.score([context], [EMPTY_DRAFT])[0].logits[0], fresh_row(target, tokens))


def test_draft_rows_leave_no_trace(target: TorchDecoder):
    context = prefilled(target, PROMPT)
    expected = target.score([context], [TREE])[0].logits.clone()
    target.draft_rows([context], [TokenTree.chain([61, 62, 63, 64, 65, 66, 0, 1, 2])], (0, 2))
    close(target.score([context], [TREE])[0].logits, expected)


def test_draft_rows_over_all_layers_equal_scores_and_over_fewer_do_not(target: TorchDecoder):
    context = prefilled(target, PROMPT)
    expected = target.score([context], [TREE])[0].logits.clone()
    close(target.draft_rows([context], [TREE.nodes], range(LAYERS))[0], expected)
    assert not torch.allclose(target.draft_rows([context], [TREE.nodes], (0, 1))[0], expected)


def test_early_exit_equals_a_model_of_the_first_layers():
    config = CONFIGS["llama"]
    target, model = decoder(config), reference_model(config, torch.float64)
    model.model.layers = model.model.layers[:2]
    with torch.no_grad():
        expected = model(torch.tensor([[*PROMPT, 7]]), use_cache=False).logits[0, -2:]
    got = target.draft_rows([prefilled(target, PROMPT)], [TokenTree.chain([7])], (0, 1))[0]
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=1e-4)


def test_features_are_the_hidden_states_of_transformers():
    config = CONFIGS["llama"]
    target, model = decoder(config, taps=(0, 1, LAYERS)), reference_model(config, torch.float64)
    states: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0][0]))
    with torch.no_grad():
        hidden = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    (features,) = target.extend([Chunk(0, PROMPT)])
    for column, expected in enumerate((hidden[0][0], hidden[1][0], states[0])):
        torch.testing.assert_close(features[:, column], expected, atol=5e-5, rtol=1e-4)


def test_the_context_can_be_filled_to_its_last_token(target: TorchDecoder):
    tokens = [i % VOCAB for i in range(LIMIT - 2)]
    scores = target.score([prefilled(target, tokens)], [Draft.chain([1, 2])])[0]
    assert scores.logits.shape == (3, VOCAB)
    with pytest.raises(ParameterError, match=f"{LIMIT + 1} tokens exceed the model's context of {LIMIT}"):
        target.extend([Chunk(8, [1] * (LIMIT + 1))])


def test_score_refuses_a_cache_that_is_out_of_step(target: TorchDecoder):
    prefilled(target, PROMPT)
    with pytest.raises(AssertionError, match="holds exactly"):
        target.score([Context.of(PROMPT[:-2])], [EMPTY_DRAFT])


def test_commit_refuses_scratch_that_another_pass_has_overwritten(target: TorchDecoder):
    context = prefilled(target, PROMPT)
    scores = target.score([context], [TREE])[0]
    target.draft_rows([context], [TREE.nodes], (0,))
    with pytest.raises(AssertionError, match="commit follows a score"):
        target.commit([result_of(TREE, scores, (0,), 1)])


def test_a_tensor_that_does_not_fit_is_named():
    config = CONFIGS["llama"]
    arch, state = Arch.from_config(config.to_dict()), reference_model(config, torch.float32).state_dict()
    name = "model.layers.1.mlp.up_proj.weight"
    for broken, message in (
        ({k: v for k, v in state.items() if k != name}, f"{name}' is missing"),
        ({**state, name: state[name][1:]}, rf"{name}' has shape \[47, 32\]"),
        ({**state, "model.layers.1.extra.weight": state[name]}, "model.layers.1.extra.weight' .* not part"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            TorchDecoder(arch, broken)


def test_a_tap_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"tap 4 .* choose 0 to 3"):
        decoder(CONFIGS["llama"], taps=(4,))


def test_bfloat16_is_near_float32():
    wide, narrow = decoder(CONFIGS["llama"], torch.float32), decoder(CONFIGS["llama"], torch.bfloat16)
    a = wide.score([prefilled(wide, PROMPT)], [EMPTY_DRAFT])[0].logits[0]
    b = narrow.score([prefilled(narrow, PROMPT)], [EMPTY_DRAFT])[0].logits[0]
    assert b.dtype == torch.float32
    assert (a - b).abs().max() < 0.1 * a.abs().max()


def test_without_packed_linears_the_logits_stay_and_one_warning_is_logged(monkeypatch, caplog):
    packed = decoder(CONFIGS["qwen2"], torch.float32)
    expected = packed.score([prefilled(packed, PROMPT)], [TREE])[0].logits

    def missing(*args: object) -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", missing)
    packing_available.cache_clear()
    try:
        plain = decoder(CONFIGS["qwen2"], torch.float32)
    finally:
        packing_available.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no such operator" in caplog.text
    got = plain.score([prefilled(plain, PROMPT)], [TREE])[0].logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
