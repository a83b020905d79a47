"""Draft vocabularies: the tokens that a target's answers are made of, and laws over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice

import torch
import torch.nn.functional as F

from outrider.core.records import TokenWeights
from outrider.errors import ConfigError
from outrider.train.texts import Text


def draft_vocabulary(
    texts: Sequence[Text], size: int, vocab_size: int, *, always: Iterable[int] = ()
) -> torch.Tensor:  # [size] int64, ascending
    """The `size` tokens worth drafting: `always` (end of text), then the most frequent ones of the answers, then of
    the prompts, then the lowest ids; of equally frequent ones the lower.

    Raises `ConfigError` on a size that the target's vocabulary, or what must be held, does not allow.
    """
    held = sorted(set(always))
    check_size(size, vocab_size, held)
    answers = Counter(chain.from_iterable(text.answer for text in texts))
    prompts = Counter(chain.from_iterable(text.prompt for text in texts))
    by_rank = chain(held, _by_frequency(answers), _by_frequency(prompts), range(vocab_size))
    chosen = list(islice(dict.fromkeys(by_rank), size))
    return torch.tensor(sorted(chosen))


def check_size(size: int, vocab_size: int, always: Sequence[int]) -> None:
    """Raises `ConfigError` on a draft vocabulary that is larger than the target's, or cannot hold `always`."""
    least = max(1, len(set(always)))
    if not least <= size <= vocab_size:
        raise ConfigError(
            f"a draft vocabulary of {size} tokens: give from {least} to {vocab_size}, the target's"
        )


class DraftLaw:
    """What the target says over a draft vocabulary: softmax of the mapped rows of its head, at temperature 1.

    `dtype` is that of the logits; no map is the target's own vocabulary.
    """

    def __init__(self, weights: TokenWeights, token_map: torch.Tensor | None, *,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:  # fmt: skip
        size = len(weights.head)
        ids = torch.arange(size) if token_map is None else token_map.cpu()
        rows = weights.head if token_map is None else weights.head[ids.to(weights.head.device)]
        self.rows = rows.to(device, dtype)  # [draft vocab, hidden]
        self.norm = weights.norm.to(device, dtype)  # [hidden]
        self._eps = weights.norm_eps
        self._inside = torch.zeros(size, dtype=torch.bool, device=device)
        self._inside[ids.to(device)] = True
        self._draft_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._draft_ids[ids.to(device)] = torch.arange(len(ids), device=device)

    def holds(self, tokens: torch.Tensor) -> torch.Tensor:  # bool, as `tokens`
        """Which of the target's tokens a draft can hold."""
        return self._inside[tokens]

    def draft_ids(self, tokens: torch.Tensor) -> torch.Tensor:  # int64, as `tokens`
        """The draft ids of tokens that are held."""
        return self._draft_ids[tokens]

    def normed(self, states: torch.Tensor) -> torch.Tensor:  # [n, hidden]
        """The target's last hidden states after its final norm."""
        return F.rms_norm(states.to(self.norm), self.norm.shape, self.norm, self._eps)

    @torch.no_grad()
    def logits(self, states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, draft vocab]
        """What the target says from its last hidden states; whole precision also under autocast."""
        with torch.autocast(states.device.type, enabled=False):
            return F.linear(self.normed(states), self.rows)


def _by_frequency(counts: Counter[int]) -> list[int]:
    return sorted(counts, key=lambda token: (-counts[token], token))
