"""The target's own answers to the prompts: written in batches, kept in a file that grows line by line."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.core.noise import choice_seed
from outrider.core.sampling import SamplingParams
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.train.prompts import Prompt
from outrider.train.texts import Text

TEMPERATURES = (0.0, 0.7, 1.0)
_GROUP = 96
"""Answers between two writes to the file: a batch stays full, and little is lost. Fewer near the end."""


class AnswerObserver(Protocol):
    """Hears how far answering has come."""

    def doing(self, what: str) -> None:
        """Something begins that may take a minute and tells nothing of itself."""

    def answered(self, texts: int, tokens: int, seconds: float) -> None:
        """So many texts and answer tokens are there, the new ones of them in so many seconds."""


@dataclass(frozen=True)
class Question:
    """One text to be written: a prompt at a temperature with a seed of its own."""

    prompt: Prompt
    temperature: float
    seed: int


@dataclass(frozen=True)
class AnswerSettings:
    """How prompts are answered. `seconds` and `most_tokens` end it early; None: when all are answered."""

    most_new: int = 256  # tokens of an answer
    seconds: float | None = None
    most_tokens: int | None = None


def questions(prompts: Sequence[Prompt], seed: int) -> list[Question]:
    """Each prompt once, at temperatures in turn."""
    return [
        Question(prompt, TEMPERATURES[index % len(TEMPERATURES)], choice_seed(seed, index))
        for index, prompt in enumerate(prompts)
    ]


def held_out_questions(prompts: Sequence[Prompt], seed: int) -> list[Question]:
    """Each prompt once at temperature 0, where rounds can be played back."""
    return [Question(prompt, 0.0, choice_seed(seed, index)) for index, prompt in enumerate(prompts)]


def answer(llm: LLM, asked: Sequence[Question], path: Path, settings: AnswerSettings,
           observer: AnswerObserver | None = None) -> list[Text]:  # fmt: skip
    """The answers to as many of the questions as there is time for, in their order.

    Those in the file at `path` are not asked again: after an interruption the same call goes on. The speculation of
    `llm` does not change the texts. Raises `ConfigError` where the file belongs to other questions.
    """
    texts, whole = _kept(path, asked)
    tokens = sum(len(text.answer) for text in texts)
    begin = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if whole is not None:
            file.truncate(whole)
        while len(texts) < len(asked):
            spent = time.monotonic() - begin
            if settings.seconds is not None and spent >= settings.seconds:
                break
            if settings.most_tokens is not None and tokens >= settings.most_tokens:
                break
            count = _group(len(texts), tokens, settings)
            new = _answered(llm, asked[len(texts) : len(texts) + count], settings)
            file.writelines(_line(text) for text in new)
            file.flush()
            os.fsync(file.fileno())
            texts += new
            tokens += sum(len(text.answer) for text in new)
            if observer is not None:
                observer.answered(len(texts), tokens, time.monotonic() - begin)
    return texts


def kept_answers(path: Path, asked: Sequence[Question]) -> list[Text]:
    """Those that the file at `path` holds, in the order of the questions; none where there is no file.

    A last line that an interruption cut short does not count. Raises `ConfigError` where it belongs to other questions.
    """
    return _kept(path, asked)[0]


def _kept(path: Path, asked: Sequence[Question]) -> tuple[list[Text], int | None]:
    """See `kept_answers`; and how many bytes of the file are whole lines, where its last line is not."""
    texts: list[Text] = []
    if not path.exists():
        return texts, None
    whole = 0
    with path.open("rb") as file:
        for question, line in zip(asked, file):
            if not line.endswith(b"\n"):
                return texts, whole
            text = _text(line, path)
            if (text.prompt, text.temperature) != (question.prompt.tokens, question.temperature):
                raise ConfigError(
                    f"{path}: holds answers to other prompts: give the prompts it was made for, or another file"
                )
            whole += len(line)
            texts.append(text)
    return texts, None


def _group(texts: int, tokens: int, settings: AnswerSettings) -> int:
    """How many questions to ask at once: near the end as many as their mean length so far says are left to answer."""
    if settings.most_tokens is None:
        return _GROUP
    mean = tokens / texts if texts else settings.most_new
    return min(_GROUP, math.ceil((settings.most_tokens - tokens) / mean))


def _answered(llm: LLM, group: Sequence[Question], settings: AnswerSettings) -> list[Text]:
    sampling = [
        SamplingParams(temperature=question.temperature, seed=question.seed, max_tokens=settings.most_new)
        for question in group
    ]
    completions = llm.generate([list(question.prompt.tokens) for question in group], sampling)
    return [
        Text(question.prompt.tokens, done.token_ids, question.temperature, question.prompt.source)
        for question, done in zip(group, completions)
    ]


def _line(text: Text) -> str:
    record = {
        "source": text.source,
        "temperature": text.temperature,
        "prompt": list(text.prompt),
        "answer": list(text.answer),
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def _text(line: bytes, path: Path) -> Text:
    try:
        record = json.loads(line)
        return Text(
            tuple(record["prompt"]),
            _token_ids(record["answer"]),
            float(record["temperature"]),
            str(record["source"]),
        )
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: holds a line that is no answer ({error}): remove the file") from None


def _token_ids(numbers: Sequence[int]) -> tuple[int, ...]:
    """An answer's, one at least."""
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("an answer must be token ids")
    return tuple(numbers)
