"""`outrider generate` on a toy model: the text, the JSON, interruption, input from a pipe."""

from __future__ import annotations

import errno
import json
import sys

import pytest

from outrider.core.sampling import SamplingParams

FIELDS = ["text", "token_ids", "finish_reason", "seed", "guarantee", "usage", "metrics", "timings"]
COUNTERS = [
    "num_rounds", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_spec_tokens",
    "mean_acceptance_length", "tokens_per_pass", "draft_acceptance_rate", "acceptance_histogram",
]  # fmt: skip
TIMINGS = [
    "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "predicted_per_second", "draft_n", "draft_n_accepted",
]  # fmt: skip


def refuse_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_json_is_all_of_stdout_and_its_numbers_reconcile(outrider, target) -> None:
    done = outrider("generate", "toy", "abcabc", "--method", "ngram", "--max-tokens", "40", "--json")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out, parse_constant=refuse_constants)
    assert list(report) == FIELDS
    counters, timings = report["metrics"]["speculative_decoding"], report["timings"]
    assert list(counters) == COUNTERS
    assert list(timings) == TIMINGS
    assert report["usage"] == {"prompt_tokens": 6, "completion_tokens": 40, "total_tokens": 46}
    assert len(report["token_ids"]) == 40
    assert report["finish_reason"] == "length"
    assert report["guarantee"] == "same_text"
    assert counters["num_accepted_draft_tokens"] + counters["num_rounds"] == 40
    assert sum(counters["acceptance_histogram"]) == counters["num_spec_steps"]
    assert counters["num_rounds"] == target.calls["score"] < 40
    assert timings["prompt_n"] == 6
    assert timings["predicted_n"] == 40
    assert timings["draft_n"] == counters["num_draft_tokens"] > 0
    assert timings["draft_n_accepted"] == counters["num_accepted_draft_tokens"]
    assert timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(40 / timings["predicted_ms"] * 1e3)


def test_speculation_changes_neither_text_nor_ids(outrider, target) -> None:
    arguments = ("generate", "toy", "abcabc", "--json", "--temperature", "0.7", "--seed", "5")
    plain = json.loads(outrider(*arguments).out)
    fast = json.loads(outrider(*arguments, "--method", "ngram").out)
    assert plain["metrics"]["speculative_decoding"] is None
    assert (plain["timings"]["draft_n"], plain["seed"]) == (0, 5)
    assert fast["timings"]["draft_n"] > 0
    assert (plain["text"], plain["token_ids"]) == (fast["text"], fast["token_ids"])


def test_a_pipe_gets_the_plain_text_and_stderr_one_summary(outrider, target) -> None:
    report = json.loads(outrider("generate", "toy", "abcabc", "--json").out)
    done = outrider("generate", "toy", "abcabc", "--method", "ngram")
    assert done.out == report["text"] + "\n"
    assert done.err.count("\n") == 1
    for part in ("128 tokens", "tokens/s", "tokens per pass", "% drafted", "same_text"):
        assert part in done.err


def test_a_dash_reads_the_prompt_from_stdin_without_its_last_line_break(outrider, target) -> None:
    given = json.loads(outrider("generate", "toy", "héllo\nyou", "--json").out)
    piped = json.loads(outrider("generate", "toy", "-", "--json", stdin="héllo\nyou\n".encode()).out)
    assert piped["token_ids"] == given["token_ids"]
    assert piped["usage"] == given["usage"]


@pytest.mark.parametrize(
    ("stdin", "told"),
    [(b"", "the prompt is empty"), (b"\n", "the prompt is empty"), (b"\xff\xfe", "not UTF-8")],
)
def test_nothing_on_stdin_or_no_text_is_an_error(outrider, target, stdin, told) -> None:
    failed = outrider("generate", "toy", "-", stdin=stdin)
    assert failed.code == 2
    assert failed.err.count("\n") == 1
    assert told in failed.err


def test_a_prompt_over_the_context_is_one_line(outrider, target) -> None:
    failed = outrider("generate", "toy", "a" * 600)
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("error: the prompt holds 600 tokens and the context 600")


def test_chat_puts_the_prompt_into_the_template(outrider, target) -> None:
    outrider("generate", "toy", "hi", "--chat", "--max-tokens", "2")
    outrider("generate", "toy", "<user>hi\n<assistant>", "--max-tokens", "2")
    assert target.read[0] == target.read[1]


def test_ctrl_c_keeps_the_text_so_far_and_exits_with_130(outrider, target) -> None:
    whole = json.loads(outrider("generate", "toy", "abcabc", "--json").out)
    target.calls.clear()
    target.interrupt_at = 9
    partial = outrider("generate", "toy", "abcabc", "--json")
    report = json.loads(partial.out)
    assert partial.code == 130
    assert report["finish_reason"] == "abort"
    assert report["token_ids"] == whole["token_ids"][:8]
    assert whole["text"].startswith(report["text"].rstrip("\ufffd"))
    assert target.open_sequences == ()
    target.calls.clear()
    target.interrupt_at = 9
    shown = outrider("generate", "toy", "abcabc")
    assert (shown.code, shown.out) == (130, report["text"] + "\n")
    assert "8 tokens" in shown.err


def several(choices: int) -> tuple[str, ...]:
    """Arguments that write this many choices of one prompt."""
    return tuple(f"generate toy ab --n {choices} --temperature 1 --seed 4 --max-tokens 9".split())


def test_ctrl_c_keeps_what_every_choice_has_written(outrider, target) -> None:
    arguments = several(3)
    whole = json.loads(outrider(*arguments, "--json").out)
    target.calls.clear()
    target.interrupt_at = 6
    partial = outrider(*arguments, "--json")
    report = json.loads(partial.out)
    assert partial.code == 130
    assert [choice["finish_reason"] for choice in report["choices"]] == ["abort"] * 3
    for part, text in zip(report["choices"], whole["choices"]):
        assert part["token_ids"] == text["token_ids"][:5]
        assert part["seed"] == text["seed"]
    assert report["usage"]["completion_tokens"] == 15
    assert target.open_sequences == ()
    target.calls.clear()
    target.interrupt_at = 6
    shown = outrider(*arguments)
    assert shown.code == 130
    assert all(choice["text"] in shown.out for choice in report["choices"])


def test_a_choice_that_had_ended_keeps_its_reason_on_ctrl_c(outrider, target) -> None:
    arguments = several(2)
    texts = [choice["token_ids"] for choice in json.loads(outrider(*arguments, "--json").out)["choices"]]
    stop = next(token for token in texts[0][:4] if token not in texts[1])
    target.calls.clear()
    target.interrupt_at = 7
    partial = outrider(*arguments, "--stop-token-ids", str(stop), "--json")
    report = json.loads(partial.out)
    assert (partial.code, report["finish_reason"]) == (130, "stop")
    assert [choice["finish_reason"] for choice in report["choices"]] == ["stop", "abort"]


def test_several_choices_have_their_seeds_and_count_together(outrider, target) -> None:
    done = outrider(*several(3), "--json")
    report = json.loads(done.out)
    assert [choice["index"] for choice in report["choices"]] == [0, 1, 2]
    assert report["choices"][0]["token_ids"] == report["token_ids"]
    assert len({choice["seed"] for choice in report["choices"]}) == 3
    assert report["usage"]["completion_tokens"] == 27 == report["timings"]["predicted_n"]
    alone = outrider("generate", "toy", "ab", "--temperature", "1", "--seed", str(report["choices"][2]["seed"]),
                     "--max-tokens", "9", "--json")  # fmt: skip
    assert json.loads(alone.out)["token_ids"] == report["choices"][2]["token_ids"]
    shown = outrider(
        "generate", "toy", "ab", "--n", "3", "--temperature", "1", "--seed", "4", "--max-tokens", "9"
    )
    assert all(choice["text"] in shown.out for choice in report["choices"])


def test_logprobs_are_one_per_token_with_the_alternatives_asked_for(outrider, target) -> None:
    done = outrider("generate", "toy", "ab", "--logprobs", "2", "--max-tokens", "5", "--json")
    report = json.loads(done.out, parse_constant=refuse_constants)
    content = report["logprobs"]["content"]
    assert [item["token_id"] for item in content] == report["token_ids"]
    assert all(len(item["top_logprobs"]) == 2 for item in content)
    assert all(item["top_logprobs"][0]["token_id"] == item["token_id"] for item in content)


def test_every_sampling_flag_reaches_the_request(outrider, target, monkeypatch) -> None:
    from outrider.llm import LLM

    seen: list[SamplingParams] = []
    stream = LLM.stream
    monkeypatch.setattr(
        LLM, "stream", lambda llm, prompt, params: seen.append(params) or stream(llm, prompt, params)
    )
    flags = (
        "--temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty 0.3 --seed 3 --max-tokens 6 --min-tokens 2 --stop xx --stop yy --stop-token-ids 1,2 "
        "--ignore-eos --bad-words zz --no-repeat-ngram-size 4"
    )
    done = outrider("generate", "toy", "ab", *flags.split(), "--logit-bias", '{"4": -2.5}')
    assert done.code == 0, done.err
    expected = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, seed=3, max_tokens=6, min_tokens=2, stop=("xx", "yy"), stop_token_ids=(1, 2),
        ignore_eos=True, bad_words=("zz",), no_repeat_ngram_size=4, logit_bias={4: -2.5},
    )  # fmt: skip
    assert seen == [expected]


def test_a_closed_pipe_is_quiet(outrider, target, monkeypatch, capsys) -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys.stdout, "write", closed)
    assert outrider("generate", "toy", "ab").code == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--n", "2"]])
def test_a_full_disk_is_one_line(outrider, target, monkeypatch, arguments) -> None:
    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.stdout, "write", full)
    failed = outrider("generate", "toy", "ab", *arguments)
    assert (failed.code, failed.err) == (
        74,
        "error: the output cannot be written (No space left on device): make room for it\n",
    )
