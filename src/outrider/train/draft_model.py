"""`DraftModelRecipe`: a student of some of the target's layers, trained on the target's law."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from outrider.train.losses import loss_named
from outrider.train.own_rows import OwnRows
from outrider.train.recipe import Judged
from outrider.train.student import Student
from outrider.train.student_files import StudentFiles
from outrider.train.teacher import Lesson, Teacher
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw


class DraftModelRecipe:
    """Trains a student at every answered position; fulfils `Recipe`."""

    method = "draft_model"

    def __init__(
        self, student: Student, teacher: Teacher, files: StudentFiles, lesson: Lesson, *,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        """`files` say how the student is written, and what it speaks. Raises `ConfigError` on an unknown loss."""
        self.module: nn.Module = student.to(device)
        self.taps, self.steps = (teacher.num_layers,), lesson.steps
        self._student, self._files = student, files
        self._embedding = teacher.weights.embedding.to(device, torch.float32)  # [vocab, hidden]
        law = DraftLaw(teacher.weights, files.token_map, device=device)
        self._rows = OwnRows(law, loss_named(lesson.loss), lesson.steps)

    def judge(self, batch: Batch) -> Judged:
        """See `Recipe.judge`."""
        states = self._student(F.embedding(batch.tokens, self._embedding))
        return self._rows.judged(batch, batch.features[:, :, 0], lambda *rows: states[rows])

    def write(self, folder: Path, form: str) -> None:
        """See `Recipe.write`."""
        self._files.write(self._student, folder, form)
