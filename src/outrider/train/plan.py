"""`Plan`: how long a run trains, decided once by the clock, and kept so that a resumed run does the same."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.train.checkpoint import replace_file
from outrider.train.evaluation import HeldOut, Texts, device_of, evaluate, judged
from outrider.train.loop import Autocast, Data
from outrider.train.order import epoch_batches
from outrider.train.recipe import Recipe
from outrider.train.settings import TrainSettings

FILE = "plan.json"
_PROBED = 3  # batches that are timed
_EVALUATIONS = 10
_LEAST_STEPS = 20


@dataclass(frozen=True)
class Plan:
    """What must not change while a run goes on."""

    run: Mapping[str, Any]  # what the run is of: method, target's marks, prompts, seed
    texts: int  # answered texts that are trained on
    steps: int
    evaluate_every: int
    autocast: str  # of the machine that it began on

    @property
    def numbers(self) -> tuple[int, ...]:
        """All counts; none is below 1."""
        return self.texts, self.steps, self.evaluate_every

    def write(self, folder: Path) -> None:
        """Writes `plan.json`."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        replace_file(folder / FILE, lambda file: file.write(text.encode()))


def read_plan(folder: Path, run: Mapping[str, Any]) -> Plan | None:
    """The plan of this run, None before there is one. Raises `ConfigError` where the folder holds another run."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        found = Plan(**json.loads(path.read_text(encoding="utf-8")))
        Autocast(found.autocast)
        if not isinstance(found.run, dict) or not all(type(n) is int and n > 0 for n in found.numbers):
            raise ValueError("its values are none of a plan's")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove the folder to start again") from None
    for name in dict.fromkeys((*run, *found.run)):
        if run.get(name) != found.run.get(name):
            raise ConfigError(
                f"{folder} holds a run with another {name}: give a new --output, or remove the folder to start again"
            )
    return found


def planned(recipe: Recipe, texts: Texts, held_out: HeldOut, settings: TrainSettings, *, seconds: float | None,
            run: Mapping[str, Any]) -> Plan:  # fmt: skip
    """As many steps as were asked for, or as fit into `seconds` with their evaluations, or into the epochs."""
    autocast = Autocast.fastest(device_of(recipe))
    lengths = texts.lengths()
    epoch = epoch_batches(lengths, settings.batch_tokens, settings.seed, 0)
    steps = settings.steps
    if steps is None and seconds is not None:
        steps = _steps_within(recipe, Data(texts, held_out), epoch, autocast, seconds, settings.batch_tokens)
    elif steps is None:
        steps = max(_LEAST_STEPS, round(settings.epochs * len(epoch)))
    return Plan(run, len(lengths), steps, max(1, -(-steps // _EVALUATIONS)), autocast.value)


def _steps_within(recipe: Recipe, data: Data, epoch: Sequence[Sequence[int]], autocast: Autocast, seconds: float,
                  batch_tokens: int) -> int:  # fmt: skip
    """Times some batches, first with their hidden states to be computed, then with those at hand; and an evaluation
    whose hidden states are at hand, as they are for all but the first."""
    begin = time.monotonic()
    probed = [epoch[len(epoch) * i // _PROBED] for i in range(min(_PROBED, len(epoch)))]
    first, again = (_seconds_per_batch(recipe, data.texts, probed, autocast) for _ in range(2))
    evaluate(recipe, data.held_out, batch_tokens=batch_tokens)
    start = time.monotonic()
    evaluate(recipe, data.held_out, batch_tokens=batch_tokens)
    evaluation = time.monotonic() - start
    left = seconds - (time.monotonic() - begin) - (_EVALUATIONS + 1) * evaluation
    whole = len(epoch) * first
    steps = left / first if left <= whole else len(epoch) + (left - whole) / again
    return max(_LEAST_STEPS, int(steps))


def _seconds_per_batch(
    recipe: Recipe, texts: Texts, probed: Sequence[Sequence[int]], autocast: Autocast
) -> float:
    start = time.monotonic()
    for indices in probed:
        with autocast.on(device_of(recipe)):
            found, _ = judged(recipe, texts, indices)
        found.loss.backward()  # type: ignore[no-untyped-call]
    recipe.module.zero_grad(set_to_none=True)
    return (time.monotonic() - start) / len(probed)
