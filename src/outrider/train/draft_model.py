"""`DraftModelRecipe`: a student of some of the target's layers, trained on the target's law."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from outrider.core.records import TokenWeights
from outrider.train.guesses import Said, judged_rows
from outrider.train.losses import Loss
from outrider.train.recipe import Judged
from outrider.train.student import Student
from outrider.train.student_files import StudentFiles
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw


class DraftModelRecipe:
    """Trains a student at every answered position; fulfils `Recipe`.

    The row of position s is about the token at s + 1. It is guess j of pending token s - j for every j, so that one
    forward judges all steps; the loss counts each row once. A guess counts where the tokens before it back to its
    pending token's successor are answers, too: where drafts are asked for.
    """

    method = "draft_model"

    def __init__(
        self, student: Student, weights: TokenWeights, files: StudentFiles, *, num_layers: int, loss: Loss,
        steps: int, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        """`weights` and `num_layers`: the target's. `files` say how the student is written, and what it speaks;
        `steps`: how far ahead it is judged."""
        self.module: nn.Module = student.to(device)
        self.taps, self.steps = (num_layers,), steps
        self._student, self._files, self._loss = student, files, loss
        self._embedding = weights.embedding.to(device, torch.float32)  # [vocab, hidden]
        self._law = DraftLaw(weights, files.token_map, device=device)

    def judge(self, batch: Batch) -> Judged:
        """See `Recipe.judge`. Where it does not speak the text's token, a guess is a miss of overlap 0 without loss."""
        states = self._student(F.embedding(batch.tokens, self._embedding))
        asked = batch.answered[:, 1:]  # position s is asked for the token at s + 1
        texts, places = (asked & self._law.holds(batch.tokens[:, 1:])).nonzero(as_tuple=True)
        said = Said(
            laws=self._law.logits(batch.features[texts, places, 0]),
            places=torch.arange(len(places), device=places.device),
            drafted=self._law.draft_ids(batch.tokens[texts, places + 1]),
            loss=self._loss,
        )
        heard = judged_rows(states[texts, places], self._law.rows, said)
        losses, overlaps = heard.losses.new_zeros(2, self.steps)
        hits = torch.zeros(*batch.tokens.shape, self.steps, dtype=torch.bool, device=places.device)
        runs = _runs(asked, self.steps)
        for step, drafted in enumerate(runs):
            rows = drafted[texts, places]
            losses[step], overlaps[step] = heard.losses[rows].sum(), heard.overlaps[rows].sum()
            hits[texts[rows], places[rows] - step, step] = heard.hits[rows]
        counts = torch.stack([drafted.sum() for drafted in runs])
        return Judged(heard.loss / counts[0].clamp(min=1), losses, overlaps, counts, hits)

    def write(self, folder: Path, form: str) -> None:
        """See `Recipe.write`."""
        self._files.write(self._student, folder, form)


def _runs(asked: torch.Tensor, count: int) -> list[torch.Tensor]:  # bool [texts, length] each
    """Of each step the rows that are its guesses: those asked for, as were as many rows before them."""
    runs = [asked]
    for step in range(1, count):
        longer = torch.zeros_like(asked)
        longer[:, step:] = runs[-1][:, step:] & asked[:, :-step]
        runs.append(longer)
    return runs
