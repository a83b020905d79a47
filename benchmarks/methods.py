"""Draft methods on public questions, interleaved with plain decoding: speed and what it is of.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/methods.py [--activations int8] [--prompts-per-task 20] [--tokens 128]
        [--temperature 0 0.8] [--tasks NAME ...] [--methods JSON] [--state FILE]

Reads `spec_bench.jsonl` from the folder: the first turns of the first questions of each task, in file order; `mt_bench`
stands for its eight categories. The tasks gsm8k_test, humaneval and edit_eval have files of their own there. The
methods are those that need no model unless named. All methods share one loaded target. Every question is answered
plainly and by every method, with one seed, one after the other; who begins changes from question to question. The texts
must be equal. Only decoding is timed, not prefill. Memory bandwidth is probed before and after each task.

With --state what was measured is kept in a file, a line per question, and a run that was cut off goes on there. Prints
Markdown tables for each temperature; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from methods_report import PLAIN, Answer, report
from peer_report import machine

from outrider import LLM, SamplingParams
from outrider.core.completion import Completion
from outrider.models.cost import rates_of

TASKS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
OWN_FILES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "gsm8k_test": lambda row: str(row["question"]),
    "humaneval": lambda row: str(row["prompt"]),
    "edit_eval": lambda row: f"{row['instruction'].strip()}\n\n{row['input']}",
}
"""Tasks with a file of their own, and the message that a record stands for."""
POSITIONS = 8
"""How deep acceptance is counted."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "suffix tree": {"method": "suffix", "topk": 3, "tree_budget": 12},
    "recycling": {"method": "recycling"},
    "lookahead": {"method": "lookahead"},
    "lookahead small": {
        "method": "lookahead", "max_window_size": 2, "max_ngram_size": 3, "max_verification_set_size": 2,
    },
    "ngram, recycling": {"method": ["ngram", "recycling"]},
    "suffix, recycling": {"method": ["suffix", "recycling"]},
    "ngram, suffix, recycling": {"method": ["ngram", "suffix", "recycling"]},
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A prompt as the model reads it; `cut` tells that tokens were taken out of its middle."""

    task: str
    number: int
    ids: tuple[int, ...]
    cut: bool


@dataclass
class State:
    """What was measured, in memory and, where there is a path, in a file whose first line holds the settings."""

    path: Path | None
    answers: list[Answer] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(path: Path | None, settings: Mapping[str, Any]) -> State:
        """Reads what a file holds of earlier runs. Exits where it was measured with other settings."""
        state = State(path)
        if path is None:
            return state
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # a run may have been cut off within a line
        if not lines:
            path.write_text(json.dumps(settings) + "\n")
            return state
        if json.loads(lines[0]) != settings:
            raise SystemExit(f"{path} was measured with {lines[0]}: name another file, or remove it")
        path.write_text("\n".join(lines) + "\n")
        for row in map(json.loads, lines[1:]):
            if "bandwidth_gbs" in row:
                state.probes.append(row)
            else:
                state.answers.append(Answer(**row))
        return state

    def holds(self, temperature: float, question: Question, repeat: int) -> bool:
        key = (temperature, question.task, question.number, repeat)
        return any(key == (a.temperature, a.task, a.question, a.repeat) for a in self.answers)

    def add_answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._append(asdict(answer))

    def add_probe(self, probe: dict[str, Any]) -> None:
        self.probes.append(probe)
        self._append(probe)

    def _append(self, row: Mapping[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def questions(llm: LLM, tasks: Sequence[str], count: int, tokens: int) -> list[Question]:
    """The first `count` questions of each task, cut in the middle where no room would be left for `tokens`."""
    limit = llm.target.max_length
    found: dict[str, list[Question]] = {task: [] for task in tasks}
    for task, number, message in messages(tasks):
        if len(found.get(task, ())) >= count or task not in found:
            continue
        ids = llm.tokenizer.chat([{"role": "user", "content": message}]).token_ids
        room = len(ids) if limit is None else limit - tokens
        cut = len(ids) > room
        if cut:  # instructions stand at either end
            ids = ids[: room // 2] + ids[-(room - room // 2) :]
        found[task].append(Question(task, number, tuple(ids), cut))
    return [question for asked in found.values() for question in asked]


def messages(tasks: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Task, number and message of every question of the files that the tasks need, in file order."""
    folder = Path(os.environ["OUTRIDER_PROMPTS"])
    if set(tasks) & set(TASKS):
        for row in map(json.loads, (folder / "spec_bench.jsonl").read_text(encoding="utf-8").splitlines()):
            yield (
                row["category"] if row["category"] in TASKS else TASKS[0],
                row["question_id"],
                row["turns"][0],
            )
    for task in (task for task in tasks if task in OWN_FILES):
        lines = (folder / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
        for number, row in enumerate(map(json.loads, lines)):
            yield task, number, OWN_FILES[task](row)


def measured(done: Completion) -> dict[str, float]:
    stats = done.stats
    reached = [sum(stats.acceptance_histogram[depth:]) for depth in range(1, POSITIONS + 1)]
    return {
        **{f"kept_{depth}": count for depth, count in enumerate(reached, start=1)},
        "seconds": done.timings.decode_seconds,
        "rounds": stats.num_rounds,
        "drafting": stats.num_spec_steps,
        "drafted": stats.num_draft_tokens,
        "emitted": stats.num_emitted_tokens,
    }


def answered(engines: Mapping[str, LLM], question: Question, sampling: SamplingParams, first: int
             ) -> tuple[dict[str, dict[str, float]], list[str]]:  # fmt: skip
    """What every engine's answer took, beginning with the `first`, and which texts were not the plain one."""
    names = list(engines)
    first %= len(names)
    done = {}
    for name in names[first:] + names[:first]:
        [done[name]] = engines[name].generate(list(question.ids), sampling)
    differing = [name for name in names if done[name].token_ids != done[PLAIN].token_ids]
    if engines[PLAIN].target.row_invariant:
        assert not differing, f"question {question.number}: {', '.join(differing)} changed the text"
    return {name: measured(done[name]) for name in names}, differing


def measure(engines: Mapping[str, LLM], asked: Sequence[Question], options: argparse.Namespace,
            state: State) -> None:  # fmt: skip
    """Measures what the state does not hold yet."""
    for temperature, task in ((t, task) for t in options.temperature for task in options.tasks):
        left = list(_left(state, temperature, [q for q in asked if q.task == task], options.repeats))
        if not left:
            continue
        _probe(state, engines[PLAIN], temperature, task, "before")
        for place, question, repeat in left:
            sampling = SamplingParams(
                temperature=temperature, max_tokens=options.tokens, seed=question.number
            )
            runs, differing = answered(engines, question, sampling, place + repeat)
            state.add_answer(Answer(temperature, task, question.number, repeat, runs, differing))
        _probe(state, engines[PLAIN], temperature, task, "after")
        print(f"temperature {temperature:g}, {task}: {len(left)} questions answered", file=sys.stderr)


def _left(state: State, temperature: float, asked: Sequence[Question], repeats: int
          ) -> Iterator[tuple[int, Question, int]]:  # fmt: skip
    """What is still to be asked: its place in the task, the question, the repeat."""
    for repeat in range(repeats):
        for place, question in enumerate(asked):
            if not state.holds(temperature, question, repeat):
                yield place, question, repeat


def _probe(state: State, plain: LLM, temperature: float, task: str, when: str) -> None:
    rate = rates_of(plain.target).bandwidth_gbs
    state.add_probe({"temperature": temperature, "task": task, "when": when, "bandwidth_gbs": round(rate, 1)})


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--target", default="native")
    parser.add_argument("--dtype", default="gguf")
    parser.add_argument("--activations", default="bfloat16", choices=("bfloat16", "int8", "float32", "auto"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tasks", nargs="+", choices=(*TASKS, *OWN_FILES), default=list(TASKS))
    parser.add_argument("--prompts-per-task", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", nargs="+", type=float, default=[0.0, 0.8])
    parser.add_argument(
        "--methods", type=json.loads, default=METHODS, help="JSON: name -> speculative_config"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--state", type=Path, help="file to keep and to go on from")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    shared = ("model", "target", "dtype", "activations", "threads", "tokens", "methods")
    settings = {name: getattr(options, name) for name in shared}
    state = State.of(options.state, settings)
    plain = LLM(options.model, target=options.target, dtype=options.dtype, activations=options.activations,
                threads=options.threads)  # fmt: skip
    engines = {PLAIN: plain}
    engines |= {name: plain.with_speculation(config) for name, config in options.methods.items()}
    asked = questions(plain, options.tasks, options.prompts_per_task, options.tokens)
    for llm in engines.values():  # warm-up
        llm.generate(list(asked[0].ids), SamplingParams(temperature=0.0, max_tokens=8))
    facts = machine()
    measure(engines, asked, options, state)
    wanted = {(question.task, question.number) for question in asked}
    answers = [a for a in state.answers if (a.task, a.question) in wanted and a.repeat < options.repeats]
    lists = [name for name, llm in engines.items() if len(llm.config.methods) > 1]
    results = report(answers, lists, options.temperature, state.probes)
    cut = [question.number for question in asked if question.cut]
    print(
        f"{len(asked)} questions, {len(cut)} of them cut to fit; every answer up to {options.tokens} tokens.\n"
    )
    print(json.dumps({"machine": facts, **settings, "cut": cut, "probes": state.probes, "results": results}))


if __name__ == "__main__":
    main()
