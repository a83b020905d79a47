"""A toy model whose tokens are words, loaded as a user would."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from outrider import LLM, SamplingParams
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer

VOCAB = 48


EOS = 1


GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


def tokenizer() -> Tokenizer:
    words = {"<unk>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCAB)}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, eos_token_ids=[EOS])


def llm_of(config: dict[str, object] | None = None, **toy: object) -> LLM:
    target = ToyTarget(VOCAB, **{"seed": 3, "sharpness": 3.0, **toy})  # type: ignore[arg-type]
    return LLM.from_parts(target, tokenizer(), speculative_config=config)


NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
