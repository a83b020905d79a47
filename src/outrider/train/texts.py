"""`Text`: a prompt and what the target answered, the one thing that drafts are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Text:
    """Token ids of a rendered prompt and of the target's answer to it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float
    source: str  # the file that the prompt came from

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of it, in order."""
        return self.prompt + self.answer


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts side by side, each padded behind its end.

    `features` are the target's at every position, in the columns that the recipe asked for; the features of position
    t are those of `tokens[:, t]`. `answered` marks tokens of answers: only guesses of those are judged.
    """

    tokens: torch.Tensor  # [texts, length] int64
    features: torch.Tensor  # [texts, length, taps, hidden]
    answered: torch.Tensor  # bool [texts, length]


def batch_of(
    texts: Sequence[Text], features: Sequence[torch.Tensor], device: torch.device | str = "cpu"
) -> Batch:
    """The texts as one batch; `features` [tokens, taps, hidden] of each."""
    length = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    answered = torch.zeros(len(texts), length, dtype=torch.bool)
    joint = features[0].new_zeros(len(texts), length, *features[0].shape[1:])
    for row, (text, own) in enumerate(zip(texts, features)):
        count = len(text.tokens)
        assert len(own) == count, "features of every token"
        tokens[row, :count] = torch.tensor(text.tokens)
        answered[row, len(text.prompt) : count] = True
        joint[row, :count] = own
    return Batch(tokens.to(device), joint.to(device), answered.to(device))
