"""`Recipe`: what the training loop asks of a kind of draft."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from outrider.train.texts import Batch


@dataclass(frozen=True, eq=False)
class Judged:
    """What guesses came to. Guess j of pending position t is about the token at t + 1 + j, given the text up to it.

    Only guesses of answered tokens count. A chain drafted greedily at t in a text of temperature 0 is kept up to its
    first miss: `hits[i, t]` says how far, so rounds can be played back without decoding.
    """

    loss: torch.Tensor  # [] the mean that is minimised; carries the gradient
    losses: torch.Tensor  # [steps] sums over the guesses
    overlaps: torch.Tensor  # [steps] sums of 1 - TV of the guess's law against the target's, at temperature 1
    counts: torch.Tensor  # [steps] guesses
    hits: torch.Tensor  # bool [texts, length, steps]: the likeliest guess is the text's token and counts


class Recipe(Protocol):
    """A draft under training: its module, the loss of a batch, and how it is written for drafting."""

    @property
    def method(self) -> str:
        """The method that drafts with it: eagle3, medusa, draft_model or self_draft."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's hidden states that it reads, in the order of the columns of `Batch.features`."""

    @property
    def steps(self) -> int:
        """How many tokens ahead it is judged."""

    @property
    def module(self) -> nn.Module:
        """Whose parameters are trained, those that take gradients; they are what a checkpoint holds."""

    def judge(self, batch: Batch) -> Judged:
        """The loss of a batch and what its guesses came to; differentiable while the module trains."""

    def write(self, folder: Path, form: str) -> None:
        """Writes what was trained in one of its forms. Raises `ConfigError` naming the forms on an unknown one."""
