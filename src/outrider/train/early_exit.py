"""`EarlyExitRecipe`: an exit head, so that the target's own first layers draft for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from outrider.models.exit_head import ExitHead
from outrider.models.head_formats.write import write_head
from outrider.models.heads import ExitConfig, Head
from outrider.train.forms import check_form
from outrider.train.losses import loss_named
from outrider.train.own_rows import OwnRows
from outrider.train.recipe import Judged
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw


class EarlyExitRecipe:
    """Trains an exit head at every answered position; fulfils `Recipe`. The target's layers stay as they are."""

    method = "self_draft"

    def __init__(self, head: Head, teacher: Teacher, lesson: Lesson, *, numbers: Numbers) -> None:
        """`head`: what training starts from, `untrained_exit`. Raises `ConfigError` on an unknown loss, and
        `ModelLoadError` where `head` does not fit the target."""
        weights, dtype, device = teacher.weights, numbers.dtype, numbers.device
        assert isinstance(head.config, ExitConfig), "an exit head"
        self._start, self._target = head, teacher.name
        self.head = ExitHead(head, weights, dtype=dtype, device=device)
        self.taps, self.steps = (head.config.exit_layer, teacher.num_layers), lesson.steps
        law = DraftLaw(weights, head.token_map, dtype=dtype, device=device)
        self._rows = OwnRows(law, loss_named(lesson.loss), lesson.steps)

    @property
    def module(self) -> nn.Module:
        """See `Recipe.module`."""
        return self.head

    def judge(self, batch: Batch) -> Judged:
        """See `Recipe.judge`."""
        exits, last = batch.features.unbind(dim=2)
        return self._rows.judged(batch, last, lambda *rows: self.head.spoken(exits[rows]))

    def trained(self, dtype: torch.dtype) -> Head:
        """The head as it is now."""
        tensors = {name: tensor.to("cpu", dtype) for name, tensor in self.head.tensors().items()}
        return replace(self._start, tensors=tensors, name="trained exit head", findings=())

    def write(self, folder: Path, form: str, dtype: torch.dtype = torch.bfloat16) -> None:
        """See `Recipe.write`."""
        check_form(self.method, form)
        write_head(self.trained(dtype), folder, form, target=self._target)
