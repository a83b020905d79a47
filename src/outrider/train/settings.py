"""`TrainSettings`: what `outrider train` is asked for, checked before anything is loaded."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError, nearest
from outrider.train.forms import check_form
from outrider.train.output import Output

METHODS = ("eagle3", "medusa", "draft_model")
LOSS_NAMES = ("kl_div", "ce", "tv", "lk_hybrid")  # of `train.losses`, which takes torch to import
_GOING_ON = ("eagle3", "medusa")
_SEED_LIMIT = 1 << 32
_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class DraftShape:
    """The shape of the draft, and by which loss it learns. What a method has no use for must stay None.

    Raises `ConfigError` naming the value.
    """

    method: str
    draft_vocab_size: int | None = None
    target_layer_ids: tuple[int, ...] | None = None  # eagle3: layers whose inputs are read
    loss_fn: str = "kl_div"
    ttt_steps: int | None = None  # eagle3: unrolled steps; draft_model: positions it is judged at
    ttt_retention: float | None = None  # eagle3: share of the chains of a step that are unrolled further
    num_heads: int | None = None  # medusa
    num_layers: int | None = None  # medusa: residual blocks of a head
    lm_head: str | None = None  # eagle3, medusa: speaks by the `target`'s rows (so for None) or by `own` ones
    layers: tuple[int, ...] | None = None  # draft_model: the target's layers that the student is made of
    early_exit: int | None = None  # draft_model: its first layers, behind which an exit head is trained

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"method must be one of {', '.join(METHODS)}, not {self.method!r}{nearest(self.method, METHODS)}"
            )
        if self.loss_fn not in LOSS_NAMES:
            hint = nearest(self.loss_fn, LOSS_NAMES)
            raise ConfigError(f"loss_fn must be one of {', '.join(LOSS_NAMES)}, not {self.loss_fn!r}{hint}")
        self._check_owners()
        self._check_values()
        self._check_layers()

    def _check_owners(self) -> None:
        """Of settings, that they belong to the method."""
        for name, owners in (
            ("target_layer_ids", ("eagle3",)),
            ("ttt_steps", ("eagle3", "draft_model")),
            ("ttt_retention", ("eagle3",)),
            ("num_heads", ("medusa",)),
            ("num_layers", ("medusa",)),
            ("lm_head", ("eagle3", "medusa")),
            ("layers", ("draft_model",)),
            ("early_exit", ("draft_model",)),
        ):
            if getattr(self, name) is not None and self.method not in owners:
                raise ConfigError(
                    f"{name} is a setting of {' and '.join(owners)}, not of {self.method}: remove it"
                )

    def _check_values(self) -> None:
        """Of single values, that they are in range."""
        outputs = [one.value for one in Output]
        if self.lm_head is not None and self.lm_head not in outputs:
            raise ConfigError(f"lm_head must be one of {', '.join(outputs)}, not {self.lm_head!r}")
        for name, most in (("draft_vocab_size", 1 << 20), ("ttt_steps", 16), ("num_heads", 16),
                           ("num_layers", 16), ("early_exit", 1 << 10)):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ConfigError(f"{name} must be from 1 to {most}, not {value}")
        if self.ttt_retention is not None and not 0 < self.ttt_retention <= 1:
            raise ConfigError(f"ttt_retention must be above 0 and at most 1, not {self.ttt_retention}")

    def _check_layers(self) -> None:
        """Of lists of layers, that they name some, and not what another setting names."""
        for name in ("target_layer_ids", "layers"):
            value = getattr(self, name)
            if value is not None and (not value or min(value) < 0):
                raise ConfigError(f"{name} must name layers from 0, not {list(value)}")
        if self.layers is not None and self.early_exit is not None:
            raise ConfigError(
                "layers and early_exit both say what the student is made of: give one of the two"
            )
        taps = self.target_layer_ids or ()
        if len(set(taps)) < len(taps):
            raise ConfigError(f"target_layer_ids must be distinct, not {list(taps)}")

    @property
    def output(self) -> Output:
        """Through what a head speaks."""
        return Output.TARGET if self.lm_head is None else Output(self.lm_head)

    @property
    def drafts_by(self) -> str:
        """The method that drafts with what is trained."""
        return self.method if self.early_exit is None else "self_draft"


@dataclass(frozen=True)
class TrainSettings:
    """One training run. Raises `ConfigError` naming the value."""

    shape: DraftShape
    prompts: tuple[Path, ...]
    output: Path
    start_from: str | None = None  # eagle3, medusa: a trained head to go on from
    budget: float | None = None  # seconds for everything; None: until the steps are done
    epochs: float = 3.0  # passes over the answers, where neither budget nor steps say how long
    steps: int | None = None
    answer_tokens: int | None = None  # stop answering after so many
    answers: Path | None = None  # where answers are kept, and found again by other runs
    most_new: int = 256  # tokens of an answer
    most_prompt: int = 768  # tokens; longer prompts are left out
    learning_rate: float | None = None
    batch_tokens: int = 2048
    seed: int = 0
    forms: tuple[str, ...] = ()  # further forms to export to, beside the one that is drafted with
    device: str = "cpu"
    memory: int = 6 << 30  # bytes of hidden states that are kept

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("no prompts are given: name files with --prompts")
        for name in ("budget", "epochs", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0, not {value}")
        for name in ("steps", "answer_tokens", "most_new", "most_prompt", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.seed < _SEED_LIMIT:
            raise ConfigError(f"seed must be from 0 to {_SEED_LIMIT - 1}, not {self.seed}")
        self._check_start()
        for form in self.forms:
            check_form(self.shape.drafts_by, form)
        if self.budget is not None and self.steps is not None:
            raise ConfigError("budget and steps both say how long training takes: give one of the two")

    def _check_start(self) -> None:
        if self.start_from is None:
            return
        if self.shape.method not in _GOING_ON:
            raise ConfigError(
                f"start_from goes on from a head of {' or '.join(_GOING_ON)}, not for {self.shape.method}: remove it"
            )
        for name in ("draft_vocab_size", "target_layer_ids", "num_heads", "num_layers"):
            if getattr(self.shape, name) is not None:
                raise ConfigError(f"{name} is that of the head that start_from names: remove it")

    @property
    def work(self) -> Path:
        """Where a run keeps what it goes on from."""
        return self.output / "training"

    @property
    def answer_folder(self) -> Path:
        """Where the target's answers are."""
        return self.answers or self.work


def seconds_of(text: str) -> float:
    """A time such as `90s`, `15m`, `1h30m` or `20` (minutes), in seconds. Raises `ConfigError`."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) * 60
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"budget must be a time like 15m, 90s or 1h30m, not {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
