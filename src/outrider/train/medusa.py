"""`MedusaRecipe`: trains Medusa heads on the target's last hidden states, by its own law ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from outrider.models.head_formats.write import write_head
from outrider.models.heads import Head, MedusaConfig
from outrider.models.medusa_head import MedusaHeads
from outrider.train.forms import check_form
from outrider.train.guesses import Measure, Step, about_answers, judged
from outrider.train.losses import loss_named
from outrider.train.output import Output
from outrider.train.recipe import Judged
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw


class MedusaRecipe:
    """`Recipe` of Medusa heads on a target that stays as it is (2401.10774, 2.2.1).

    Head i, on the feature of position t, guesses the token at t + 2 + i: guess i of the pending position t + 1. It is
    judged where that token is an answer's and so are those between: where drafts are asked for.
    """

    method = "medusa"

    def __init__(self, head: Head, teacher: Teacher, lesson: Lesson, *, numbers: Numbers,
                 output: Output = Output.OWN) -> None:  # fmt: skip
        """`head`: what training starts from, `untrained_head` or trained ones. Raises `ConfigError` on an unknown loss,
        and `ModelLoadError` where `head` does not fit the target."""
        weights, dtype, device = teacher.weights, numbers.dtype, numbers.device
        config = head.config
        assert isinstance(config, MedusaConfig), "a set of Medusa heads"
        self._start = head
        self.heads = MedusaHeads(head, weights, dtype=dtype, device=device)
        if output is Output.TARGET:
            for index in range(config.heads):
                self.heads.output(index).requires_grad_(False)
        self.taps, self.steps = (teacher.num_layers,), config.heads
        law = DraftLaw(weights, head.token_map, dtype=dtype, device=device)
        self._measure = Measure(law, loss_named(lesson.loss), lesson.decay)
        self._target, self._output = teacher.name, output

    @property
    def module(self) -> nn.Module:
        """See `Recipe.module`."""
        return self.heads

    def judge(self, batch: Batch) -> Judged:
        """See `Recipe.judge`. Some text of the batch has an answered token behind two others."""
        return judged(self._measure, batch, batch.features[:, :, 0], self.speak(batch))

    def speak(self, batch: Batch) -> list[Step]:
        """What all heads say of the texts of a batch; what head i says is guess i."""
        texts, pending = batch.answered[:, 2:].nonzero(as_tuple=True)
        pending = pending + 1
        normed = self._measure.law.normed(batch.features[texts, pending - 1, 0])
        steps: list[Step] = []
        for index in range(self.steps):
            rows = about_answers(batch.answered, texts, pending + 1 + index)
            texts, pending, normed = texts[rows], pending[rows], normed[rows]
            steps.append(Step(texts, pending, self.heads.spoken(index, normed), self.heads.output(index)))
        return steps

    def trained(self, dtype: torch.dtype) -> Head:
        """The heads as they are now."""
        tensors = {name: tensor.to("cpu", dtype) for name, tensor in self.heads.tensors().items()}
        if self._output is Output.TARGET:
            outputs = [f"heads.{index}.out.weight" for index in range(self.steps)]
            shared = tensors[outputs[0]]
            if all(torch.equal(tensors[name], shared) for name in outputs):
                tensors |= dict.fromkeys(outputs, shared)  # is written once
        return replace(self._start, tensors=tensors, name="trained Medusa heads", findings=())

    def write(self, folder: Path, form: str, dtype: torch.dtype = torch.bfloat16) -> None:
        """See `Recipe.write`. Raises `ModelLoadError` where the form has no place for a draft vocabulary."""
        check_form(self.method, form)
        write_head(self.trained(dtype), folder, form, target=self._target)
