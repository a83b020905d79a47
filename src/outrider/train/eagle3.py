"""`Eagle3Recipe`: trains an EAGLE-3 head by training-time test, on the module that drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from outrider.core.records import TokenWeights
from outrider.models.arch import Arch
from outrider.models.eagle_head import EagleHead
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_formats.write import write_head
from outrider.models.heads import EagleConfig, Head
from outrider.train.eagle3_attention import ChainAttention
from outrider.train.forms import check_form
from outrider.train.guesses import Measure, Step, about_answers, judged
from outrider.train.losses import loss_named
from outrider.train.output import Output
from outrider.train.recipe import Judged
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw

# What a layer adds comes from these.
_ADDS = ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight")
_FUSING_NOISE = 0.1


def eagle3_config(target: Arch, taps: tuple[int, ...], draft_vocab: int) -> EagleConfig:
    """A head of one layer of the target's sizes, in the shape that trains best here (EAGLE-3.1's norms).

    The layer is Llama's whatever the target's family is: what others add, every loader of heads knows another way.
    """
    layer = replace(
        target, family="llama", layers=1, qkv_bias=False, output_bias=False, mlp_bias=False, qk_norm=False,
        tied_head=False,
    )  # fmt: skip
    return EagleConfig(True, layer, target.hidden, draft_vocab, taps=taps, fc_norm=True, norm_output=True,
                       norm_before_residual=True)  # fmt: skip


def initial_head(
    config: EagleConfig, weights: TokenWeights, token_map: torch.Tensor | None, *, seed: int
) -> Head:
    """A head before its first step: it says what the target would say from the last tapped state alone.

    Its layer adds nothing yet, and the fusing product hands the last tap on; both have little random numbers besides,
    so that all of it learns. Of starts compared over the first 70,000 tokens this one was the quickest (docs/log.md).
    """
    head = fresh_head(config, seed=seed, token_map=token_map)
    fusing, width = head.tensors["fc.weight"] * _FUSING_NOISE, min(config.arch.hidden, config.target_hidden)
    fusing[:width, -width:] += torch.eye(width)
    tensors: Mapping[str, torch.Tensor] = {
        "fc.weight": fusing,
        **{name: torch.zeros_like(head.tensors[name]) for name in _ADDS},
        "lm_head.weight": weights.head if token_map is None else weights.head[token_map],
        "norm.weight": weights.norm,
    }
    return replace(head, tensors={**head.tensors, **tensors}, name="untrained EAGLE-3 head")


class Eagle3Recipe:
    """`Recipe` of EAGLE-3 heads (2503.01840). Columns of features: those of the head, then the target's last.

    Step j at entry t reads the text's token t + 1 + j and what step j - 1 came to, and guesses the token t + 2 + j.
    It is taken where that token is an answer's and so were those of the steps before: where drafts are asked for.
    """

    method = "eagle3"

    def __init__(self, head: Head, teacher: Teacher, lesson: Lesson, *,
                 numbers: Numbers, output: Output = Output.OWN) -> None:  # fmt: skip
        """`head`: what training starts from, `initial_head` or a trained one. Raises `ConfigError` on an unknown loss,
        and `ModelLoadError` where `head` does not fit the target."""
        weights, num_layers = teacher.weights, teacher.num_layers
        dtype, device = numbers.dtype, numbers.device
        self._start = head
        self.head = EagleHead(head, weights, num_layers=num_layers, dtype=dtype, device=device)
        if output is Output.TARGET:
            self.head.lm_head.requires_grad_(False)
        self.taps = tuple(dict.fromkeys((*self.head.taps, num_layers)))
        self.steps = lesson.steps
        self._last = self.taps.index(num_layers)
        law = DraftLaw(weights, head.token_map, dtype=dtype, device=device)
        self._retention = lesson.retention
        self._measure = Measure(law, loss_named(lesson.loss), lesson.decay)
        self._target = teacher.name

    @property
    def module(self) -> nn.Module:
        """See `Recipe.module`."""
        return self.head

    def judge(self, batch: Batch) -> Judged:
        """See `Recipe.judge`. Some text of the batch has an answered token behind two others."""
        return judged(self._measure, batch, batch.features[:, :, self._last], self.unroll(batch))

    def unroll(self, batch: Batch) -> list[Step]:
        """Training-time test: all steps over the texts of a batch; what step j says is guess j."""
        texts, entries = _entries(batch.answered)
        attention = ChainAttention(texts.bincount().tolist())
        states = self.head.fuse(batch.features[texts, entries])
        steps: list[Step] = []
        for j in range(self.steps):
            if not len(texts):  # every answer ended before
                steps.append(Step(texts, entries + 1, states, self._matrix))
                continue
            attend = attention.guessed if steps else attention.certain
            thoughts = self.head(batch.tokens[texts, entries + 1 + j], states, entries + j, attend)
            rows = about_answers(batch.answered, texts, entries + 2 + j)
            steps.append(Step(texts[rows], entries[rows] + 1, thoughts.spoken[rows], self._matrix))
            if self.head.training and self._retention < 1:
                rows = rows[torch.rand(len(rows)) < self._retention]
            texts, entries, states = texts[rows], entries[rows], thoughts.states[rows]
            attention.keep(rows)
        return steps

    def trained(self, dtype: torch.dtype) -> Head:
        """The head as it is now."""
        tensors = {name: tensor.to("cpu", dtype) for name, tensor in self.head.tensors().items()}
        own = {**self._start.tensors, **tensors}  # an embedding of its own is not trained
        return replace(self._start, tensors=own, name="trained EAGLE-3 head", findings=())

    def write(self, folder: Path, form: str, dtype: torch.dtype = torch.bfloat16) -> None:
        """See `Recipe.write`."""
        check_form(self.method, form)
        write_head(self.trained(dtype), folder, form, target=self._target)

    @property
    def _matrix(self) -> torch.Tensor:  # [draft vocab, hidden]
        assert isinstance(self.head.lm_head, nn.Linear), "its products are not swapped"
        return self.head.lm_head.weight


def _entries(answered: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # bool [texts, length]
    """Text and entry, [rows] each, of all that guesses may be made from or may see: up to that of the last token."""
    later = answered.flip(1).cummax(1).values.flip(1)  # an answered token is here, or follows
    texts, entries = later[:, 2:].nonzero(as_tuple=True)
    return texts, entries
