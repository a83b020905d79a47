"""What users of other systems reported, told of texts: stops, caps, seeds, logprobs, streams, limits, aborts.

Reports that are covered by suites of their own: greedy identity and draft lengths (`test_toy`), laws under changing
lengths and chained drafters (`test_law`), drafter caches (`tests/drafters`), caches that cannot rewind and edges of a
round (`tests/models`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from spoken import END, OTHER_END, PROMPT, VOCAB, byte_tokenizer, ids_of, plain, speaker

from outrider import LLM, Completion, SamplingParams
from outrider.core.completion import SpeculationStats
from outrider.core.noise import choice_seed
from outrider.errors import ConfigError, GenerationError, ParameterError
from outrider.testing.toy import ToyTarget

SAID = [10, 11, END, 20, 21, 22]


def greedy(**settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0, **settings)


def both(llm: LLM, params: SamplingParams) -> Completion:
    """The speculative completion, after checking that plain decoding and the stream say the same."""
    done = llm.generate(PROMPT, params)[0]
    slow = plain(llm).generate(PROMPT, params)[0]
    assert (done.text, done.token_ids, done.finish_reason) == (slow.text, slow.token_ids, slow.finish_reason)
    deltas = list(llm.stream(PROMPT, params))
    assert "".join(delta.text for delta in deltas) == done.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == done.token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [done.finish_reason]
    assert len(done.from_draft) == done.stats.num_emitted_tokens == len(done.token_ids)
    logprobs = llm.generate(PROMPT, replace(params, logprobs=1))[0].logprobs
    assert logprobs is not None
    assert tuple(entry.token_id for entry in logprobs) == done.token_ids, "none for what a stop cut off"
    return done


STOPS: list[tuple[str, dict[str, Any], tuple[int, ...], list[int], str]] = [
    ("EOS inside an accepted block", {"max_tokens": 5}, (END,), [10, 11, END], "stop"),
    ("EOS on the cap", {"max_tokens": 3}, (END,), [10, 11, END], "stop"),
    ("a stop past the cap", {"max_tokens": 2}, (END,), [10, 11], "length"),
    ("a cap of one", {"max_tokens": 1}, (END,), [10], "length"),
    ("several EOS ids", {"max_tokens": 5}, (OTHER_END, END), [10, 11, END], "stop"),
    ("another EOS id only", {"max_tokens": 5}, (OTHER_END,), [10, 11, END, 20, 21], "length"),
    ("no EOS id", {"max_tokens": 5}, (), [10, 11, END, 20, 21], "length"),
    ("ignore_eos", {"max_tokens": 5, "ignore_eos": True}, (END,), [10, 11, END, 20, 21], "length"),
    ("a stop token id", {"max_tokens": 6, "stop_token_ids": [21], "ignore_eos": True}, (END,),
     [10, 11, END, 20, 21], "stop"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("params", "end", "ids", "reason"), [row[1:] for row in STOPS], ids=[r[0] for r in STOPS]
)
def test_a_text_ends_where_it_should(
    params: dict[str, Any], end: tuple[int, ...], ids: list[int], reason: str
) -> None:
    done = both(speaker(SAID, end=end), greedy(**params))
    assert (list(done.token_ids), done.finish_reason) == (ids, reason)
    if len(ids) > 1:
        assert any(done.from_draft), "drafts were accepted"


def test_min_tokens_holds_a_stop_back_inside_a_block() -> None:
    done = both(speaker([10, 11, END, 20, END, 22]), greedy(max_tokens=6, min_tokens=4))
    assert done.token_ids[:2] == (10, 11)
    assert END not in done.token_ids[:4]
    assert done.token_ids[3:] == (20, END)


@pytest.mark.parametrize("stop", ["lo w", "o", "world", "d!"])
def test_a_stop_string_inside_a_block_ends_the_text_before_it(stop: str) -> None:
    text = "hello world! and more"
    done = both(speaker(ids_of(text)), greedy(max_tokens=18, stop=stop))
    assert (done.text, done.finish_reason) == (text[: text.index(stop)], "stop")
    assert any(done.from_draft)


@pytest.mark.parametrize("text", ["a🙂b🙂🙂", "né à 8 €…", "🙂", "日本語のテキスト"])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_a_burst_with_split_characters_streams_the_whole_text(text: str, depth: int) -> None:
    said = [*ids_of(text), END]
    done = both(speaker(said, num_speculative_tokens=depth), greedy(max_tokens=60))
    assert done.text == text
    assert any(done.from_draft)


# Seeds and mixed batches.


def mixed_batch() -> list[SamplingParams]:
    return [
        greedy(max_tokens=20),
        SamplingParams(temperature=1.0, seed=1, max_tokens=20),
        SamplingParams(temperature=1.0, seed=2, max_tokens=20, top_p=0.9),
        SamplingParams(temperature=0.7, seed=1, max_tokens=20, repetition_penalty=1.2),
        SamplingParams(temperature=1.0, seed=1, max_tokens=20),
    ]


def imitated(**settings: Any) -> LLM:
    target = ToyTarget(VOCAB, seed=6, sharpness=2.0)
    config = {"method": "draft_model", "model": target.imitation(0.3), **settings}
    return LLM.from_parts(target, byte_tokenizer(), speculative_config=config)


def test_a_seed_gives_one_text_alone_batched_and_reordered() -> None:
    llm, params = imitated(), mixed_batch()
    batched = llm.generate([PROMPT] * 5, params)
    assert batched[1].token_ids == batched[4].token_ids != batched[2].token_ids
    for one, together in zip(params, batched):
        assert llm.generate(PROMPT, one)[0].token_ids == together.token_ids
    backwards = llm.generate([PROMPT] * 5, params[::-1])[::-1]
    assert [c.token_ids for c in backwards] == [c.token_ids for c in batched]


def test_requests_without_a_seed_differ_and_tell_their_seed() -> None:
    llm = imitated()
    first, second = llm.generate([PROMPT] * 2, SamplingParams(max_tokens=20))
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = llm.generate(PROMPT, SamplingParams(max_tokens=20, seed=first.seed))[0]
    assert again.token_ids == first.token_ids


def test_each_choice_of_n_is_the_text_of_its_own_seed() -> None:
    llm = imitated()
    choices = llm.generate(PROMPT, SamplingParams(max_tokens=20, seed=9, n=4))[0].choices
    assert len({choice.token_ids for choice in choices}) == 4
    for number, choice in enumerate(choices):
        assert choice.seed == choice_seed(9, number)
        alone = llm.generate(PROMPT, SamplingParams(max_tokens=20, seed=choice.seed))[0]
        assert choice.token_ids == alone.token_ids


@pytest.mark.parametrize("depth", range(1, 6))
def test_two_equal_maxima_give_the_lower_id_whatever_the_draft_length(depth: int) -> None:
    target = ToyTarget.from_table(
        {(): (0.1, 0.4, 0.4, 0.1), (1,): (0.3, 0.05, 0.3, 0.35), (3,): (0.3, 0.3, 0.2, 0.2)}
    )
    config = {
        "method": "draft_model",
        "model": target.imitation(0.0),
        "num_speculative_tokens": depth,
        "topk": 2,
    }
    llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=config)
    assert llm.generate([2], greedy(max_tokens=8))[0].token_ids == (1, 3, 0, 1, 3, 0, 1, 3)


def test_one_call_leaves_nothing_to_the_next_and_the_settings_as_they_were() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    llm = imitated().with_speculation(config)
    first = llm.generate(PROMPT, SamplingParams(seed=5, max_tokens=30))[0]
    llm.generate([PROMPT] * 3, mixed_batch()[:3])
    again = llm.generate(PROMPT, SamplingParams(seed=5, max_tokens=30))[0]
    assert (again.token_ids, again.stats) == (first.token_ids, first.stats)
    assert config == {"method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match=r"num_speculative_tokns.*num_speculative_tokens"):
        llm.with_speculation({"method": "ngram", "num_speculative_tokns": 3})


# Logprobs, broken rows, limits.


@pytest.mark.parametrize("params", mixed_batch()[:4], ids=["greedy", "sampled", "top_p", "penalty"])
def test_logprobs_equal_those_of_a_teacher_forced_run(params: SamplingParams) -> None:
    llm = imitated()
    done = llm.generate(PROMPT, replace(params, logprobs=3))[0]
    assert done.logprobs is not None
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    assert {True, False} == set(done.from_draft), "accepted tokens and the target's own"
    raw = torch.stack([torch.from_numpy(ToyTarget(VOCAB, seed=6).logits_of([*PROMPT, *done.token_ids[:i]]).copy())
                       for i in range(len(done.token_ids))])  # fmt: skip
    rows = torch.log_softmax(raw, dim=-1)
    for entry, row in zip(done.logprobs, rows):
        assert math.isclose(entry.logprob, float(row[entry.token_id]), abs_tol=1e-6)
        values, _ = row.topk(3)
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-6)


def test_a_row_of_nan_fails_its_own_request_alone() -> None:
    table = {(): (0.2, 0.5, 0.3), (0,): (math.nan,) * 3, (2, 1): (0.0, 0.0, 1.0), (1,): (0.1, 0.2, 0.7)}
    target = ToyTarget.from_table(table)
    config = {"method": "draft_model", "model": ToyTarget.from_table({(): (0.2, 0.5, 0.3)})}
    llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=config)
    with pytest.raises(GenerationError, match=r"prompt 1: .*NaN") as caught:
        llm.generate([[2], [1, 0], [1]], greedy(max_tokens=6))
    left, failed, right = caught.value.completions
    assert (failed.token_ids, failed.finish_reason) == ((), "abort")
    assert failed.error is not None
    assert (left.token_ids, right.token_ids) == ((1, 2, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1))
    assert target.open_sequences == ()


def test_where_the_draft_model_is_broken_the_target_decides() -> None:
    target = ToyTarget(3, seed=2)
    broken = ToyTarget.from_table({(): (0.2, 0.5, 0.3), (0,): (math.nan,) * 3})
    for config in ({"topk": 1}, {"topk": 2}):
        llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config={"model": broken, **config})
        params = [greedy(max_tokens=20), SamplingParams(seed=3, max_tokens=20)]
        texts = llm.generate([[0], [1]], params)
        assert [c.token_ids for c in texts] == [c.token_ids for c in plain(llm).generate([[0], [1]], params)]


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(128, 152), (152, 128)])
@pytest.mark.parametrize("topk", [1, 3])
def test_padded_vocabularies_are_exact(target_rows: int, draft_rows: int, topk: int) -> None:
    target = ToyTarget(target_rows, seed=3, sharpness=2.0)
    draft = target.imitation(0.2, vocab_size=draft_rows)
    config = {"model": draft, "topk": topk, "cut_drafts": False}
    llm = LLM.from_parts(target, byte_tokenizer(), speculative_config=config)
    params = [greedy(max_tokens=30), SamplingParams(seed=3, max_tokens=30)]
    fast = llm.generate([[5, 6], [7]], params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain(llm).generate([[5, 6], [7]], params)]
    assert all(c.stats.num_accepted_draft_tokens > 5 for c in fast)


@pytest.mark.parametrize("depth", [1, 2, 5, 8])
@pytest.mark.parametrize("left", [1, 2, 3, 7])
def test_a_text_ends_exactly_at_the_context_limit(depth: int, left: int) -> None:
    llm = speaker(list(range(50, 70)), max_length=len(PROMPT) + left, num_speculative_tokens=depth)
    done = both(llm, greedy(max_tokens=50))
    assert (list(done.token_ids), done.finish_reason) == (list(range(50, 50 + left)), "length")


def test_past_the_window_of_the_draft_model_the_text_goes_on() -> None:
    target = ToyTarget(VOCAB, seed=6, sharpness=2.0)
    for length in (40, 60, 63, 64, 100):
        prompt = list(range(length))
        draft = target.imitation(0.0, max_length=64)
        llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config={"model": draft})
        done = llm.generate(prompt, greedy(max_tokens=40))[0]
        assert done.token_ids == plain(llm).generate(prompt, greedy(max_tokens=40))[0].token_ids
        assert (done.stats.num_accepted_draft_tokens > 0) == (length < 64)


def test_a_draft_model_of_another_dtype_changes_speed_alone() -> None:
    target = ToyTarget(VOCAB, seed=6, sharpness=2.0)
    draft = ToyTarget(VOCAB, seed=6, sharpness=2.0, dtype=torch.bfloat16)
    llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config={"model": draft})
    params = [greedy(max_tokens=60), SamplingParams(seed=4, max_tokens=60)]
    fast = llm.generate([PROMPT] * 2, params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain(llm).generate([PROMPT] * 2, params)]
    assert sum(c.stats.num_accepted_draft_tokens for c in fast) > 60


# Aborts, counters, requests of their own.


def test_an_abort_frees_both_caches_and_leaves_the_others_alone() -> None:
    target = ToyTarget(VOCAB, seed=6, sharpness=2.0)
    draft = target.imitation(0.2)
    llm = LLM.from_parts(target, byte_tokenizer(), speculative_config={"model": draft})
    params = SamplingParams(seed=4, max_tokens=40, ignore_eos=True)
    whole = llm.generate(PROMPT, params)[0]
    kept, ended = llm.stream(PROMPT, params), llm.stream([*PROMPT, 1], params)
    next(kept)
    next(ended)
    done = ended.abort()
    assert done.finish_reason == "abort"
    assert 0 < len(done.token_ids) < 40
    assert len(target.open_sequences) == len(draft.open_sequences) == 1
    for _ in kept:
        pass
    assert kept.completion.token_ids == whole.token_ids
    assert target.open_sequences == draft.open_sequences == ()


@pytest.mark.parametrize("config", [
    {"topk": 1}, {"topk": 3}, {"topk": 2, "guarantee": "same_distribution"},
    {"method": ["ngram", "draft_model"]}, {"method": "ngram", "model": None}, {"method": "none", "model": None},
], ids=str)  # fmt: skip
def test_counters_reconcile_for_each_request_and_for_all(config: dict[str, Any]) -> None:
    target = ToyTarget(VOCAB, seed=6, sharpness=2.0)
    settings = {"method": "draft_model", "model": target.imitation(0.3), **config}
    llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=settings)
    texts = llm.generate([PROMPT, [1, 2, 1, 2, 1, 2], [9]], SamplingParams(seed=4, max_tokens=40))
    total = SpeculationStats.total([done.stats for done in texts])
    for done in texts:
        assert done.stats.num_emitted_tokens == len(done.token_ids) == 40
        assert sum(done.from_draft) == done.stats.num_accepted_draft_tokens
    for name in ("num_rounds", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert getattr(total, name) == sum(getattr(done.stats, name) for done in texts)
    assert total.num_emitted_tokens == 120
    assert total.num_spec_tokens == texts[0].stats.num_spec_tokens
    for stats in (*(done.stats for done in texts), total):
        assert 0 <= stats.num_accepted_draft_tokens <= stats.num_draft_tokens
        assert stats.num_spec_steps <= stats.num_rounds
        assert (
            stats.num_rounds <= stats.num_emitted_tokens <= stats.num_rounds + stats.num_accepted_draft_tokens
        )
        histogram = stats.acceptance_histogram
        assert sum(histogram) == stats.num_spec_steps
        assert (
            sum(length * count for length, count in enumerate(histogram)) == stats.num_accepted_draft_tokens
        )
        assert 0.0 <= stats.draft_acceptance_rate <= 1.0
        assert stats.tokens_per_pass == pytest.approx(stats.num_emitted_tokens / stats.num_rounds)


def test_a_request_may_switch_speculation_off_or_cap_it_for_itself() -> None:
    llm = imitated(num_speculative_tokens=6, cut_drafts=False)
    asked = [{}, {"off": True}, {"n_max": 2}, {"n_max": 0}]
    params = [SamplingParams(seed=4, max_tokens=40, speculative=s) for s in asked]
    free, off, capped, none = llm.generate([PROMPT] * 4, params)
    assert free.token_ids == off.token_ids == capped.token_ids == none.token_ids
    assert off.stats.num_draft_tokens == none.stats.num_draft_tokens == 0
    assert 0 < capped.stats.num_draft_tokens <= 2 * capped.stats.num_spec_steps
    assert free.stats.num_draft_tokens > 3 * free.stats.num_spec_steps


@pytest.mark.parametrize(("settings", "named"), [
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"frequency_penalty": math.nan}, "frequency_penalty"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"guided_regex": "a+"}, "guided_regex"),
    ({"best_of": 2}, "best_of"), ({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"),
    ({"speculative": {"of": True}}, "of"), ({"min_tokens": 200}, "min_tokens"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        SamplingParams.from_mapping(settings)


@pytest.mark.parametrize(("prompt", "params", "named"), [
    ([[]], {}, "empty"), ([VOCAB], {}, str(VOCAB)), ([1], {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    ([1], {"stop_token_ids": [VOCAB]}, "stop_token_ids"), (list(range(50)), {}, "50 tokens"),
    ([1], {"logprobs": VOCAB + 1}, "logprobs"),
])  # fmt: skip
def test_a_prompt_or_setting_that_the_model_cannot_take_is_refused(
    prompt: Any, params: dict[str, Any], named: str
) -> None:
    with pytest.raises(ParameterError, match=named):
        speaker(SAID, max_length=50).generate(prompt, SamplingParams(**params))


def test_a_repeating_draft_meets_the_penalty_of_its_own_tokens() -> None:
    target = ToyTarget.from_table({(): (0.5, 0.3, 0.2), (0, 0): (0.6, 0.3, 0.1)})
    for depth in range(1, 7):
        repeating = ToyTarget.from_table({(): (1.0, 0.0, 0.0)})
        config = {"model": repeating, "num_speculative_tokens": depth}
        llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=config)
        params = greedy(max_tokens=12, frequency_penalty=2.0)
        done = llm.generate([0, 0, 0], params)[0]
        assert done.token_ids == plain(llm).generate([0, 0, 0], params)[0].token_ids
        assert len(set(done.token_ids)) == 3, "the penalty turns the text"
