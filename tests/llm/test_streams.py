"""Streams, and several callers of one model: nothing is lost, mixed up or left running."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from worded import GREEDY, NGRAM, llm_of, tokenizer

from outrider import LLM, SamplingParams
from outrider.errors import ParameterError, ScoreError


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


def test_streaming_takes_one_prompt_and_one_choice() -> None:
    with pytest.raises(ParameterError, match="one prompt"):
        llm_of().stream(["w2", "w3"])  # type: ignore[list-item]
    with pytest.raises(ParameterError, match="n must be 1"):
        llm_of().stream("w2", SamplingParams(n=2))


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
