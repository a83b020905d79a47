"""What `methods.py` says of its answers: tables by task, intervals, and what a choice in hindsight would have gained.

A ratio is that of summed decode seconds, plain over method; its 90 % interval comes from drawing questions anew within
each task. Of repeats of one question the median counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PLAIN = "plain"
OVERALL = "overall"
DRAWS = 2000
SELDOM = 0.5
"""A setting that drafts in a smaller share of its rounds is marked."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """One question answered by every engine: per engine its decode seconds and its counts."""

    temperature: float
    task: str
    question: int
    repeat: int
    runs: Mapping[str, Mapping[str, float]]
    differing: Sequence[str]


class Traces:
    """The answers at one temperature: decode seconds by task, engine and question."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self.tasks = list(dict.fromkeys(answer.task for answer in answers))
        self.names = list(answers[0].runs)
        self.seconds: dict[str, dict[str, Floats]] = {}  # [questions of the task] each
        for task in self.tasks:
            by_question: dict[int, list[Answer]] = {}
            for answer in answers:
                if answer.task == task:
                    by_question.setdefault(answer.question, []).append(answer)
            self.seconds[task] = {
                name: np.array(
                    [np.median([a.runs[name]["seconds"] for a in same]) for same in by_question.values()]
                )
                for name in self.names
            }

    def total(self, name: str, key: str, task: str | None = None) -> float:
        return sum(a.runs[name][key] for a in self.answers if task in (None, a.task))

    def counts(self, name: str, task: str | None = None) -> dict[str, Any]:
        """What the rounds of an engine were like; `kept`: the share of drafts kept to depth 1, 2, ... at least."""
        rounds = self.total(name, "rounds", task)
        drafting = max(1.0, self.total(name, "drafting", task))
        kept = [key for key in self.answers[0].runs[name] if key.startswith("kept_")]
        return {
            "kept": [round(self.total(name, key, task) / drafting, 4) for key in kept],
            "tokens_per_pass": round(self.total(name, "emitted", task) / rounds, 4),
            "rows_per_pass": round(1.0 + self.total(name, "drafted", task) / rounds, 4),
            "drafting": round(self.total(name, "drafting", task) / rounds, 4),
        }

    def of(self, name: str, task: str | None = None) -> dict[str, Floats]:
        """Seconds of one engine, by task and question."""
        return {t: self.seconds[t][name] for t in self.tasks if task in (None, t)}

    def best(self, names: Sequence[str]) -> dict[str, str]:
        """By task the engine that took least."""
        return {t: min(names, key=lambda name: float(self.seconds[t][name].sum())) for t in self.tasks}


def ratio_of(above: Mapping[str, Floats], below: Mapping[str, Floats]) -> dict[str, float]:
    """What one choice took over what another did, both by task and question, with a 90 % interval."""
    random, drawn = np.random.default_rng(0), np.zeros((2, DRAWS))
    for task, first in above.items():
        picks = random.integers(len(first), size=(DRAWS, len(first)))
        drawn += np.stack([first[picks].sum(axis=1), below[task][picks].sum(axis=1)])
    low, high = np.quantile(drawn[0] / drawn[1], [0.05, 0.95])
    ratio = sum(s.sum() for s in above.values()) / sum(s.sum() for s in below.values())
    return {"ratio": round(float(ratio), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def report(answers: Sequence[Answer], lists: Sequence[str], temperatures: Sequence[float],
           probes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # fmt: skip
    """Prints the tables of each temperature and returns their figures by temperature."""
    results = {}
    for temperature in temperatures:
        traces = Traces([a for a in answers if a.temperature == temperature])
        print(f"## Temperature {temperature:g}\n")
        kept = sum(name not in a.differing for a in traces.answers for name in a.runs if name != PLAIN)
        print(
            f"{kept} of {len(traces.answers) * (len(traces.names) - 1)} texts are those of plain decoding.\n"
        )
        _print_probes([probe for probe in probes if probe["temperature"] == temperature])
        results[f"{temperature:g}"] = {
            "texts_kept": kept,
            "methods": _methods(traces),
            "hindsight": _hindsight(traces, [n for n in traces.names if n not in lists], lists),
        }
    return results


def _methods(traces: Traces) -> dict[str, Any]:
    """Figures of every engine but the plain one, by task and overall, also printed."""
    figures: dict[str, Any] = {}
    columns = [*traces.tasks, OVERALL]
    for name in traces.names:
        if name == PLAIN:
            continue
        figures[name] = {
            column: {
                **ratio_of(traces.of(PLAIN, task), traces.of(name, task)),
                **traces.counts(name, task),
            }
            for column, task in zip(columns, [*traces.tasks, None])
        }
    _head("speed, x plain", columns)
    for name, row in figures.items():
        _row(_marked(name, row[OVERALL]), [_shown(row[column]) for column in columns])
    _head("tokens per pass, rows per pass, rounds with a draft", columns)
    for name, row in figures.items():
        _row(_marked(name, row[OVERALL]), [_marked(_counted(row[column]), row[column]) for column in columns])
    _head("share of drafts kept to depth 1, 2, ...", columns)
    for name, row in figures.items():
        _row(_marked(name, row[OVERALL]), [_shares(row[column]["kept"]) for column in columns])
    print("\n\\* drafts in under half of the rounds\n")
    return figures


def _hindsight(traces: Traces, singles: Sequence[str], lists: Sequence[str]) -> dict[str, Any]:
    """Speed of every list over that of the best single method, chosen by task or by question; plain may be best."""
    best = traces.best(singles)
    by_task = {task: traces.seconds[task][name] for task, name in best.items()}
    by_question = {t: np.min([traces.seconds[t][name] for name in singles], axis=0) for t in traces.tasks}
    figures: dict[str, Any] = {
        "best": best,
        "best_by_task": ratio_of(traces.of(PLAIN), by_task),
        "best_by_question": ratio_of(traces.of(PLAIN), by_question),
        "lists": {},
    }
    columns = [*(f"{task}: {name}" for task, name in best.items()), "best by task", "best by question"]
    _head("speed, x best single method in hindsight", columns)
    for name in lists:
        row = [ratio_of({task: by_task[task]}, traces.of(name, task)) for task in traces.tasks]
        row += [ratio_of(by_task, traces.of(name)), ratio_of(by_question, traces.of(name))]
        figures["lists"][name] = dict(zip([*traces.tasks, "best_by_task", "best_by_question"], row))
        _row(name, [_shown(figure) for figure in row])
    print(f"\nBest single method over plain: {_shown(figures['best_by_task'])} by task, "
          f"{_shown(figures['best_by_question'])} by question, which also picks the luckier timing.\n")  # fmt: skip
    return figures


def _print_probes(probes: Sequence[Mapping[str, Any]]) -> None:
    by_task: dict[str, list[str]] = {}
    for probe in probes:
        by_task.setdefault(probe["task"], []).append(f"{probe['bandwidth_gbs']:.1f}")
    shown = ", ".join(f"{task} {' to '.join(rates)}" for task, rates in by_task.items())
    print(f"Read bandwidth before and after each task, GB/s: {shown}\n")


def _marked(text: str, figures: Mapping[str, Any]) -> str:
    return f"{text} \\*" if figures["drafting"] < SELDOM else text


def _shown(figure: Mapping[str, float]) -> str:
    return f"{figure['ratio']:.2f} ({figure['low']:.2f}–{figure['high']:.2f})"


def _shares(kept: Sequence[float]) -> str:
    """The shares down to the last depth that any draft was kept to."""
    reached = [share for share in kept if share > 0.0]
    return " ".join(f"{share:.2f}".removeprefix("0") for share in reached) or "none"


def _counted(figure: Mapping[str, Any]) -> str:
    return f"{figure['tokens_per_pass']:.2f}, {figure['rows_per_pass']:.1f}, {figure['drafting']:.0%}"


def _head(title: str, columns: Sequence[str]) -> None:
    print(f"\n| {title} | {' | '.join(columns)} |\n" + "|---" * (len(columns) + 1) + "|")


def _row(name: str, cells: Sequence[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |")
