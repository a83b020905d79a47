"""How far the laws of two targets are apart, position by position of given texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import Context, Draft, RoundResult

_ROWS = 32  # rows per pass: wide enough to be quick, and two laws of a large vocabulary stay small
_REFERENCE, _OTHER = 2**62, 2**62 + 1  # ids of their own, so that one target may stand on both sides


@dataclass(frozen=True)
class Text:
    """A prompt and what was answered, in token ids; the answer's positions are those that count."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class LawError:
    """Means over `positions` next-token laws at temperature 1."""

    kl_nats: float  # KL(reference || other)
    top1: float  # share of positions where both have the same likeliest token, the lowest id on ties
    positions: int


def law_error(
    reference: TargetModel, other: TargetModel, texts: Iterable[Text], positions: int
) -> LawError | None:
    """Compares the laws before each answer token of `texts`, up to `positions` of them; None where there are none.

    Teacher-forced: both read the same tokens. Opens and releases a sequence in each target; holds the logits of one
    pass at a time.
    """
    divergence, agreed, seen = 0.0, 0, 0
    for text in texts:
        answer = text.answer[: positions - seen]
        truths = _logits(reference, _REFERENCE, text.prompt, answer)
        for left, right in zip(truths, _logits(other, _OTHER, text.prompt, answer), strict=True):
            truth, found = (torch.log_softmax(rows.double(), dim=-1) for rows in (left, right))
            divergence += float((truth.exp() * (truth - found)).sum())
            agreed += int((left.argmax(dim=-1) == right.argmax(dim=-1)).sum())
        seen += len(answer)
        if seen == positions:
            break
    return LawError(divergence / seen, agreed / seen, seen) if seen else None


def _logits(
    target: TargetModel, sequence_id: int, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[torch.Tensor]:
    """Rows [n, vocab] on the host, at most `_ROWS` at a time: row i is the law of answer token i."""
    tokens = [*prompt, *answer]
    try:
        target.extend([Chunk(sequence_id, tokens[: len(prompt) - 1])])
        for start in range(len(prompt), len(tokens), _ROWS):
            piece = tokens[start : start + _ROWS]
            draft = Draft.chain(piece[:-1])
            [scores] = target.score([Context.of(tokens[:start], sequence_id=sequence_id)], [draft])
            rows = scores.logits.to("cpu", torch.float32, copy=True)
            kept = tuple(range(len(draft)))
            target.commit([RoundResult(sequence_id, tuple(piece), kept, draft, scores)])
            yield rows
    finally:
        target.release(sequence_id)
