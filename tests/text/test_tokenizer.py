"""Texts to tokens and back: special tokens, bad words, and the real model's ids."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from vocabularies import (
    both_kinds,
    byte_level,
)

from outrider.errors import ParameterError
from outrider.text import Tokenizer, bad_word_ids, load_tokenizer


def test_a_text_without_tokens_in_the_vocabulary_is_named() -> None:
    words = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")))
    assert words.encode("a") == [0]
    for encode in (words.encode, words.encode_part):
        with pytest.raises(ParameterError, match="the text 'b' cannot be written in this model's tokens"):
            encode("b")


def test_special_tokens_are_recognised_in_text_and_not_shown() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("a<end>b")
    assert tokenizer.eos_token_ids[0] in ids
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<end>b"


def test_bad_words_are_taken_with_and_without_a_leading_space() -> None:
    tokenizer = byte_level()
    plain, spaced = tokenizer.encode_part("the"), tokenizer.encode_part(" the")
    assert set(bad_word_ids(tokenizer, ["the"])) == {tuple(plain), tuple(spaced)}
    sentencepiece = both_kinds()[1]
    forms = {tuple(map(sentencepiece.id_to_token, ids)) for ids in bad_word_ids(sentencepiece, ["ban"])}
    assert ("ban",) in forms
    assert (chr(0x2581) + "ban",) in forms


@pytest.mark.parametrize("prompt", [None, 3, b"bytes", "\ud800"])
def test_what_is_not_text_is_refused(prompt: Any) -> None:
    with pytest.raises(ParameterError):
        byte_level().encode(prompt)


def smollm2() -> Tokenizer:
    from outrider.models.load import resolve

    return load_tokenizer(resolve("smollm2-135m"))


@pytest.mark.model
def test_smollm2_prompts_equal_the_reference_ids() -> None:
    folder = os.environ.get("OUTRIDER_PROMPTS")
    if not folder:
        pytest.skip("OUTRIDER_PROMPTS names no folder of prompt sets")
    tokenizer = smollm2()
    prompts = json.loads((Path(folder) / "peer_prompts.json").read_text())
    assert prompts
    for prompt in prompts:
        chat = tokenizer.chat([{"role": "user", "content": prompt["user"]}])
        assert chat.text == prompt["text"]
        assert chat.token_ids == prompt["ids"] == tokenizer.encode(prompt["text"])
    assert tokenizer.eos_token_ids == (2,)


@pytest.mark.model
@pytest.mark.full
def test_smollm2_equals_the_tokenizer_of_transformers() -> None:
    from transformers import AutoTokenizer

    from outrider.models.load import resolve

    path = resolve("smollm2-135m").path
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    # transformers does not read `tokenizer.ggml.pre`, which asks for one token per digit.
    digits = pre_tokenizers.Digits(individual_digits=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([digits, theirs.pre_tokenizer])
    assert theirs.normalizer is None or isinstance(theirs.normalizer, normalizers.Normalizer)
    tokenizer, chooser = smollm2(), random.Random(7)
    words = ("👩‍👩‍👧", "'s", "\u00a0", "def f(x):\n    return x", "<|im_start|>", "<|im_end|>", "   ", "\n\n")
    atoms = [
        *"abcXYZ  \t\n\r0123456789.,!?'-_(){}[]\"éüßñ中文日本語한국어αλж😀🇩🇪½²٣४",
        *words,
        " the",
        " 1984",
    ]
    for _ in range(200):
        text = "".join(chooser.choices(atoms, k=chooser.randint(1, 60)))
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids)
