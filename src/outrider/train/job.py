"""`train_draft`: from prompts to a trained draft on the disk, proven on held-out prompts; resumable throughout."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outrider.core.completion import SpeculationStats
from outrider.core.protocols import TappedTarget
from outrider.drafters.setup import tapped
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.models.load import ModelSource, load_arch
from outrider.train.answering import Answering, Answers
from outrider.train.answers import AnswerObserver
from outrider.train.card import write_card
from outrider.train.curve import Curve
from outrider.train.distributed import World
from outrider.train.estimate import Estimate, Workload, check_room, estimate
from outrider.train.evaluation import HeldOut
from outrider.train.features import Features
from outrider.train.forms import own_form
from outrider.train.inputs import Inputs
from outrider.train.live import Live, measure_live
from outrider.train.loop import Autocast, Data, LoopSettings, Observer, train
from outrider.train.plan import Plan, planned, read_plan
from outrider.train.plot import write_plot
from outrider.train.prompts import PromptSplit, render, split
from outrider.train.provenance import Provenance, TargetMarks
from outrider.train.recipe import Recipe
from outrider.train.recipes import TrainTarget, recipe_for
from outrider.train.shapes import check_vocabulary, size_of
from outrider.train.texts import Text

_ANSWER_SHARE = 0.33  # of a budget
_PROOF_SHARE = 0.1
_RATES = {"eagle3": 1e-3, "medusa": 1e-3, "draft_model": 5e-4, "self_draft": 1e-3}
_IN_THE_WAY = (errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EPERM, errno.EROFS)
_HELD_OUT_MEMORY = 1 << 30


class JobObserver(AnswerObserver, Observer, Protocol):
    """Hears how a run goes on, in the first process alone."""

    def estimated(self, found: Estimate) -> None:
        """What the run will cost; nothing has been done yet."""

    def planned(self, plan: Plan) -> None:
        """How long it trains, from here on fixed."""

    def proven(self, live: Live, offline: SpeculationStats) -> None:
        """What the written draft came to in live decoding, beside what was counted offline."""


@dataclass(frozen=True)
class Report:
    """A finished run."""

    folder: Path
    curve: Curve
    offline: SpeculationStats
    live: Live


def train_draft(
    llm: LLM, source: ModelSource, inputs: Inputs, observer: JobObserver, *, world: World,
    command: Sequence[str] = (),
) -> Report | None:  # fmt: skip
    """Trains what `inputs` ask for, for the target that `llm` holds. A call with the same inputs goes on.

    Every process of a world calls it; the first answers prompts, writes, proves the draft and gets the report. Raises
    `ConfigError` before anything is written where files, target or machine do not allow it, and `TrainingError` where
    training fails.
    """
    try:
        return _Job(llm, source, inputs, observer, world).run(command)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise ConfigError(
            f"{error.filename} cannot be written ({error.strerror}): choose another --output or --answers"
        ) from error


class _Job:
    """A run from its settings to its report. The stages are told by `run`; each finds what an earlier call left."""

    def __init__(
        self, llm: LLM, source: ModelSource, inputs: Inputs, observer: JobObserver, world: World
    ) -> None:
        self._llm, self._inputs, self._observer, self._world = llm, inputs, observer, world
        self._settings = inputs.settings
        self._begin = time.monotonic()
        self._target: TappedTarget = tapped(llm.target)
        self._marks = TargetMarks.of(source.name, llm.tokenizer)
        self._train_target = TrainTarget(
            source, load_arch(source), self._target.token_weights(), llm.tokenizer.eos_token_ids
        )

    def run(self, command: Sequence[str]) -> Report | None:
        settings = self._settings
        prompts = self._prompts()
        answering = Answering(self._llm, settings, self._marks, prompts)
        answering.check()
        run = self._identity()
        plan = read_plan(settings.work, run)
        found = self._estimate(answering.workload(plan))
        if self._world.rank == 0:
            self._observer.estimated(found)
        answers = self._answers(answering, plan)
        recipe = self._recipe(answers.train)
        kept = Features(self._target, answers.train, recipe.taps, settings.memory // self._world.size)
        held_out = HeldOut(
            answers.held_out, Features(self._target, answers.held_out, recipe.taps, _HELD_OUT_MEMORY)
        )
        if plan is None:
            plan = self._plan(recipe, kept, held_out, run)
        if self._world.rank == 0:
            self._observer.planned(plan)
        curve = train(recipe, Data(kept, held_out), self._loop(plan), settings.work,
                      observer=self._observer, world=self._world)  # fmt: skip
        return self._finish(recipe, curve, answers, command)

    def _prompts(self) -> PromptSplit:
        settings = self._settings
        limit = self._llm.target.max_length
        room = settings.most_prompt if limit is None else min(settings.most_prompt, limit - settings.most_new)
        if room < 1:
            raise ConfigError(
                f"answers of {settings.most_new} tokens fill the context of {limit}: give fewer --max-new-tokens"
            )
        return split(render(self._inputs.asked, self._llm.tokenizer, room))

    def _identity(self) -> dict[str, Any]:
        """What tells this run from another in the same folder, in terms of JSON."""
        settings, shape = self._settings, self._settings.shape
        named = {name: getattr(settings, name) for name in (
            "steps", "answer_tokens", "most_new", "most_prompt", "learning_rate", "batch_tokens", "seed", "budget",
            "epochs",
        )}  # fmt: skip
        found = {
            **vars(shape),
            **named,
            "target": vars(self._marks),
            "prompts": self._inputs.hashes,
            "start_from": self._inputs.start_hash,
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain

    def _estimate(self, work: Workload) -> Estimate:
        settings = self._settings
        target, start = self._train_target, self._inputs.start
        check_vocabulary(settings, self._target.vocab_size, target.eos_token_ids, start)
        size = size_of(settings.shape, target.arch, start)
        found = estimate(settings, work, size, self._target.hidden_size)
        check_room(found, settings.output)
        return found

    def _answers(self, answering: Answering, plan: Plan | None) -> Answers:
        if self._world.rank == 0:
            budget = self._settings.budget
            until = None if budget is None else self._begin + _ANSWER_SHARE * budget
            answering.write(plan, until, self._observer)
        self._world.wait()
        return answering.read(plan)

    def _recipe(self, texts: Sequence[Text]) -> Recipe:
        return recipe_for(self._settings, self._train_target, texts, self._inputs.start)

    def _plan(self, recipe: Recipe, texts: Features, held_out: HeldOut, run: Mapping[str, Any]) -> Plan:
        settings = self._settings
        if self._world.rank == 0:
            left = None
            if settings.budget is not None:
                self._observer.doing(f"timing steps, and a judgement of {len(held_out.texts)} held-out texts")
                left = settings.budget * (1 - _PROOF_SHARE) - self._spent()
            planned(recipe, texts, held_out, settings, seconds=left, run=run).write(settings.work)
        self._world.wait()
        plan = read_plan(settings.work, run)
        assert plan is not None, "it was just written"
        return plan

    def _loop(self, plan: Plan) -> LoopSettings:
        settings = self._settings
        return LoopSettings(
            steps=plan.steps, learning_rate=self._learning_rate,
            batch_tokens=settings.batch_tokens, seed=settings.seed, evaluate_every=plan.evaluate_every,
            autocast=Autocast(plan.autocast),
        )  # fmt: skip

    def _finish(
        self, recipe: Recipe, curve: Curve, answers: Answers, command: Sequence[str]
    ) -> Report | None:
        report = None
        if self._world.rank == 0:
            report = self._proven(recipe, curve, answers)
            self._publish(recipe, report, answers, command)
        self._world.wait()
        return report

    def _proven(self, recipe: Recipe, curve: Curve, answers: Answers) -> Report:
        """Writes the draft to where a run keeps its state, and decodes with it."""
        settings, finished = self._settings, self._settings.work / "finished"
        shutil.rmtree(finished, ignore_errors=True)
        recipe.write(finished, own_form(recipe.method))
        self._observer.doing(
            f"decoding {len(answers.held_out)} held-out prompts with the draft, some also without"
        )
        live = measure_live(
            self._llm, recipe.method, finished, answers.held_out, recipe.steps, settings.most_new
        )
        report = Report(settings.output, curve, curve.evaluations[-1].chain, live)
        self._observer.proven(live, report.offline)
        return report

    def _publish(self, recipe: Recipe, report: Report, answers: Answers, command: Sequence[str]) -> None:
        """Figures and further forms first; the draft's own files last, so that whoever finds those finds all."""
        settings, curve = self._settings, report.curve
        write_plot(settings.output / "training.html", curve, title=f"{recipe.method} for {self._marks.name}")
        for form in settings.forms:
            shutil.rmtree(settings.output / form, ignore_errors=True)
            recipe.write(settings.output / form, form)
        figures = {
            "train_texts": len(answers.train),
            "train_answer_tokens": sum(len(text.answer) for text in answers.train),
            "tokens_seen": curve.points[-1].tokens if curve.points else 0,
            "held_out_texts": len(answers.held_out),
            "seconds": round(self._spent()),
            **report.live.figures(report.offline),
        }
        shown = {**vars(settings.shape), "learning_rate": self._learning_rate, "batch_tokens": settings.batch_tokens,
                 "seed": settings.seed, "most_new": settings.most_new,
                 "start_from": self._inputs.start_hash}  # fmt: skip
        provenance = Provenance(
            command, self._marks, self._inputs.hashes, json.loads(json.dumps(shown)), figures
        )
        provenance.write(settings.output)
        write_card(settings.output, recipe.method, self._marks.name, provenance.plain())
        finished = settings.work / "finished"
        for file in sorted(finished.iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(file, settings.output / file.name)

    @property
    def _learning_rate(self) -> float:
        return self._settings.learning_rate or _RATES[self._settings.shape.drafts_by]

    def _spent(self) -> float:
        return time.monotonic() - self._begin
