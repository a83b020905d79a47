"""The training loop: steps of AdamW over batches of texts, evaluations, and checkpoints that a run goes on from."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch
from torch.nn.utils import clip_grad_norm_

from outrider.errors import ConfigError, TrainingError
from outrider.train import checkpoint as files
from outrider.train.checkpoint import Checkpoint, trained
from outrider.train.curve import Curve, Evaluation, TrainPoint
from outrider.train.distributed import ALONE, World
from outrider.train.evaluation import HeldOut, Texts, device_of, evaluate, judged
from outrider.train.order import batches
from outrider.train.recipe import Recipe
from outrider.train.schedule import rate_share

_BETAS = (0.9, 0.95)
_UNBOUND = ("checkpoint_every",)  # settings that a run may change on its way
_SEED_STRIDE = 1_000_003  # between the seeds of two steps; more processes than that do not train together


class Autocast(str, Enum):
    """In which numbers a forward multiplies; parameters and their updates are float32 at any rate."""

    OFF = "off"
    BFLOAT16 = "bfloat16"

    @staticmethod
    def fastest(device: torch.device) -> Autocast:
        """BFLOAT16 where the device multiplies such numbers itself: an EAGLE-3 head of SmolLM2-135M then takes
        0.6 of the time of a step on a CPU with AVX512-BF16."""
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            native = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
        return Autocast.BFLOAT16 if native else Autocast.OFF

    def on(self, device: torch.device) -> AbstractContextManager[object]:
        """Forwards within the block multiply in these numbers."""
        if self is Autocast.OFF:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16)


@dataclass(frozen=True)
class LoopSettings:
    """How a draft is trained. Raises `ConfigError` naming a value out of range."""

    steps: int  # in all
    learning_rate: float = 1e-3  # at its peak
    warm_up: float = 0.05  # share of the steps until the peak
    floor: float = 0.05  # share of the peak that is left at the last step
    weight_decay: float = 0.01  # of matrices; vectors are left alone
    clip: float = 1.0  # longest gradient
    batch_tokens: int = 4096  # tokens of a step, padding included
    seed: int = 0
    evaluate_every: int = 200  # steps; the start and the end are evaluated too
    checkpoint_every: float = 60.0  # seconds; 0: after every step
    autocast: Autocast = Autocast.OFF

    def __post_init__(self) -> None:
        for name in ("steps", "batch_tokens", "evaluate_every"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "clip"):
            _check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a positive number")
        for name in ("weight_decay", "checkpoint_every", "seed"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "0 or more")
        for name in ("warm_up", "floor"):
            _check(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "a share between 0 and 1")


def _check(name: str, value: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")


@dataclass(frozen=True)
class Data:
    """What is trained on, and what only evaluated."""

    texts: Texts
    held_out: HeldOut


class Observer(Protocol):
    """Hears of a run as it goes, in the first process alone. What it raises ends the run; the next call goes on."""

    def doing(self, what: str) -> None:
        """Something begins that may take a minute and tells nothing of itself."""

    def began(self, steps: int, curve: Curve) -> None:
        """The run has `steps` steps in all; `curve` is what an earlier call left."""

    def stepped(self, point: TrainPoint) -> None:
        """A step is done."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Held-out texts were judged."""

    def saved(self, step: int) -> None:
        """A checkpoint after so many steps is on the disk."""


class Silent:
    """An observer that tells nobody."""

    def doing(self, what: str) -> None: ...
    def began(self, steps: int, curve: Curve) -> None: ...
    def stepped(self, point: TrainPoint) -> None: ...
    def evaluated(self, evaluation: Evaluation) -> None: ...
    def saved(self, step: int) -> None: ...


SILENT = Silent()


def train(recipe: Recipe, data: Data, settings: LoopSettings, folder: Path, *, observer: Observer = SILENT,
          world: World = ALONE) -> Curve:  # fmt: skip
    """Trains the recipe's module in place, to the last step; returns the curve.

    A call with the same arguments goes on from the checkpoint in `folder`, whenever the one before it ended, and
    comes to the same weights and curve; after the last step it only loads them. The recipe must be made the same way
    each time: a checkpoint holds trained parameters alone. Random numbers of a step (torch's own generators) are
    seeded by its number. Raises `TrainingError` where a loss or gradient is not finite, and on a checkpoint of
    another run.
    """
    device = device_of(recipe)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return _Run(recipe, data, settings, folder, observer if world.rank == 0 else SILENT, world).to_end()


class _Run:
    """A run in progress."""

    def __init__(self, recipe: Recipe, data: Data, settings: LoopSettings, folder: Path, observer: Observer,
                 world: World) -> None:  # fmt: skip
        self._recipe, self._data, self._settings = recipe, data, settings
        self._folder, self._observer, self._world = folder, observer, world
        self._device = device_of(recipe)
        self._parameters = list(trained(recipe.module).values())
        self._optimizer = _optimizer(self._parameters, settings)
        self._lengths = data.texts.lengths()
        if not self._lengths or not data.held_out.texts:
            raise ConfigError("a run needs texts to train on and held-out texts; give more prompts")
        self._name = _name(recipe, self._lengths, settings)
        self._points: list[TrainPoint] = []
        self._evaluations: list[Evaluation] = []
        self._step = 0
        self._begin = time.monotonic()  # moved back by what earlier calls spent
        self._load()
        self._saved = time.monotonic()

    @property
    def curve(self) -> Curve:
        return Curve(tuple(self._points), tuple(self._evaluations))

    def to_end(self) -> Curve:
        settings = self._settings
        self._observer.began(settings.steps, self.curve)
        todo = islice(
            batches(self._lengths, settings.batch_tokens, settings.seed), self._step, settings.steps
        )
        for indices in todo:
            self._evaluate_where_due()
            self._advance(indices)
            if time.monotonic() - self._saved >= settings.checkpoint_every:
                self._save()
        if self._evaluate_where_due():
            self._save()
        return self.curve

    def _advance(self, indices: Sequence[int]) -> None:
        """One step: gradients of this process's share, added up over all, clipped, applied."""
        rate = self._set_rate()
        self._optimizer.zero_grad(set_to_none=True)
        figures = self._backward(indices)
        self._world.add_up(figures)
        self._world.add_up_gradients(self._parameters)
        norm = clip_grad_norm_(self._parameters, self._settings.clip)
        loss, tokens, norm_value = (*figures[:2].tolist(), float(norm))
        if not math.isfinite(loss) or not math.isfinite(norm_value):
            raise TrainingError(
                f"step {self._step + 1} of {self._settings.steps}: the loss is {loss} and its gradient {norm_value} "
                f"long; start again with a learning rate below {self._settings.learning_rate:g}"
            )
        self._optimizer.step()
        self._step += 1
        overlaps, counts = figures[2:].view(2, -1).tolist()
        before = self._points[-1].tokens if self._points else 0
        means = tuple(total / count if count else 0.0 for total, count in zip(overlaps, counts))
        self._points.append(TrainPoint(self._step, loss, means, rate, before + int(tokens), self._seconds()))
        self._observer.stepped(self._points[-1])

    def _backward(self, indices: Sequence[int]) -> torch.Tensor:
        """Leaves gradients; returns the loss, the answer tokens, and by position sums of overlaps and counts."""
        own = self._world.share(indices)
        if not own:
            return torch.zeros(2 + 2 * self._recipe.steps, dtype=torch.float64, device=self._device)
        torch.manual_seed((self._settings.seed + self._step) * _SEED_STRIDE + self._world.rank)
        with self._settings.autocast.on(self._device):
            found, batch = judged(self._recipe, self._data.texts, own)
        loss = found.loss * (len(own) / len(indices))
        loss.backward()  # type: ignore[no-untyped-call]
        tokens = batch.answered.sum()
        rows = (loss.detach().reshape(1), tokens.reshape(1), found.overlaps.detach(), found.counts)
        return torch.cat([row.to(self._device, torch.float64) for row in rows])

    def _set_rate(self) -> float:
        settings = self._settings
        rate = settings.learning_rate * rate_share(
            self._step, settings.steps, warm_up=settings.warm_up, floor=settings.floor
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _evaluate_where_due(self) -> bool:
        """Evaluates now where the settings say so and an earlier call has not; whether it did."""
        step, settings = self._step, self._settings
        done = self._evaluations[-1].step == step if self._evaluations else False
        if done or (step % settings.evaluate_every and step < settings.steps):
            return False
        self._observer.doing(f"judging {len(self._data.held_out.texts)} held-out texts")
        found = evaluate(self._recipe, self._data.held_out, step=step, batch_tokens=settings.batch_tokens,
                         world=self._world)  # fmt: skip
        tokens = self._points[-1].tokens if self._points else 0
        self._evaluations.append(replace(found, tokens=tokens, seconds=self._seconds()))
        self._observer.evaluated(self._evaluations[-1])
        return True

    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def _save(self) -> None:
        if self._world.rank == 0:
            parameters = {name: value.detach() for name, value in trained(self._recipe.module).items()}
            files.save(self._folder, Checkpoint(self._name, self._step, self._seconds(), parameters,
                                                self._optimizer.state_dict(), self.curve))  # fmt: skip
            self._observer.saved(self._step)
        self._saved = time.monotonic()

    def _load(self) -> None:
        self._recipe.module.train()
        self._world.agree(self._parameters)
        found = files.load(self._folder, self._name, self._device)
        if found is None:
            return
        files.restore(self._folder, found, self._recipe.module, self._optimizer)
        self._points, self._evaluations = list(found.curve.points), list(found.curve.evaluations)
        self._step = found.step
        self._begin -= found.seconds


def _optimizer(parameters: Sequence[torch.nn.Parameter], settings: LoopSettings) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=settings.learning_rate, betas=_BETAS, fused=True
    )


def _name(recipe: Recipe, lengths: Sequence[int], settings: LoopSettings) -> dict[str, str | int | float]:
    """What tells this run from others."""
    bound = {name: value for name, value in asdict(settings).items() if name not in _UNBOUND}
    bound["autocast"] = settings.autocast.value
    sizes = {"texts": len(lengths), "tokens": sum(lengths)}
    return {"method": recipe.method, "positions": recipe.steps, **sizes, **bound}
