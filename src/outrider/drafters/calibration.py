"""Calibration: short texts in a target's own words, and what the target saw while it wrote them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from outrider.core.protocols import Chunk, TappedTarget, TargetModel
from outrider.core.records import EMPTY_DRAFT, Context, RoundResult

_FILE = Path(__file__).with_suffix(".json")
_SEQUENCES = 2**62 + 1  # ids of their own, so that no other sequence of the target is touched
_ANSWER = 16
_FEWEST = 4  # tokens of an answer that is worth its pass

Prompts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class CalibrationText:
    """Tokens of a prompt, and from `start` on the target's greedy answer to it."""

    tokens: tuple[int, ...]
    start: int


@cache
def calibration_prompts() -> tuple[str, ...]:
    """Beginnings of prose, lists, code, chats and arithmetic, a line or a few each."""
    return tuple(entry["text"] for entry in json.loads(_FILE.read_text(encoding="utf-8")))


def calibration_texts(
    target: TargetModel, prompts: Prompts, taps: Sequence[int]
) -> tuple[tuple[CalibrationText, ...], list[torch.Tensor]]:
    """Each prompt with 16 greedy tokens, or as many as all of them have room for; none where that are too few.

    With them the hidden states `taps` of all but their last tokens, [tokens - 1, taps, hidden]; without taps empty.
    Prompts longer than half the context, or of tokens that the target does not have, are passed over. The target stays
    tapped.
    """
    limit = target.max_length
    usable = [
        prompt
        for prompt in prompts
        if prompt and max(prompt) < target.vocab_size and (limit is None or 2 * len(prompt) <= limit)
    ]
    room = min((_ANSWER if limit is None else limit - len(prompt) for prompt in usable), default=0)
    count = min(_ANSWER, room)
    if count < _FEWEST:
        return (), []
    columns = []
    if taps:
        assert isinstance(target, TappedTarget), "hidden states are asked of a target that shows them"
        target.tap(taps)
        columns = [target.taps.index(tap) for tap in taps]
    contexts = [Context.of(prompt, sequence_id=_SEQUENCES + i) for i, prompt in enumerate(usable)]
    chunks = [Chunk(context.sequence_id, tuple(context.tokens[:-1])) for context in contexts]
    try:
        shown = [[_columns(read, columns)] for read in target.extend(chunks)]
        for _ in range(count):
            contexts, states = _one_token_on(target, contexts)
            for parts, new in zip(shown, states):
                parts.append(_columns(new, columns))
    finally:
        for context in contexts:
            target.release(context.sequence_id)
    texts = tuple(
        CalibrationText(tuple(context.tokens), len(prompt)) for context, prompt in zip(contexts, usable)
    )
    return texts, [torch.cat(parts) for parts in shown]


def features_of(
    target: TappedTarget, texts: Sequence[CalibrationText], taps: Sequence[int]
) -> list[torch.Tensor]:  # [tokens, taps, hidden] each
    """The hidden states `taps` at every token of the texts. The target stays tapped there."""
    target.tap(taps)
    columns = [target.taps.index(tap) for tap in taps]
    ids = [_SEQUENCES + i for i in range(len(texts))]
    try:
        shown = target.extend([Chunk(i, text.tokens) for i, text in zip(ids, texts)])
    finally:
        for i in ids:
            target.release(i)
    return [_columns(each, columns) for each in shown]


def _columns(features: torch.Tensor | None, columns: Sequence[int]) -> torch.Tensor:  # [n, columns, hidden]
    if not columns:
        return torch.empty(0)
    assert features is not None, "a tapped target shows features"
    return features[:, list(columns)].to(torch.float32)


def _one_token_on(
    target: TargetModel, contexts: Sequence[Context]
) -> tuple[list[Context], list[torch.Tensor | None]]:
    """The contexts with the likeliest token each, and the features [1, taps, hidden] of the token before it."""
    scores = target.score(contexts, [EMPTY_DRAFT] * len(contexts))
    tokens = [int(score.logits[0].argmax()) for score in scores]
    features = [score.features for score in scores]
    target.commit(
        [
            RoundResult(context.sequence_id, (token,), (), EMPTY_DRAFT, score)
            for context, token, score in zip(contexts, tokens, scores)
        ]
    )
    longer = [
        Context.of((*context.tokens, token), sequence_id=context.sequence_id)
        for context, token in zip(contexts, tokens)
    ]
    return longer, features
