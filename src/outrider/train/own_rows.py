"""Judges drafts that guess token by token: what the row of each position says, over a draft vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from outrider.train.guesses import Said, judged_rows
from outrider.train.losses import Loss
from outrider.train.recipe import Judged
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw

Speak = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(texts [rows], positions [rows]) -> states [rows, hidden] that speak through the target's output rows."""


@dataclass(frozen=True, eq=False)
class OwnRows:
    """How the rows of such a draft are judged, `steps` guesses ahead.

    The row of position s is about the token at s + 1. It is guess j of pending token s - j for every j, so that one
    pass over a text judges all steps; the loss counts each row once. A guess counts where the tokens before it back to
    its pending token's successor are answers, too: where drafts are asked for.
    """

    law: DraftLaw
    loss: Loss
    steps: int

    def judged(self, batch: Batch, last_states: torch.Tensor, speak: Speak) -> Judged:
        """See `Recipe.judge`. Where it does not speak the text's token, a guess is a miss of overlap 0 without loss.

        `last_states` [texts, length, hidden]: the target's after its last layer.
        """
        asked = batch.answered[:, 1:]  # position s is asked for the token at s + 1
        texts, places = (asked & self.law.holds(batch.tokens[:, 1:])).nonzero(as_tuple=True)
        said = Said(
            laws=self.law.logits(last_states[texts, places]),
            places=torch.arange(len(places), device=places.device),
            drafted=self.law.draft_ids(batch.tokens[texts, places + 1]),
            loss=self.loss,
        )
        heard = judged_rows(speak(texts, places), self.law.rows, said)
        losses, overlaps = heard.losses.new_zeros(2, self.steps)
        hits = torch.zeros(*batch.tokens.shape, self.steps, dtype=torch.bool, device=places.device)
        runs = _runs(asked, self.steps)
        for step, drafted in enumerate(runs):
            rows = drafted[texts, places]
            losses[step], overlaps[step] = heard.losses[rows].sum(), heard.overlaps[rows].sum()
            hits[texts[rows], places[rows] - step, step] = heard.hits[rows]
        counts = torch.stack([drafted.sum() for drafted in runs])
        return Judged(heard.loss / counts[0].clamp(min=1), losses, overlaps, counts, hits)


def _runs(asked: torch.Tensor, count: int) -> list[torch.Tensor]:  # bool [texts, length] each
    """Of each step the rows that are its guesses: those asked for, as were as many rows before them."""
    runs = [asked]
    for step in range(1, count):
        longer = torch.zeros_like(asked)
        longer[:, step:] = runs[-1][:, step:] & asked[:, :-step]
        runs.append(longer)
    return runs
