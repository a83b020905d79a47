"""The library as a user sees it, on the toy target: texts, logits, refusals."""

from __future__ import annotations

import pytest
import tokenizers
import torch
from tokenizers import models
from worded import GREEDY, NGRAM, VOCAB, llm_of, tokenizer

from outrider import LLM, SamplingParams
from outrider.compiled.contenders import compiled_search
from outrider.errors import ConfigError, GenerationError, ParameterError
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer


def test_texts_come_in_input_order_and_speculation_changes_none() -> None:
    prompts = ["w3 w4", [5, 6, 7], "w9", "w3 w4 w3 w4"]
    plain = llm_of().generate(prompts, GREEDY)
    fast = llm_of(NGRAM).generate(prompts, GREEDY)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert [c.text for c in fast] == [c.text for c in plain]
    assert plain[1].token_ids == llm_of().generate([5, 6, 7], GREEDY)[0].token_ids
    assert sum(c.stats.num_accepted_draft_tokens for c in fast) > 0
    assert {c.guarantee for c in fast} == {"same_text"}


@pytest.mark.native
def test_a_wrong_instruction_set_is_refused_before_a_text_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_search.cache_clear()
    monkeypatch.setenv("OUTRIDER_ISA", "sse2")
    with pytest.raises(ConfigError, match="OUTRIDER_ISA 'sse2' is not one of"):
        llm_of()


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


def test_a_tree_on_a_target_without_tree_masks_becomes_a_chain_with_a_line_saying_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = ToyTarget(VOCAB, seed=3, supports_trees=False)
    config = {"method": "draft_model", "model": target.imitation(0.1), "topk": 3}
    llm = LLM.from_parts(target, tokenizer(), speculative_config=config)
    [done] = llm.generate("w3 w4", GREEDY)
    assert done.stats.num_accepted_draft_tokens > 0
    assert "drafting chains instead of trees" in caplog.text


def test_settings_of_a_draft_that_is_loaded_already_are_refused() -> None:
    target = ToyTarget(VOCAB)
    config = {"method": "draft_model", "model": target.imitation(0.1), "draft_dtype": "bfloat16"}
    with pytest.raises(ConfigError, match="draft_dtype has no effect"):
        LLM.from_parts(target, tokenizer(), speculative_config=config)
