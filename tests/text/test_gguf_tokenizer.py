"""Tokenizers from the metadata of GGUF files, and their cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vocabularies import (
    both_kinds,
    gpt2_fields,
)

from outrider.errors import ModelLoadError
from outrider.text.gguf import gguf_tokenizer


def test_sentencepiece_metadata_gives_bos_merges_and_byte_fallback() -> None:
    tokenizer = both_kinds()[1]
    ids = tokenizer.encode("a é")
    assert ids[0] == 1
    assert [tokenizer.id_to_token(i) for i in ids[1:]] == [chr(0x2581) + "a", chr(0x2581), "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "a é"


def test_an_invalid_byte_spoils_only_itself() -> None:
    tokenizer = both_kinds()[1]
    good, bad = tokenizer.encode_part("b é")[-2:], [3 + 0xFF]
    assert tokenizer.decode(good + bad) == "é\ufffd"


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "12", ["1", "2"]),
        ("gpt-2", "12", ["12"]),
        ("qwen2", "12", ["1", "2"]),
        ("llama-bpe", "12", ["<end>", "12"]),
        ("smollm", "\n\n7", ["ĊĊ", "7"]),
        ("gpt-2", "\n\n7", ["Ċ", "Ċ", "7"]),
    ],
)
def test_words_are_cut_as_the_pre_name_says(pre: str, text: str, expected: list[str]) -> None:
    assert gguf_tokenizer(gpt2_fields(pre=pre)).encode(text).tokens == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "mystery"}, "mystery"),
        ({"model": "bert"}, "bert"),
        ({"tokens": []}, "no tokenizer"),
        ({"merges": ["12"]}, "damaged"),
        ({"merges": ["q zz"]}, "do not fit"),
    ],
)
def test_unknown_or_damaged_metadata_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        gguf_tokenizer(gpt2_fields(**changes))


def test_the_cache_is_written_once_and_rebuilt_when_damaged(cache: Path) -> None:
    expected = gguf_tokenizer(gpt2_fields()).encode("a 12").ids
    (file,) = cache.iterdir()
    content = file.read_text()
    file.write_text(content[: len(content) // 2])
    assert gguf_tokenizer(gpt2_fields()).encode("a 12").ids == expected
    assert file.read_text() == content
    gguf_tokenizer(gpt2_fields(pre="gpt-2"))
    assert len(list(cache.iterdir())) == 2


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert gguf_tokenizer(gpt2_fields()).encode("12").tokens == ["1", "2"]
