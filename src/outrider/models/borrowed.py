"""`BorrowingDraft`: a draft model whose files hold its layers alone; embedding and head are lent by its target.

config.json: `model_type` outrider_draft, `borrowed` (the parts that the target lends), `target` (what it was trained
for), `draft_vocab_size`, and `transformer_layer_config`, its layers as a model of their own. Tensors: those of the
layers and the final norm under Hugging Face names, `embedding_sample` (rows of the target's embedding, by which it is
known again), and `d2t` and `t2d` as in EAGLE-3 where it speaks a part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.core.records import TokenWeights
from outrider.errors import ModelLoadError, PairError
from outrider.models.arch import BORROWING_TYPE, Arch
from outrider.models.arch_config import arch_config
from outrider.models.checkpoint import read_config, read_state
from outrider.models.fingerprint import Fingerprint
from outrider.models.head_formats.settings import count, section, text
from outrider.models.head_formats.tensors import HeadTensors
from outrider.models.head_formats.vocabulary import d2t_of, read_offsets, t2d_of
from outrider.models.malformed import reading
from outrider.models.native_weights import matrix_plans, vector_plans

BORROWED = ("embed_tokens", "lm_head")
_SAMPLED = 64  # rows of the target's embedding that are kept


@dataclass(frozen=True, eq=False)
class BorrowingDraft:
    """A draft model without the matrices of its target.

    `arch` is that of its own layers, with the target's vocabulary and no tied head. `tensors`: `model.layers.*` and
    `model.norm.weight`. `token_map` [draft vocab] int64, ascending: the target's ids that it speaks; None: all.
    """

    arch: Arch
    tensors: Mapping[str, torch.Tensor]
    fingerprint: Fingerprint  # of the target
    token_map: torch.Tensor | None
    target: str
    name: str = ""

    def state(self, weights: TokenWeights) -> dict[str, torch.Tensor]:
        """All weights under Hugging Face names, with what the target lends; `lm_head.weight` [draft vocab, hidden].

        Raises `PairError` where `weights` are not those of the target that it was trained for.
        """
        self.check(weights)
        head = weights.head if self.token_map is None else weights.head[self.token_map]
        return {**self.tensors, "model.embed_tokens.weight": weights.embedding, "lm_head.weight": head}

    def check(self, weights: TokenWeights) -> None:
        """Raises `PairError` for the first thing in which `weights` are not those of its target."""
        vocab_size, hidden = weights.embedding.shape
        for what, own, theirs in (
            ("a vocabulary of {} tokens", self.arch.vocab_size, vocab_size),
            ("hidden states of {} values", self.arch.hidden, hidden),
        ):
            if own != theirs:
                raise PairError(
                    f"draft model {self.name!r} was trained for {self.target!r}, with {what.format(own)}, and this "
                    f"target has {what.format(theirs)}: use it with {self.target!r}"
                )
        if not self.fingerprint.is_of(weights):
            raise PairError(
                f"draft model {self.name!r} was trained for {self.target!r}, and this target has another embedding "
                f"(relative distance {self.fingerprint.distance(weights):.2f}): use it with {self.target!r}"
            )


def fingerprint_of(weights: TokenWeights) -> Fingerprint:
    """What a draft knows its target again by: whole rows of the embedding, evenly apart."""
    vocab_size, hidden = weights.embedding.shape
    return Fingerprint.of(weights, _sampled(vocab_size), range(hidden))


def _sampled(vocab_size: int) -> tuple[int, ...]:
    """The tokens whose rows `embedding_sample` holds, from the first to the last."""
    spread = torch.linspace(0, vocab_size - 1, min(_SAMPLED, vocab_size)).long()
    return tuple(spread.tolist())


def is_borrowing(folder: Path) -> bool:
    """Whether a folder holds such a draft model. Raises `ModelLoadError` on a config.json that is none."""
    return (folder / "config.json").is_file() and read_config(folder).get("model_type") == BORROWING_TYPE


def read_borrowing(folder: Path, name: str) -> BorrowingDraft:
    """The draft model of a folder, called `name` in errors. Raises `ModelLoadError` naming what does not fit."""
    with reading(folder):
        return _draft(read_config(folder), read_state(folder), name)


def files_of(draft: BorrowingDraft) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """config.json and the tensors of its one file. What `read_borrowing` reads back has the same bits."""
    config = {
        "architectures": ["OutriderDraft"],
        "model_type": BORROWING_TYPE,
        "borrowed": list(BORROWED),
        "target": draft.target,
        "draft_vocab_size": draft.arch.vocab_size if draft.token_map is None else len(draft.token_map),
        "transformer_layer_config": arch_config(draft.arch),
        "torch_dtype": str(draft.tensors["model.norm.weight"].dtype).removeprefix("torch."),
    }
    tensors = {**draft.tensors, "embedding_sample": draft.fingerprint.values.to(torch.bfloat16)}
    if draft.token_map is not None:
        tensors |= {"d2t": d2t_of(draft.token_map), "t2d": t2d_of(draft.token_map, draft.arch.vocab_size)}
    return config, tensors


def _draft(config: Mapping[str, Any], state: Mapping[str, torch.Tensor], name: str) -> BorrowingDraft:
    if config.get("model_type") != BORROWING_TYPE or config.get("borrowed") != list(BORROWED):
        raise ModelLoadError(
            f"{name}: is no draft that borrows {' and '.join(BORROWED)} (model_type {BORROWING_TYPE!r}): use one that "
            "`outrider train draft_model` wrote"
        )
    arch = Arch.from_config(section(config, "transformer_layer_config"))
    target, rows = text(config, "target"), count(config, "draft_vocab_size")
    tensors = HeadTensors(state, str)
    for tensor, shape in _own_shapes(arch).items():
        tensors.take(tensor, *shape)
    tensors.take("embedding_sample", min(_SAMPLED, arch.vocab_size), arch.hidden)
    token_map = read_offsets(tensors, rows or arch.vocab_size, arch.vocab_size, [])
    taken = dict(tensors.finish("a draft that borrows from its target"))
    known = Fingerprint(_sampled(arch.vocab_size), tuple(range(arch.hidden)), taken.pop("embedding_sample"))
    if token_map is not None:
        token_map = token_map.sort().values
    return BorrowingDraft(arch, taken, known, token_map, target or "its target", name)


def _own_shapes(arch: Arch) -> dict[str, tuple[int, ...]]:
    """The tensors of layers and final norm."""
    matrices = {plan.name: (plan.outputs, plan.inputs) for plan in matrix_plans(arch) if plan.layer >= 0}
    return {**matrices, **{name: (numbers,) for _, _, name, numbers in vector_plans(arch)}}
