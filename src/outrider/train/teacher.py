"""`Teacher`: what recipes need of the target whose law a draft learns, and in which numbers it learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.core.records import TokenWeights
from outrider.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Teacher:
    """A target as those see it who learn from it; `name` goes into their files."""

    weights: TokenWeights
    num_layers: int
    name: str | None = None


@dataclass(frozen=True)
class Lesson:
    """By what a draft learns, and how far ahead. Raises `ConfigError` naming a value out of range.

    Chains that stop at random make the steps of an EAGLE-3 head cheaper where they weigh less (conditional drop, PARD
    2504.18583).
    """

    loss: str = "kl_div"
    steps: int = 5  # guesses judged; of Medusa as many as there are heads
    decay: float = 0.8  # eagle3, medusa: what a guess weighs against the one before
    retention: float = 1.0  # eagle3: share of a step's chains that are unrolled further

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, not {self.steps}")
        for name in ("decay", "retention"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Numbers:
    """In which numbers a draft is trained, and where they are."""

    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
