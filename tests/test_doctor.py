"""What doctor measures, on toy targets: texts, prompts, and the parts of a checkup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from outrider import LLM, SamplingParams
from outrider.doctor import WIDTHS, PromptSet, checkup, greedy_texts, question_prompts
from outrider.errors import ConfigError
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer
from outrider.text.chat import ChatTemplate

VOCAB = 48
PROMPTS = PromptSet("words", tuple(f"w{i} w{i + 1} w{i + 2}" for i in range(2, 22)))


def tokenizer(template: str | None = None) -> Tokenizer:
    words = {f"w{i}": i for i in range(VOCAB)}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, template=ChatTemplate(template, {}) if template else None)


def toy(seed: int = 3, **settings: object) -> ToyTarget:
    return ToyTarget(VOCAB, **{"seed": seed, "sharpness": 3.0, "max_length": 200, **settings})  # type: ignore[arg-type]


def test_texts_are_plain_greedy_answers_in_order_until_the_positions_are_covered() -> None:
    texts = list(greedy_texts(toy(), tokenizer(), PROMPTS, positions=50, answer_tokens=10))
    assert len(texts) == 8, "whole batches are written"
    llm = LLM.from_parts(toy(), tokenizer())
    for text, message in zip(texts, PROMPTS.messages):
        assert text.prompt == tuple(tokenizer().encode(message))
        [alone] = llm.generate(message, SamplingParams(temperature=0.0, max_tokens=10))
        assert text.answer == alone.token_ids
    assert sum(len(text.answer) for text in texts) >= 50
    more = list(greedy_texts(toy(), tokenizer(), PROMPTS, positions=100, answer_tokens=10))
    assert more[:8] == texts
    assert len(more) == 16


def test_messages_go_through_the_chat_template_where_there_is_one() -> None:
    template = "w40 {% for m in messages %}{{ m.content }} {% endfor %}w41"
    [text, *_] = greedy_texts(toy(), tokenizer(template), PROMPTS, positions=1, answer_tokens=4)
    assert text.prompt == (40, 2, 3, 4, 41)


def test_prompts_that_leave_no_room_for_an_answer_are_passed_over() -> None:
    prompts = PromptSet("mixed", ("w2 " * 30, "w3 w4"))
    texts = list(greedy_texts(toy(max_length=20), tokenizer(), prompts, positions=5, answer_tokens=10))
    assert [text.prompt for text in texts] == [(3, 4)]
    assert list(greedy_texts(toy(max_length=8), tokenizer(), prompts, answer_tokens=10)) == []


def test_a_checkup_holds_costs_rates_and_the_error_against_the_reference() -> None:
    found = checkup(toy(4), tokenizer(), toy(3), PROMPTS, positions=40, answer_tokens=10)
    assert tuple(found.cost_ms) == WIDTHS
    assert found.rates.bandwidth_gbs > 0
    assert found.error is not None
    assert found.error.positions == 40
    assert found.error.kl_nats > 0.01
    assert found.error.top1 < 1
    itself = checkup(toy(), tokenizer(), toy(), PROMPTS, positions=40, answer_tokens=10)
    assert itself.error is not None
    assert (itself.error.kl_nats, itself.error.top1) == (0.0, 1.0)


def test_questions_come_from_the_folder_of_prompt_sets_or_else_are_the_built_in_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTRIDER_PROMPTS", raising=False)
    assert question_prompts(PROMPTS) is PROMPTS
    monkeypatch.setenv("OUTRIDER_PROMPTS", str(tmp_path))
    with pytest.raises(ConfigError, match="unset OUTRIDER_PROMPTS"):
        question_prompts(PROMPTS)
    lines = [{"question_id": i, "turns": [f"first {i}", "second"]} for i in range(3)]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert question_prompts(PROMPTS) == PromptSet("spec_bench.jsonl", ("first 0", "first 1", "first 2"))
    for content in ('{"turns": []}', "[]", "{", '{"turns": 5}', "7"):
        (tmp_path / "spec_bench.jsonl").write_text(content)
        with pytest.raises(ConfigError, match="cannot be read as Spec-Bench questions"):
            question_prompts(PROMPTS)
