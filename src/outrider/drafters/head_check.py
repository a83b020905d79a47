"""`HeadReport`: how often a head is right on its target, and whether its files tell how it wants to be read."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from outrider.core.protocols import TappedTarget, TargetModel
from outrider.core.records import TokenWeights
from outrider.drafters.calibration import CalibrationText, Prompts, calibration_texts, features_of
from outrider.drafters.head_measure import STEPS, Kept, Material, kept_guesses, steps_of
from outrider.drafters.head_variants import Change, Reading, other_readings, reading_of
from outrider.drafters.model_measure import fits, kept_by_model
from outrider.models.heads import Head

_LOG = logging.getLogger(__name__)
_SOUND = 0.3  # a head whose first guess is kept this often is worth its load, however it is read
_HOPELESS = 0.1  # of first guesses: such a head is hardly trained, and no reading of it tells anything
_CLEARLY = 3.0  # standard errors by which another reading must be better
_LEAST_GAIN = 0.02  # and by this share of guesses
_MOST_CHANGES = 3


@dataclass(frozen=True)
class Acceptance:
    """Greedy chains on the target's greedy texts: `kept[j]` of `chains` kept their guess j and all before it."""

    kept: tuple[int, ...]
    chains: int

    @property
    def by_position(self) -> tuple[float, ...]:
        """The share of chains that kept guess j."""
        return tuple(count / self.chains for count in self.kept)

    @property
    def rate(self) -> float:
        """The share of guesses that are kept: `draft_acceptance_rate` of such chains."""
        return sum(self.by_position) / len(self.kept)


@dataclass(frozen=True)
class BetterReading:
    """What else the head should be read as, all changes together, and how often it is right then."""

    changes: tuple[Change, ...]
    acceptance: Acceptance


@dataclass(frozen=True)
class HeadReport:
    """What was measured of a head on a target. `better` is None where no other reading is clearly better.

    `compared`: other readings were tried.
    """

    head: str
    acceptance: Acceptance
    compared: bool
    better: BetterReading | None

    @property
    def summary(self) -> str:
        """The acceptance, in one line."""
        shares = ", ".join(f"{share:.2f}" for share in self.acceptance.by_position)
        return f"head {self.head!r} keeps {shares} of its first guesses ({self.acceptance.chains} chains)"

    @property
    def warning(self) -> str | None:
        """What is wrong with the head and what to do, in one line; None for a head that is right or hardly wrong."""
        if self.better is not None:
            before, after = self.acceptance.rate, self.better.acceptance.rate
            said = "; ".join(
                f"{change.reads}, {change.instead} is right: {change.remedy}"
                for change in self.better.changes
            )
            return f"head {self.head!r} {said} (acceptance rises from {before:.2f} to {after:.2f})"
        if self.compared and self.acceptance.by_position[0] < _HOPELESS:
            return (
                f"head {self.head!r} keeps {self.acceptance.by_position[0]:.2f} of its first guesses and no other "
                "reading of its files helps: train it longer, or use a head that was trained for this target"
            )
        return None


def check_at_load(
    target: TappedTarget, head: Head, weights: TokenWeights, prompts: Prompts
) -> HeadReport | None:
    """Measures a head, compares readings where it is seldom right, and logs what was found, once per pair.

    `weights`: the target's, which are costly to make. None where no prompt fits the target. The target stays tapped
    where readings were compared.
    """
    memory = _Memory.of(target)
    key = _key(head)
    known = memory.reports.get(key)
    if known is None:
        check = _Check.start(target, head, weights, prompts)
        if check is None:
            return None
        known = check.report()
        if known.acceptance.by_position[0] < _SOUND:
            known = check.compared(known)
        memory.reports[key] = known
        _LOG.info("%s", known.summary)
        if known.warning:
            _LOG.warning("%s", known.warning)
    return known


def check_model_at_load(
    target: TargetModel, draft: TargetModel, token_map: Sequence[int] | None, prompts: Prompts
) -> Acceptance | None:
    """Measures a draft model that speaks the target's tokens (those of `token_map`), and logs how often it is right.

    None where no prompt fits both.
    """
    texts = [text for text in _Memory.of(target).texts(target, prompts) if fits(draft, text)]
    if not texts:
        return None
    kept = kept_by_model(draft, texts, token_map)
    found = Acceptance(tuple(int((kept >= step).sum()) for step in range(1, STEPS + 1)), len(kept))
    shares = ", ".join(f"{share:.2f}" for share in found.by_position)
    _LOG.info("the draft model keeps %s of its first guesses (%d chains)", shares, found.chains)
    if found.by_position[0] < _HOPELESS:
        _LOG.warning(
            "the draft model keeps %.2f of its first guesses: use one that speaks as the target does",
            found.by_position[0],
        )
    return found


def examine(target: TappedTarget, head: Head, prompts: Prompts) -> HeadReport | None:
    """As `check_at_load`, but compares readings of every head and logs nothing."""
    memory = _Memory.of(target)
    key = _key(head)
    known = memory.reports.get(key)
    if known is None or not known.compared:
        check = _Check.start(target, head, target.token_weights(), prompts)
        if check is None:
            return None
        known = memory.reports[key] = check.compared(check.report())
    return known


class _Memory:
    """What this process knows of a target: its texts, and its heads."""

    # A memo alone: what is measured depends on nothing but the pair.
    _of_targets: ClassVar[MutableMapping[TargetModel, _Memory]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.reports: dict[str, HeadReport] = {}
        self._texts: dict[Prompts, tuple[CalibrationText, ...]] = {}

    @classmethod
    def of(cls, target: TargetModel) -> _Memory:
        return cls._of_targets.setdefault(target, cls())

    def texts(self, target: TargetModel, prompts: Prompts) -> tuple[CalibrationText, ...]:
        """The target's texts, written at the first call."""
        if prompts not in self._texts:
            self._texts[prompts], _ = calibration_texts(target, prompts, ())
        return self._texts[prompts]

    def material(self, target: TappedTarget, prompts: Prompts, taps: tuple[int, ...]) -> Material:
        """The target's texts with these of its hidden states, in one go at the first call."""
        if prompts in self._texts:
            return Material(self._texts[prompts], features_of(target, self._texts[prompts], taps), taps)
        texts, features = calibration_texts(target, prompts, taps)
        self._texts[prompts] = texts
        return Material(texts, features, taps)


@dataclass(frozen=True, eq=False)
class _Check:
    """A head on a target with texts to be judged on."""

    target: TappedTarget
    reading: Reading
    texts: tuple[CalibrationText, ...]
    weights: TokenWeights
    kept: Kept

    @staticmethod
    def start(target: TappedTarget, head: Head, weights: TokenWeights, prompts: Prompts) -> _Check | None:
        """Measures the head as its files describe it; None without texts."""
        reading = reading_of(head, target.num_layers)
        shown = _Memory.of(target).material(target, prompts, reading.taps)
        if not shown.texts:
            return None
        kept = kept_guesses(reading, shown, weights, target.num_layers)
        return _Check(target, reading, shown.texts, weights, kept)

    def report(self) -> HeadReport:
        return HeadReport(self.reading.head.name, _acceptance(self.kept, self.reading), False, None)

    def compared(self, report: HeadReport) -> HeadReport:
        """The report with the best other reading, found one change after another."""
        reading, kept = self.reading, self.kept
        changes: list[Change] = []
        while len(changes) < _MOST_CHANGES:
            best = self._best(reading, kept)
            if best is None:
                break
            reading, change, kept = best
            changes.append(change)
        found = _acceptance(kept, reading)
        worth = changes and found.by_position[0] >= _HOPELESS
        return replace(report, compared=True, better=BetterReading(tuple(changes), found) if worth else None)

    def _best(self, reading: Reading, kept: Kept) -> tuple[Reading, Change, Kept] | None:
        """The reading one change away that keeps most, where it clearly keeps more."""
        others = list(other_readings(reading, self.target))
        taps = tuple(sorted({tap for other, _ in others for tap in other.taps}))
        shown = Material(self.texts, features_of(self.target, self.texts, taps), taps)
        best: tuple[Reading, Change, Kept] | None = None
        for other, change in others:
            found = kept_guesses(other, shown, self.weights, self.target.num_layers)
            if _clearly_more(found, kept, steps_of(reading)) and (
                best is None or found.sum() > best[2].sum()
            ):
                best = (other, change, found)
        return best


def _acceptance(kept: Kept, reading: Reading) -> Acceptance:
    steps = range(1, steps_of(reading) + 1)
    return Acceptance(tuple(int((kept >= step).sum()) for step in steps), len(kept))


def _clearly_more(found: Kept, kept: Kept, steps: int) -> bool:
    """Whether the guesses kept at the same places are more by far more than chance gives."""
    gains = (found - kept) / steps
    error = float(gains.std()) / math.sqrt(len(gains))
    return bool(gains.mean() > max(_LEAST_GAIN, _CLEARLY * error))


def _key(head: Head) -> str:
    """Tells heads apart by their settings and the beginning of each tensor."""
    found = hashlib.blake2b(repr(head.config).encode())
    for name, tensor in sorted(head.tensors.items()):
        sample = tensor.detach().reshape(-1)[:1024].to("cpu", torch.float32)
        found.update(name.encode() + np.ascontiguousarray(sample.numpy()).tobytes())
    return found.hexdigest()
