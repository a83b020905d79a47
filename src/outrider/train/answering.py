"""`Answering`: the stage of a run in which the target answers, or finds again what it answered before."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.train.answers import (
    AnswerObserver,
    AnswerSettings,
    answer,
    held_out_questions,
    kept_answers,
    questions,
)
from outrider.train.checkpoint import replace_file
from outrider.train.estimate import Workload
from outrider.train.plan import Plan
from outrider.train.prompts import PromptSplit
from outrider.train.provenance import TargetMarks
from outrider.train.settings import TrainSettings
from outrider.train.texts import Text

_ANSWER_FILE, _HELD_OUT_FILE, _MARKS_FILE = "answers.jsonl", "held_out.jsonl", "target.json"


@dataclass(frozen=True, eq=False)
class Answers:
    """Texts to train on, and texts that are only judged on."""

    train: list[Text]
    held_out: list[Text]


class Answering:
    """The questions of a run, and the folder of their answers, which several runs may share."""

    def __init__(self, llm: LLM, settings: TrainSettings, marks: TargetMarks, prompts: PromptSplit) -> None:
        """`marks`: what the target that `llm` holds is known by."""
        self._llm, self._settings, self._marks = llm, settings, marks
        self._folder = settings.answer_folder
        self._train = questions(prompts.train, settings.seed)
        self._held_out = held_out_questions(prompts.held_out, settings.seed)

    def check(self) -> None:
        """Raises `ConfigError` on answers that are of no use: of another length, tokenizer or chat template."""
        path = self._folder / _MARKS_FILE
        if not path.exists():
            return
        marks, most_new = _marks_in(path), self._settings.most_new
        difference = self._marks.difference(marks)
        if difference is not None:
            raise ConfigError(
                f"{self._folder} holds answers of a target with another {difference}: answer anew in another folder"
            )
        if marks.get("most_new", most_new) != most_new:
            raise ConfigError(
                f"{self._folder} holds answers of up to {marks['most_new']} tokens, not {most_new}: give "
                f"--max-new-tokens {marks['most_new']}, or answer anew in another folder"
            )

    def workload(self, plan: Plan | None) -> Workload:
        """What there is to answer and to train on, as far as can be told before. Raises `ConfigError` as `read`."""
        settings = self._settings
        asked = self._train if plan is None else self._train[: plan.texts]
        found, held_out = self._kept(plan)
        missing, unheard = asked[len(found) :], self._held_out[len(held_out) :]
        read, whole = (sum(len(q.prompt.tokens) for q in missing), settings.most_new * len(missing))
        if plan is None and settings.answer_tokens is not None:
            left = max(0, settings.answer_tokens - sum(len(text.answer) for text in found))
            read, whole = (read, min(whole, left)) if left else (0, 0)
        new = read + whole + sum(len(q.prompt.tokens) + settings.most_new for q in unheard)
        there = sum(len(text.tokens) for text in (*found, *held_out))
        prompts = len(asked) + len(self._held_out)
        return Workload(prompts, len(found) + len(held_out), there + new, new)

    def write(self, plan: Plan | None, until: float | None, observer: AnswerObserver) -> None:
        """Answers the held-out questions, then of the others as many as `plan` trains on.

        Without a plan yet: as many as `answer_tokens` and the time `until` (of `time.monotonic`) allow, a second's
        worth at least.
        """
        settings = self._settings
        marks = {**vars(self._marks), "most_new": settings.most_new}
        text = json.dumps(marks, indent=2) + "\n"
        replace_file(self._folder / _MARKS_FILE, lambda file: file.write(text.encode()))
        whole = AnswerSettings(most_new=settings.most_new)
        _, held_out = self._kept(plan)
        if len(held_out) < len(self._held_out):
            observer.doing(f"answering {len(self._held_out) - len(held_out)} held-out prompts")
        answer(self._llm, self._held_out, self._folder / _HELD_OUT_FILE, whole)
        asked, bounds = self._train, whole
        if plan is not None:
            asked = asked[: plan.texts]
        else:
            seconds = None if until is None else max(1.0, until - time.monotonic())
            bounds = replace(whole, seconds=seconds, most_tokens=settings.answer_tokens)
        answer(self._llm, asked, self._folder / _ANSWER_FILE, bounds, observer)

    def read(self, plan: Plan | None) -> Answers:
        """What was written, as far as `plan` trains on it. Raises `ConfigError` where nothing was."""
        texts, held_out = self._kept(plan)
        if not texts:
            raise ConfigError("the budget ended before any prompt was answered: give a longer --budget")
        return Answers(texts, held_out)

    def _kept(self, plan: Plan | None) -> tuple[list[Text], list[Text]]:
        texts = kept_answers(self._folder / _ANSWER_FILE, self._train)
        held_out = kept_answers(self._folder / _HELD_OUT_FILE, self._held_out)
        return texts if plan is None else texts[: plan.texts], held_out


def _marks_in(path: Path) -> dict[str, Any]:
    try:
        marks = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(marks, dict):
            raise ValueError("no table")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it, with the answers beside it") from None
    return marks
