"""`Teacher`: what recipes need of the target whose law a draft learns, and in which numbers it learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.core.records import TokenWeights


@dataclass(frozen=True, eq=False)
class Teacher:
    """A target as those see it who learn from it; `name` goes into their files."""

    weights: TokenWeights
    num_layers: int
    name: str | None = None


@dataclass(frozen=True)
class Lesson:
    """By what heads learn that each guess one token further ahead."""

    loss: str = "kl_div"
    decay: float = 0.8  # what a head's loss weighs against that of the head before


@dataclass(frozen=True)
class Numbers:
    """In which numbers a draft is trained, and where they are."""

    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
