"""Small vocabularies and chats for the suites of texts."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from outrider.text import Tokenizer
from outrider.text.gguf import gguf_tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


PIECES = [chr(0x2581) + "a", "a", "b", "n", "an", chr(0x2581), chr(0x2581) + "ban", "ban", "\ufffd", "c"]


def byte_level() -> Tokenizer:
    """One token per byte, a few merges, and two special tokens."""
    vocab = {token: index for index, token in enumerate([*BYTES, "th", "the", "Ġthe", "ĠĠ"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<turn>", special=True)])
    return Tokenizer(backend, eos_token_ids=[len(vocab)])


def sentencepiece_fields(**changes: Any) -> dict[str, Any]:
    """Metadata of a Llama 2 kind of vocabulary: byte tokens, a few pieces, scores by id."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    fields = {
        "model": "llama",
        "tokens": tokens,
        "scores": [-float(index) for index in range(len(tokens))],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def both_kinds() -> list[Tokenizer]:
    return [byte_level(), Tokenizer(gguf_tokenizer(sentencepiece_fields()))]


def gpt2_fields(**changes: Any) -> dict[str, Any]:
    tokens = [*BYTES, "12", "Ċ Ċ".replace(" ", ""), "<end>"]
    fields = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "merges": ["1 2", "Ċ Ċ"],
        "token_type": [*[1] * (len(tokens) - 1), 3],
        "bos_token_id": len(tokens) - 1,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}\n{% endfor %}"


USER = [{"role": "user", "content": "hi"}]
