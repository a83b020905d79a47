"""`outrider inspect` and `outrider demo` on toy models."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest
from tiny_folder import letters, save_model

from outrider.cli.demo_prompts import PROMPTS

demo_module = importlib.import_module("outrider.cli.demo")


def test_inspect_reports_the_model_and_its_promise(outrider, target) -> None:
    done = outrider("inspect", "toy", "--json")
    report = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert report["vocab_size"] == 256
    assert report["layers"] == 4
    assert report["row_invariant"] is True
    assert report["guarantee"] == "same_text"
    assert report["guarantee_reason"] == "the target's logits are bitwise equal at any width"
    assert report["target"] == "WatchedTarget"
    assert [report[name] for name in ("activations", "isa", "threads")] == [None, None, None]
    assert report["tokenizer"]["kind"] == "BPE"
    assert report["tokenizer"]["size"] == 256
    assert len(report["tokenizer"]["chat_template"]) == 64
    assert (report["shipped_drafts"], report["auto"]) == ([], {"method": "suffix"})
    assert "pair" not in report
    assert "row_invariant" in outrider("inspect", "toy").out


@pytest.mark.parametrize(
    ("rows", "swapped", "verdict", "code", "told"),
    [
        (256, (), "compatible", 0, None),
        (272, (), "padded", 0, "the target has 256 rows, the draft 272"),
        (256, (7, 9), "incompatible", 1, "id 7 is"),
    ],
)
def test_inspect_judges_a_pair_and_exits_with_one_when_it_does_not_fit(
    outrider, target, tmp_path, rows, swapped, verdict, code, told
) -> None:
    save_model(tmp_path, rows, letters(*swapped))
    done = outrider("inspect", "toy", "--draft", str(tmp_path), "--json")
    assert done.code == code, done.err
    pair = json.loads(done.out)["pair"]
    assert pair["verdict"] == verdict
    assert pair["first_difference"] is None if told is None else told in pair["first_difference"]


def test_inspect_loads_the_draft_where_it_is_told_and_says_where_both_run(outrider, target, tmp_path) -> None:
    save_model(tmp_path, 256, letters())
    arguments = (
        "inspect",
        "toy",
        "--draft",
        str(tmp_path),
        "--draft-dtype",
        "bfloat16",
        "--draft-device",
        "cpu",
    )
    report = json.loads(outrider(*arguments, "--json").out)
    assert report["pair"]["draft"].items() >= {"dtype": "bfloat16", "device": "cpu"}.items()
    assert report["pair"]["draft"].keys() >= {"target", "activations", "isa", "threads"}
    shown = outrider(*arguments)
    assert "dtype bfloat16" in shown.out
    assert "device cpu" in shown.out
    assert report["device"] is None, "the toy target has no device"
    refused = outrider("inspect", "toy", "--draft", str(tmp_path), "--draft-device", "nowhere")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "nowhere" in refused.err


def test_inspect_refuses_a_place_for_a_draft_that_is_not_given(outrider, target) -> None:
    for option, value in (("--draft-dtype", "bfloat16"), ("--draft-device", "cpu")):
        refused = outrider("inspect", "toy", option, value)
        assert (refused.code, refused.err) == (
            2,
            f"error: {option} needs --draft: there is no draft to place\n",
        )


def test_demo_reports_every_prompt_with_figures_that_agree(outrider, target) -> None:
    done = outrider("demo", "--max-tokens", "24", "--json")
    report = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert [row["prompt"] for row in report["rows"]] == [name for name, _ in PROMPTS]
    assert report["same_text"] is True
    assert report["method"] == ["ngram"]
    assert report["row_invariant"] is True
    assert report.keys() >= {"target", "dtype", "activations", "isa", "threads"}
    for row in report["rows"]:
        assert row["same_text"] is True
        assert row["ratio"] == pytest.approx(row["spec_tps"] / row["plain_tps"])
        assert row["tokens_per_pass"] >= 1.0
    assert any(row["tokens_per_pass"] > 1.0 for row in report["rows"])


@pytest.mark.parametrize("tokens", ["0", "4097", "9" * 30])
def test_demo_refuses_texts_without_end_before_it_loads_the_model(outrider, tokens) -> None:
    refused = outrider("demo", "--max-tokens", tokens)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert f"{tokens} is not in the range 1<=x<=4096" in refused.err


def test_demo_table_says_that_the_text_is_the_same(outrider, target) -> None:
    done = outrider("demo", "--max-tokens", "8", "--num-speculative-tokens", "3")
    assert done.code == 0
    assert "same text: yes" in done.out
    assert "target WatchedTarget" in done.out
    assert "guarantee: same_text (the target's logits are bitwise equal at any width)" in done.out
    assert all(name in done.out for name, _ in PROMPTS)
    assert "\x1b" not in done.out


def differing(monkeypatch) -> None:
    """Lets the drafting side write another token at index 5 of every text."""
    answer = demo_module._answer

    def changed(llm, message, sampling):
        completion = answer(llm, message, sampling)
        if llm.config.methods == ("none",) or len(completion.token_ids) < 6:
            return completion
        ids = list(completion.token_ids)
        ids[5] = (ids[5] + 1) % 256
        return dataclasses.replace(completion, token_ids=tuple(ids))

    monkeypatch.setattr(demo_module, "_answer", changed)


def test_demo_says_where_texts_differ_and_that_a_tie_can_be_the_cause(outrider, target, monkeypatch) -> None:
    differing(monkeypatch)
    target.row_invariant = False
    report = json.loads(outrider("demo", "--max-tokens", "8", "--json").out)
    assert report["same_text"] is False
    assert [row["first_difference"] for row in report["rows"]] == [5] * len(PROMPTS)
    shown = outrider("demo", "--max-tokens", "8")
    assert shown.code == 0
    assert "same text: no: 'chat' differs at token 5" in shown.out
    assert "A rounding tie can cause this" in shown.out


def test_demo_fails_when_a_row_invariant_model_writes_another_text(outrider, target, monkeypatch) -> None:
    differing(monkeypatch)
    shown = outrider("demo", "--max-tokens", "8")
    assert shown.code == 1
    assert "This is a defect" in shown.out
