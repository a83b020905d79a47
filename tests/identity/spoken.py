"""A toy whose texts are prescribed: it says given bytes, so that cases about texts can be told through `LLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from outrider import LLM
from outrider.core.law import Floats
from outrider.testing.language import HashedLanguage
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
END, OTHER_END = 256, 257
VOCAB = 258
PROMPT = (40, 41, 42)


class Speech:
    """Says `said` after a prompt of `prompt_length` tokens, then goes on at random; other tokens stay possible."""

    def __init__(self, said: Sequence[int], prompt_length: int) -> None:
        self._said, self._prompt_length = tuple(said), prompt_length
        self._otherwise = HashedLanguage(VOCAB, seed=8)

    def __call__(self, tokens: Sequence[int]) -> Floats:  # [vocab]
        logits = self._otherwise(tokens).copy()
        place = len(tokens) - self._prompt_length
        if 0 <= place < len(self._said):
            logits[self._said[place]] += 20.0
        return logits


def byte_tokenizer(end: Sequence[int] = (END,)) -> Tokenizer:
    """One token per byte, and two tokens that end texts; `end` are those that do."""
    backend = tokenizers.Tokenizer(models.BPE({byte: index for index, byte in enumerate(BYTES)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", "<other end>"])
    return Tokenizer(backend, eos_token_ids=end)


def ids_of(text: str) -> list[int]:
    return byte_tokenizer().encode(text)


def speaker(said: Sequence[int], *, end: Sequence[int] = (END,), max_length: int | None = None,
            **speculation: Any) -> LLM:  # fmt: skip
    """An LLM that says `said` after `PROMPT`; drafts come from a model that says the same, five tokens a round."""

    def model() -> ToyTarget:
        return ToyTarget(VOCAB, language=Speech(said, len(PROMPT)), max_length=max_length)

    settings = {"method": "draft_model", "model": model(), "num_speculative_tokens": 5, **speculation}
    return LLM.from_parts(model(), byte_tokenizer(end), speculative_config=settings)


def plain(llm: LLM) -> LLM:
    """The same target without speculation."""
    return llm.with_speculation(None)
