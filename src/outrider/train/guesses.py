"""`judged`: what the guesses of a draft come to, against the target's law and the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.autograd.function import FunctionCtx, once_differentiable

from outrider.train.losses import Loss
from outrider.train.recipe import Judged
from outrider.train.texts import Batch
from outrider.train.vocabulary import DraftLaw

_ROWS = 512  # of logits at a time: little memory to clear, and still wide enough for the products


@dataclass(frozen=True, eq=False)
class Step:
    """Guess j of some pending positions, all about answered tokens: states that speak through an output matrix."""

    texts: torch.Tensor  # [rows] int64, which text of the batch
    pending: torch.Tensor  # [rows] int64
    spoken: torch.Tensor  # [rows, hidden]
    matrix: torch.Tensor  # [draft vocab, hidden]


def about_answers(answered: torch.Tensor, texts: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Which of the rows (int64, ascending) are about answers: those whose `places` [rows] lie in their text, answered.

    `answered` bool [texts, length]. Of rows that were so chosen for the places before, those are left for which
    every token from the first place on is an answer's.
    """
    length = answered.shape[1]
    inside = places < length
    return (inside & answered[texts, places.clamp(max=length - 1)]).nonzero().flatten()


@dataclass(frozen=True)
class Measure:
    """How guesses are weighed: guess j + 1 by `decay` of guess j; the guesses of a step alike."""

    law: DraftLaw
    loss: Loss
    decay: float


def judged(measure: Measure, batch: Batch, last_states: torch.Tensor, steps: Sequence[Step]) -> Judged:
    """Judges guess 0, 1, ... of a batch; `last_states` [texts, length, hidden] are the target's after its last layer.

    Where the draft vocabulary does not hold the text's token, a guess is a miss of overlap 0 without loss. In texts
    of temperature 0 that token is the target's likeliest; in others it is drawn, so that such places count for what
    the target's law leaves out, without its whole vocabulary being worked out.
    """
    held = measure.law.holds(batch.tokens)
    wanted = held & batch.answered
    wanted[:, :-1], wanted[:, -1] = wanted[:, 1:].clone(), False  # position t is asked for the token at t + 1
    laws, places = measure.law.logits(last_states[wanted]), wanted.flatten().cumsum(0).view_as(wanted) - 1
    losses, overlaps = laws.new_zeros(2, len(steps))
    hits = torch.zeros(*batch.tokens.shape, len(steps), dtype=torch.bool, device=held.device)
    weights = measure.decay ** torch.arange(len(steps))
    total = laws.new_zeros(())
    for j, step in enumerate(steps):
        kept = held[step.texts, step.pending + 1 + j].nonzero().flatten()
        texts, pending = step.texts[kept], step.pending[kept]
        drafted = measure.law.draft_ids(batch.tokens[texts, pending + 1 + j])
        said = Said(laws, places[texts, pending + j], drafted, measure.loss)
        heard = judged_rows(step.spoken[kept], step.matrix, said)
        total = total + heard.loss * (float(weights[j] / weights.sum()) / max(len(step.texts), 1))
        losses[j], overlaps[j] = heard.loss.detach(), heard.overlaps.sum()
        hits[texts, pending, j] = heard.hits
    counts = torch.tensor([len(step.texts) for step in steps], device=laws.device)
    return Judged(total, losses, overlaps, counts, hits)


@dataclass(frozen=True, eq=False)
class Said:
    """What rows are measured against: row r, the law `laws[places[r]]` and the text's token `drafted[r]`."""

    laws: torch.Tensor  # [places, draft vocab] logits of the target
    places: torch.Tensor  # [rows] int64
    drafted: torch.Tensor  # [rows] int64, draft ids
    loss: Loss


@dataclass(frozen=True, eq=False)
class Heard:
    """What rows came to."""

    loss: torch.Tensor  # [] the sum; carries the gradient of states and output matrix
    losses: torch.Tensor  # [rows]
    overlaps: torch.Tensor  # [rows]
    hits: torch.Tensor  # bool [rows]: the likeliest token is the text's


def judged_rows(spoken: torch.Tensor, matrix: torch.Tensor, said: Said) -> Heard:
    """Rows `spoken` [rows, hidden] speak through `matrix` [draft vocab, hidden].

    Logits live for a block of rows: their gradient is taken where they are made, so that nothing of the size
    [rows, draft vocab] is kept. Differentiable once, by both.
    """
    return Heard(*_Speak.apply(spoken, matrix, said))  # type: ignore[no-untyped-call]


class _Speak(torch.autograd.Function):
    """The gradients of the sum are made by `forward`, and scaled by `backward`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, spoken: torch.Tensor, matrix: torch.Tensor, said: Said
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        by_spoken, by_matrix = ctx.needs_input_grad[:2]  # type: ignore[attr-defined]
        exact = _product_dtype(matrix)
        weight, rows = matrix.to(exact), spoken.to(exact)
        losses, overlaps = said.laws.new_empty(2, len(rows))
        hits = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
        spoken_slope = torch.empty_like(spoken) if by_spoken else None
        matrix_slope = torch.zeros_like(matrix) if by_matrix else None
        for start in range(0, len(rows), _ROWS):
            block = slice(start, start + _ROWS)
            logits = F.linear(rows[block], weight).requires_grad_(by_spoken or by_matrix)
            with torch.enable_grad():
                found = said.loss(logits, said.laws[said.places[block]])
                loss = found.losses.sum()
            losses[block], overlaps[block] = found.losses.detach(), found.overlaps
            # Half-precision maxima are found several times more slowly.
            hits[block] = logits.detach().to(said.laws.dtype).argmax(dim=1) == said.drafted[block]
            if not logits.requires_grad:
                continue
            [slope] = torch.autograd.grad(loss, logits)
            if spoken_slope is not None:
                spoken_slope[block] = slope @ weight
            if matrix_slope is not None:
                _add_product(matrix_slope, slope, rows[block])
        ctx.save_for_backward(spoken_slope, matrix_slope)  # type: ignore[arg-type]  # None is allowed
        ctx.mark_non_differentiable(losses, overlaps, hits)
        return losses.sum(), losses, overlaps, hits

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, loss: torch.Tensor, *_: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        spoken, matrix = ctx.saved_tensors  # type: ignore[attr-defined]
        scaled = [None if slope is None else slope * loss.to(slope) for slope in (spoken, matrix)]
        return scaled[0], scaled[1], None


def _product_dtype(matrix: torch.Tensor) -> torch.dtype:
    kind = matrix.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else matrix.dtype


def _add_product(total: torch.Tensor, slope: torch.Tensor, rows: torch.Tensor) -> None:
    """total [draft vocab, hidden] += slope^T [., rows] @ rows [., hidden]; the sum stays as wide as `total`."""
    if total.dtype == slope.dtype:
        total.addmm_(slope.T, rows)
    else:
        total += slope.T @ rows
