"""The library as a user sees it, on the toy target and on tiny transformers models."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from outrider import LLM, SamplingParams, generate_with
from outrider.errors import ConfigError, GenerationError, ModelLoadError, ParameterError, ScoreError
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer

VOCAB = 48
EOS = 1
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


def tokenizer() -> Tokenizer:
    words = {"<unk>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCAB)}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, eos_token_ids=[EOS])


def llm_of(config: dict[str, object] | None = None, **toy: object) -> LLM:
    target = ToyTarget(VOCAB, **{"seed": 3, "sharpness": 3.0, **toy})  # type: ignore[arg-type]
    return LLM.from_parts(target, tokenizer(), speculative_config=config)


NGRAM = {"method": "ngram", "prompt_lookup_min": 1}


def test_texts_come_in_input_order_and_speculation_changes_none() -> None:
    prompts = ["w3 w4", [5, 6, 7], "w9", "w3 w4 w3 w4"]
    plain = llm_of().generate(prompts, GREEDY)
    fast = llm_of(NGRAM).generate(prompts, GREEDY)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert [c.text for c in fast] == [c.text for c in plain]
    assert plain[1].token_ids == llm_of().generate([5, 6, 7], GREEDY)[0].token_ids
    assert sum(c.stats.num_accepted_draft_tokens for c in fast) > 0
    assert {c.guarantee for c in fast} == {"same_text"}


def test_an_empty_list_of_prompts_gives_an_empty_list() -> None:
    assert llm_of().generate([]) == []


def test_a_seed_decides_the_text_and_is_reported_when_none_is_given() -> None:
    llm = llm_of()
    params = SamplingParams(max_tokens=12)
    first, second = llm.generate(["w2", "w2"], params)
    assert first.seed != second.seed
    [again] = llm.generate("w2", SamplingParams(max_tokens=12, seed=first.seed))
    assert again.token_ids == first.token_ids
    a, b = llm.generate(["w2", "w2"], SamplingParams(max_tokens=12, seed=9))
    assert a.token_ids == b.token_ids


def test_choices_differ_and_the_first_is_that_of_a_single_one() -> None:
    llm = llm_of(NGRAM)
    [many] = llm.generate("w2 w3 w4", SamplingParams(max_tokens=12, seed=4, n=3))
    [one] = llm.generate("w2 w3 w4", SamplingParams(max_tokens=12, seed=4))
    assert len(many.choices) == 3
    assert many.token_ids == many.choices[0].token_ids == one.token_ids
    assert len({c.token_ids for c in many.choices}) == 3
    assert len({c.seed for c in many.choices}) == 3


def test_the_joined_stream_is_the_text_and_marks_what_was_drafted() -> None:
    llm = llm_of(NGRAM)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    [whole] = llm.generate("w3 w4 w3 w4", params)
    stream = llm.stream("w3 w4 w3 w4", params)
    deltas = list(stream)
    assert "".join(d.text for d in deltas) == whole.text == stream.completion.text
    assert tuple(t for d in deltas for t in d.token_ids) == whole.token_ids
    assert tuple(d.from_draft for d in deltas for _ in d.token_ids) == whole.from_draft
    assert any(whole.from_draft)
    assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + ["length"]


def test_a_stream_may_be_left_early_and_keeps_what_was_written() -> None:
    llm = llm_of(NGRAM)
    stream = llm.stream("w3 w4", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    next(stream)
    stopped = stream.abort()
    assert stopped.finish_reason == "abort"
    assert stopped.token_ids
    assert list(stream) == []
    assert llm._engine.unfinished == 0


def test_a_dropped_stream_is_not_written_on() -> None:
    llm = llm_of()
    next(llm.stream("w3", GREEDY))
    assert llm._engine.unfinished == 0


def test_stop_strings_and_stop_tokens_end_the_text() -> None:
    llm = llm_of(NGRAM)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    [free] = llm.generate("w3 w4", params)
    word = free.text.split()[4]
    [stopped] = llm.generate(
        "w3 w4", SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, stop=word)
    )
    assert stopped.finish_reason == "stop"
    assert free.text.startswith(stopped.text)
    assert word not in stopped.text
    token = free.token_ids[4]
    by_id = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, stop_token_ids=[token])
    [stopped] = llm.generate("w3 w4", by_id)
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(token) + 1]


def test_logprobs_are_of_the_raw_law_one_per_token() -> None:
    target_rows = llm_of().logits
    [done] = llm_of(NGRAM).generate(
        "w3 w4", SamplingParams(temperature=0.7, seed=1, max_tokens=10, logprobs=2)
    )
    assert done.logprobs is not None
    rows = target_rows([3, 4, *done.token_ids]).double().log_softmax(-1)
    for index, entry in enumerate(done.logprobs):
        assert entry.token_id == done.token_ids[index]
        assert entry.logprob == pytest.approx(float(rows[index + 1, entry.token_id]), abs=1e-5)
        assert len(entry.top) == 2


def test_teacher_forced_logits_are_those_of_every_prefix() -> None:
    llm = llm_of(order=3)
    tokens = [int(t) for t in torch.randint(2, VOCAB, (150,), generator=torch.Generator().manual_seed(0))]
    rows = llm.logits(tokens)
    assert rows.shape == (150, VOCAB)
    assert rows.dtype == torch.float32
    for index in (0, 1, 63, 64, 65, 127, 128, 149):
        wanted = torch.from_numpy(llm.target.logits_of(tokens[: index + 1]).copy()).float()  # type: ignore[attr-defined]
        assert torch.equal(rows[index], wanted)
    assert llm.target.cached_length(0) == 0


def test_logits_fill_the_context_and_no_more() -> None:
    llm = llm_of(max_length=32)
    assert llm.logits(range(2, 34)).shape == (32, VOCAB)
    with pytest.raises(ParameterError, match="33 tokens exceed the context of 32: shorten them"):
        llm.logits(range(2, 35))
    assert llm.target.open_sequences == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("12", "must be a list of token ids, not str"),
        (b"12", "must be a list of token ids, not bytes"),
        ({1: 2}, "must be a list of token ids, not dict"),
        (iter([1, 2]), "must be a list of token ids, not list_iterator"),
        (torch.tensor([1, 2]), "must be a list of token ids, not Tensor"),
        (None, "must be a list of token ids, not NoneType"),
        ([1, "2"], "must hold whole numbers, not '2'"),
        ([1, None], "must hold whole numbers, not None"),
        ([1, 2.0], "must hold whole numbers, not 2.0"),
        ([1, True], "must hold whole numbers, not True"),
        ([1, 48], "token id 48 is outside the vocabulary of 48"),
        ([], "must hold at least one token"),
    ],
)
def test_logits_of_anything_but_token_ids_are_refused(tokens: object, message: str) -> None:
    with pytest.raises(ParameterError) as error:
        llm_of().logits(tokens)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_failing_request_is_reported_with_everything_else_complete() -> None:
    nan = float("nan")
    target = ToyTarget.from_table({(): (0.2, 0.5, 0.3), (2, 0): (nan, nan, nan)})
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    llm = LLM.from_parts(target, Tokenizer(words))
    with pytest.raises(GenerationError, match=r"prompt 1: .*NaN") as failure:
        llm.generate([[0, 1], [2, 0]], GREEDY)
    good, bad = failure.value.completions
    assert len(good.token_ids) == 20  # type: ignore[attr-defined]
    assert (bad.finish_reason, bad.token_ids) == ("abort", ())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", GREEDY, "the prompt is empty"),
        ([[]], GREEDY, "the prompt is empty"),
        ([1, 99], GREEDY, "token id 99 is outside the vocabulary of 48"),
        ([[1, 2], "w3", 7], GREEDY, "prompt 2 must be a text or a list of token ids"),
        (7, GREEDY, "a prompt is a text or a list of token ids, not int"),
        (list(range(2, 40)), GREEDY, "holds 38 tokens and the context 32"),
        ("w2", SamplingParams(stop_token_ids=[50]), "stop_token_ids: token id 50 is outside"),
        ("w2", SamplingParams(logit_bias={48: 1.0}), "logit_bias: token id 48 is outside"),
        (["w2", "w3"], [GREEDY], "1 params for 2 prompts"),
        ("w2", {"temperature": 0}, "params must be SamplingParams"),
    ],
)
def test_a_wrong_prompt_is_one_clear_error(prompt: object, params: object, message: str) -> None:
    with pytest.raises(ParameterError) as error:
        llm_of(max_length=32).generate(prompt, params)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_prompt_that_leaves_room_for_three_tokens_ends_at_the_limit() -> None:
    for config in (None, NGRAM, {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 16}):
        [done] = llm_of(config, max_length=32).generate(
            [5, 6] * 14 + [5], SamplingParams(temperature=0.0, ignore_eos=True)
        )
        assert (len(done.token_ids), done.finish_reason) == (3, "length")


def test_streaming_takes_one_prompt_and_one_choice() -> None:
    with pytest.raises(ParameterError, match="one prompt"):
        llm_of().stream(["w2", "w3"])  # type: ignore[list-item]
    with pytest.raises(ParameterError, match="n must be 1"):
        llm_of().stream("w2", SamplingParams(n=2))


def test_a_tree_on_a_target_without_tree_masks_becomes_a_chain_with_a_line_saying_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = ToyTarget(VOCAB, seed=3, supports_trees=False)
    config = {"method": "draft_model", "model": target.imitation(0.1), "topk": 3}
    llm = LLM.from_parts(target, tokenizer(), speculative_config=config)
    [done] = llm.generate("w3 w4", GREEDY)
    assert done.stats.num_accepted_draft_tokens > 0
    assert "drafting chains instead of trees" in caplog.text


@pytest.fixture(scope="module")
def tiny() -> tuple[object, object]:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                         eos_token_id=EOS, bos_token_id=None, initializer_range=0.4)  # fmt: skip
    backend = tokenizer()._backend
    return LlamaForCausalLM(config).eval(), PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>"
    )


def test_a_transformers_model_is_wrapped_as_it_is(tiny: tuple[object, object]) -> None:
    model, words = tiny
    before = {k: v.clone() for k, v in model.state_dict().items()}  # type: ignore[attr-defined]
    plain = LLM.from_model(model, words).generate("w3 w4 w5", GREEDY)[0]
    ids = torch.tensor([[3, 4, 5]])
    reference = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, 3:]  # type: ignore[attr-defined]
    assert list(plain.token_ids) == reference.tolist()
    assert plain.guarantee == "same_text up to rounding ties"
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())  # type: ignore[attr-defined]


@pytest.mark.parametrize("held", [None, "some/model", 7])
def test_what_is_no_loaded_model_is_not_wrapped(tiny: tuple[object, object], held: object) -> None:
    with pytest.raises(ModelLoadError, match=f"wraps a loaded transformers model, not {type(held).__name__}"):
        LLM.from_model(held, tiny[1])
    with pytest.raises(ModelLoadError, match="wraps a loaded transformers model"):
        generate_with(held, tiny[1], "w3", GREEDY)


@pytest.mark.parametrize(
    "assistant",
    [
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": "itself", "num_assistant_tokens": 3},
        {"assistant_early_exit": 1},
        {"speculative_config": {"method": "ngram"}},
        {},
    ],
)
def test_generate_with_takes_either_spelling(
    tiny: tuple[object, object], assistant: dict[str, object]
) -> None:
    model, words = tiny
    given = {k: model if v == "itself" else v for k, v in assistant.items()}
    [plain] = LLM.from_model(model, words).generate("w3 w4 w5", GREEDY)
    [done] = generate_with(model, words, "w3 w4 w5", GREEDY, **given)  # type: ignore[arg-type]
    assert done.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"assistant_modle": 1}, "unknown argument 'assistant_modle'"),
        ({"prompt_lookup_num_tokens": 3, "assistant_early_exit": 1}, "contradict each other"),
        ({"num_assistant_tokens": 3}, "num_assistant_tokens needs one of"),
        ({"prompt_lookup_num_tokens": 3, "num_assistant_tokens": 3}, "contradicts prompt_lookup_num_tokens"),
        ({"prompt_lookup_num_tokens": 3, "speculative_config": {"method": "ngram"}}, "cannot be mixed"),
    ],
)
def test_contradicting_assistant_names_are_refused(
    tiny: tuple[object, object], given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_with(*tiny, "w3", GREEDY, **given)  # type: ignore[arg-type]


def test_streams_side_by_side_lose_nothing_when_one_ends_in_the_other_s_round() -> None:
    llm = llm_of(NGRAM)
    long = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    short = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    [whole_long], [whole_short] = llm.generate("w3 w4", long), llm.generate("w5 w6", short)
    first, second = llm.stream("w3 w4", long), llm.stream("w5 w6", short)
    written = list(first)
    llm.generate("w9", short)
    late = list(second)
    assert "".join(d.text for d in written) == whole_long.text
    assert "".join(d.text for d in late) == whole_short.text
    assert late[-1].finish_reason == "length"


def test_a_stream_collected_inside_a_round_ends_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llm_of()
    streams = [llm.stream("w3 w4", GREEDY)]
    next(streams[0])
    score = llm.target.score

    def dropping(*arguments: object) -> object:
        streams.clear()
        return score(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(llm.target, "score", dropping)
    [done] = llm.generate("w5 w6", GREEDY)
    assert done.token_ids == llm_of().generate("w5 w6", GREEDY)[0].token_ids
    assert llm._engine.unfinished == 0


def test_two_facades_over_one_target_do_not_mix_their_sequences() -> None:
    llm = llm_of()
    other = llm.with_speculation(NGRAM)
    expected = llm.generate(["w3 w4", "w5"], GREEDY)
    stream = llm.stream("w3 w4", GREEDY)
    first = next(stream)
    [beside] = other.generate("w5", GREEDY)
    assert beside.token_ids == expected[1].token_ids
    assert first.text + "".join(d.text for d in stream) == expected[0].text


@pytest.mark.parametrize("ask", ["generate", "stream", "logits"])
def test_threads_that_share_a_model_get_what_each_would_get_alone(ask: str) -> None:
    llm = llm_of(NGRAM)
    prompts = [f"w{i} w{i + 1} w{i}" for i in range(2, 8)]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    expected = {prompt: llm.generate(prompt, params)[0] for prompt in prompts}
    rows = {prompt: llm.logits(tokenizer().encode(prompt)) for prompt in prompts}

    def same(prompt: str) -> bool:
        if ask == "generate":
            return llm.generate(prompt, params)[0].token_ids == expected[prompt].token_ids
        if ask == "stream":
            return "".join(delta.text for delta in llm.stream(prompt, params)) == expected[prompt].text
        return torch.equal(llm.logits(tokenizer().encode(prompt)), rows[prompt])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(same, prompts * 4))
    finally:
        sys.setswitchinterval(interval)
    assert llm._engine.unfinished == 0
    assert llm.target.open_sequences == ()  # type: ignore[attr-defined]


def test_a_completion_that_is_still_being_written_has_no_finish_reason() -> None:
    stream = llm_of().stream("w3", GREEDY)
    next(stream)
    assert stream.completion.finish_reason is None


def test_settings_of_a_draft_that_is_loaded_already_are_refused() -> None:
    target = ToyTarget(VOCAB)
    config = {"method": "draft_model", "model": target.imitation(0.1), "draft_dtype": "bfloat16"}
    with pytest.raises(ConfigError, match="draft_dtype has no effect"):
        LLM.from_parts(target, tokenizer(), speculative_config=config)


def failing_once(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: BaseException, call: str = "score"
) -> None:
    """The target's next `call` raises; later ones work."""
    working = getattr(llm.target, call)

    def broken(*arguments: object) -> object:
        monkeypatch.setattr(llm.target, call, working)
        raise error

    monkeypatch.setattr(llm.target, call, broken)


def test_a_stream_that_another_call_s_failure_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llm_of()
    stream = llm.stream("w3 w4", GREEDY)
    next(stream)
    failing_once(llm, monkeypatch, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        llm.generate("w5", GREEDY)
    with pytest.raises(ScoreError, match="out of memory"):
        list(stream)
    assert llm.generate("w5", GREEDY)[0].finish_reason in ("stop", "length")


def test_a_stream_that_another_call_s_interruption_ended_has_a_last_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = llm_of()
    stream = llm.stream("w3 w4", GREEDY)
    next(stream)
    failing_once(llm, monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        llm.generate("w5", GREEDY)
    assert [delta.finish_reason for delta in stream] == ["abort"]


def test_a_prompt_that_cannot_be_read_ends_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llm_of()
    expected = llm.generate("w3 w4", GREEDY)[0].text
    stream = llm.stream("w3 w4", GREEDY)
    first = next(stream)
    failing_once(llm, monkeypatch, RuntimeError("out of memory"), "extend")
    with pytest.raises(RuntimeError, match="out of memory"):
        llm.generate("w5 w6", GREEDY)
    assert first.text + "".join(delta.text for delta in stream) == expected
