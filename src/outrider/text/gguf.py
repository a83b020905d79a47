"""Tokenizers of GGUF files: built once from the file's metadata, then kept in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from outrider.errors import ModelLoadError

_VERSION = "1"  # part of the cache key: raise it when the conversion changes
_SPACE = "\u2581"  # how sentencepiece writes a space

# Word patterns of byte-level BPE, by the names that GGUF converters write into `tokenizer.ggml.pre`.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2_NAMES = ("default", "gpt-2", "phi-2", "mpt", "olmo", "jais")
_DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_KNOWN_PRE = _GPT2_NAMES + _DIGIT_NAMES + _LLAMA3_NAMES + _QWEN2_NAMES


class _TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type` that matter here."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `tokenizer.ggml.*` describes, from the cache folder when it was built before.

    Raises `ModelLoadError` for a tokenizer kind or a word pattern that Outrider does not know.
    """
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()
              if key.startswith("tokenizer.ggml.")}  # fmt: skip
    if not fields.get("tokens"):
        raise ModelLoadError(
            "the GGUF file holds no tokenizer (no tokenizer.ggml.tokens); use a complete file"
        )
    path = _cache_folder() / f"{_content_hash(fields)}.json"
    cached = _read(path, len(fields["tokens"]))
    if cached is not None:
        return cached
    tokenizer = _build(fields)
    _write(path, tokenizer)
    return tokenizer


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "outrider" / "tokenizers"


def _content_hash(fields: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(_VERSION.encode())
    for key in sorted(fields):
        value = fields[key]
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        text = "\0".join(map(str, value)) if is_list else str(value)
        digest.update(f"{key}\0{len(text)}\0".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _read(path: Path, vocab_size: int) -> Tokenizer | None:
    """The cached tokenizer, or None when there is none or the file is damaged."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # the tokenizers library raises nothing narrower
        return None
    return tokenizer if tokenizer.get_vocab_size() == vocab_size else None


def _write(path: Path, tokenizer: Tokenizer) -> None:
    """Writes whole or not at all; a folder that cannot be written only costs the next start some time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(tokenizer.to_str())
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)


def _build(fields: Mapping[str, Any]) -> Tokenizer:
    kind = fields.get("model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields)
    elif kind == "llama":
        tokenizer = _sentencepiece(fields)
    else:
        raise ModelLoadError(f"tokenizer.ggml.model {kind!r} is not supported; known: gpt2, llama")
    _add_special_tokens(tokenizer, fields)
    _add_post_processor(tokenizer, fields)
    return tokenizer


def _byte_level(fields: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE (GPT-2's kind); what differs between models is how text is cut into words."""
    pre = fields.get("pre", "default")
    if pre not in _KNOWN_PRE:
        raise ModelLoadError(f"tokenizer.ggml.pre {pre!r} is not supported; known: {', '.join(_KNOWN_PRE)}")
    merges = [_split_merge(merge) for merge in fields.get("merges", ())]
    vocab = {token: index for index, token in enumerate(fields["tokens"])}
    tokenizer = Tokenizer(_bpe(vocab, merges, ignore_merges=pre in _LLAMA3_NAMES))
    tokenizer.pre_tokenizer = _word_pattern(pre)
    if pre in _QWEN2_NAMES:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_merge(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    if cut < 0:
        raise ModelLoadError(
            f"tokenizer.ggml.merges holds {merge!r}, which is not two tokens; the file is damaged"
        )
    return merge[:cut], merge[cut + 1 :]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab, merges, **options)
    except Exception as error:  # a merge of tokens outside the vocabulary; nothing narrower is raised
        raise ModelLoadError(f"the GGUF file's merges and tokens do not fit together: {error}") from None


def _word_pattern(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _GPT2_NAMES:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _DIGIT_NAMES:
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence(
            [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    split = pre_tokenizers.Split(Regex(_QWEN2 if pre in _QWEN2_NAMES else _LLAMA3), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(fields: Mapping[str, Any]) -> Tokenizer:
    """Sentencepiece BPE with byte fallback (Llama 2's kind): the merge of the best score comes first."""
    tokens, scores = fields["tokens"], fields.get("scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelLoadError("tokenizer.ggml.scores does not hold one score per token; the file is damaged")
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[fields.get("unknown_token_id", 0)]
    merges = _merges_by_score(vocab, scores)
    tokenizer = Tokenizer(_bpe(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces = normalizers.Replace(" ", _SPACE)
    if fields.get("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, by the third's score, then by the ids of the parts."""
    ranked = []
    for token, index in vocab.items():
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], left, right, token[:cut], token[cut:]))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _add_special_tokens(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    """Control tokens are special (recognised in text, not shown); user-defined ones are also shown."""
    special, plain = [], []
    for token, kind in zip(fields["tokens"], fields.get("token_type", ())):
        if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == _TokenType.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_post_processor(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    """BOS and EOS around a prompt, where the file asks for them or its kind implies them."""
    implied = fields["model"] == "llama" or fields.get("pre") in _LLAMA3_NAMES
    around = []
    for name, template, default in (("bos", "{} $A", implied), ("eos", "$A {}", False)):
        index = fields.get(f"{name}_token_id")
        if index is not None and fields.get(f"add_{name}_token", default):
            token = fields["tokens"][index]
            around.append(
                processors.TemplateProcessing(single=template.format(token), special_tokens=[(token, index)])
            )
    if around:
        tokenizer.post_processor = around[0] if len(around) == 1 else processors.Sequence(around)
