"""Answers: the target's own texts, written once, whatever interrupts the writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_target import save_target

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.train import answers
from outrider.train.answers import (
    TEMPERATURES,
    AnswerSettings,
    Question,
    answer,
    held_out_questions,
    kept_answers,
    questions,
)
from outrider.train.prompts import Prompt
from outrider.train.texts import Text

SETTINGS = AnswerSettings(most_new=5)
SEED = 3
PROMPTS = [Prompt((10 + i, 20 + i), "some.jsonl") for i in range(7)]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(save_target(tmp_path_factory.mktemp("targets") / "tiny"), target="torch", dtype="float32")


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_GROUP", 3)


def test_answers_are_what_the_target_says_at_temperatures_in_turn(llm: LLM, tmp_path: Path) -> None:
    asked = questions(PROMPTS, SEED)
    texts = answer(llm, asked, tmp_path / "a.jsonl", SETTINGS)
    assert [text.temperature for text in texts] == [TEMPERATURES[i % 3] for i in range(7)]
    for question, text in zip(asked, texts):
        sampling = SamplingParams(temperature=question.temperature, seed=question.seed, max_tokens=5)
        [alone] = llm.generate([list(question.prompt.tokens)], sampling)
        assert (text.prompt, text.answer) == (question.prompt.tokens, alone.token_ids)
        assert text.source == "some.jsonl"


def test_every_question_has_a_seed_of_its_own() -> None:
    asked = questions(PROMPTS, SEED)
    assert len({question.seed for question in asked}) == len(asked) == 7


def test_held_out_prompts_are_answered_greedily() -> None:
    assert {question.temperature for question in held_out_questions(PROMPTS, 1)} == {0.0}


class Stop(Exception):
    """An interruption."""


class StopAfter:
    def __init__(self, groups: int) -> None:
        self.left = groups

    def answered(self, texts: int, tokens: int, seconds: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop


@pytest.mark.parametrize("torn", [b"", b'{"source": "some.jso'])
def test_an_interrupted_file_is_gone_on_with(llm: LLM, tmp_path: Path, torn: bytes) -> None:
    asked = questions(PROMPTS, SEED)
    whole = answer(llm, asked, tmp_path / "whole.jsonl", SETTINGS)
    path = tmp_path / "part.jsonl"
    with pytest.raises(Stop):
        answer(llm, asked, path, SETTINGS, StopAfter(1))
    with path.open("ab") as file:
        file.write(torn)
    assert answer(llm, asked, path, SETTINGS) == whole
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_answering_ends_with_its_tokens_or_its_time(llm: LLM, tmp_path: Path) -> None:
    asked = questions(PROMPTS, SEED)
    assert len(answer(llm, asked, tmp_path / "a", AnswerSettings(most_new=5, most_tokens=16))) == 4
    assert answer(llm, asked, tmp_path / "b", AnswerSettings(most_new=5, seconds=0.0)) == []


def test_answering_ends_near_its_tokens_with_the_first_of_the_texts(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are cut to lengths of their own, from 1 to 12 tokens, as ends of text would cut them."""

    def cut(llm: LLM, group: Sequence[Question], settings: AnswerSettings) -> list[Text]:
        return [
            replace(text, answer=text.answer[: 1 + text.prompt[0] % 12])
            for text in whole_answers(llm, group, settings)
        ]

    whole_answers = answers._answered
    monkeypatch.setattr(answers, "_answered", cut)
    monkeypatch.setattr(answers, "_GROUP", 32)
    asked = questions([Prompt((i * 7 % 250, i), "some.jsonl") for i in range(96)], SEED)
    wanted, settings = 300, AnswerSettings(most_new=12, most_tokens=300)
    texts = answer(llm, asked, tmp_path / "some.jsonl", settings)
    assert wanted <= sum(len(text.answer) for text in texts) <= 1.05 * wanted
    assert (
        answer(llm, asked, tmp_path / "all.jsonl", replace(settings, most_tokens=None))[: len(texts)] == texts
    )


def test_looking_for_answers_leaves_the_file_as_it_is(llm: LLM, tmp_path: Path) -> None:
    asked, path = questions(PROMPTS, SEED), tmp_path / "a.jsonl"
    whole = answer(llm, asked, path, SETTINGS)
    torn = path.read_bytes()[:-9]
    path.write_bytes(torn)
    assert kept_answers(path, asked) == whole[:-1]
    assert path.read_bytes() == torn


def test_who_asks_less_leaves_the_other_answers_where_they_are(llm: LLM, tmp_path: Path) -> None:
    asked = questions(PROMPTS, SEED)
    whole = answer(llm, asked, tmp_path / "a.jsonl", SETTINGS)
    assert answer(llm, asked[:3], tmp_path / "a.jsonl", SETTINGS) == whole[:3]
    assert kept_answers(tmp_path / "a.jsonl", asked) == whole


def test_answers_to_other_prompts_are_refused(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    answer(llm, questions(PROMPTS, SEED), path, SETTINGS)
    with pytest.raises(ConfigError, match="answers to other prompts"):
        answer(llm, questions(PROMPTS[1:], SEED), path, SETTINGS)


@pytest.mark.parametrize(
    "line",
    ['{"prompt": [1]}', "[" * 100_000,
     *(f'{{"source": "a", "temperature": 0.0, "prompt": [10, 20], "answer": {bad}}}' for bad in (
         "[]", '"abc"', "[1.5]", "[-1]", "[[1]]", "[true]"))],
    ids=["no answer", "deep", "empty", "text", "fraction", "negative", "list", "truth value"],
)  # fmt: skip
def test_a_damaged_line_is_named(llm: LLM, tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"a.jsonl: holds a line that is no answer"):
        answer(llm, questions(PROMPTS, SEED), path, SETTINGS)
