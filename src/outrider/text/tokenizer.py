"""`Tokenizer`: text to token ids and back, chat prompts, EOS ids; read from GGUF, a folder, or transformers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from outrider.errors import ModelLoadError, ParameterError
from outrider.models.checkpoint import read_json
from outrider.models.load import ModelSource, SourceKind
from outrider.models.malformed import reading
from outrider.text.chat import ChatTemplate

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_GGUF_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model reads it."""

    text: str
    token_ids: list[int]


class Tokenizer:
    """Text to ids and back with the model's own tokenizer; immutable.

    `eos_token_ids`: the tokens that end a text, smallest first. `vocab_size` counts added tokens too.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, eos_token_ids: Iterable[int] = (),
                 template: ChatTemplate | None = None) -> None:  # fmt: skip
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        added = backend.get_added_tokens_decoder()
        self._hidden = frozenset(index for index, token in added.items() if token.special)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        self._bytes = _byte_tokens(backend)

    @staticmethod
    def of_transformers(tokenizer: Any, eos_token_ids: Iterable[int] = ()) -> Tokenizer:
        """A copy of a transformers fast tokenizer; `eos_token_ids` are those of the model's configuration.

        Raises `ModelLoadError` for one that is not built on the tokenizers library.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, tokenizers.Tokenizer):
            raise ModelLoadError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; load it with use_fast=True"
            )
        ids = set(eos_token_ids) or {i for i in (tokenizer.eos_token_id,) if i is not None}
        special = {
            name: value for name in _SPECIAL_NAMES if (value := getattr(tokenizer, name, None)) is not None
        }
        template = _template(tokenizer.chat_template, special)
        return Tokenizer(copy.deepcopy(backend), eos_token_ids=ids, template=template)

    @property
    def kind(self) -> str:
        """The algorithm, as the tokenizers library names it: BPE, Unigram, WordPiece or WordLevel."""
        return type(self._backend.model).__name__

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of the chat template, None without one: equal templates render equal prompts."""
        return None if self._template is None else self._template.fingerprint

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with BOS where the model wants it; special tokens in it are recognised.

        Raises `ParameterError` for what is not a text, or has no tokens in this vocabulary.
        """
        return self._ids(text, add_special_tokens=True)

    def encode_part(self, text: str) -> list[int]:
        """Ids of a text that stands inside a longer one: as `encode`, but nothing is added around it."""
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if not isinstance(text, str):
            raise ParameterError(f"a prompt must be a text, not {type(text).__name__}")
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError):
            raise ParameterError(
                f"the text {text[:40]!r} is not valid Unicode (a lone surrogate); clean it"
            ) from None
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise ParameterError(
                f"the text {text[:40]!r} cannot be written in this model's tokens ({error}): change it"
            ) from None
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of all ids; invalid UTF-8 becomes U+FFFD, ids outside the vocabulary are left out."""
        shown = (
            [i for i in ids if self.is_shown(i)]
            if skip_special_tokens
            else [i for i in ids if 0 <= i < self.vocab_size]
        )
        if not any(i in self._bytes for i in shown):
            return str(self._backend.decode(shown, skip_special_tokens=False))
        return str(self._backend.decoder.decode(self._pieces(shown)))

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Token strings with every run of byte tokens decoded.

        The library turns a whole run into U+FFFD when one byte of it is wrong: a stream learns that too late.
        """
        pieces: list[str] = []
        run = bytearray()
        for index in ids:
            if index in self._bytes:
                run.append(self._bytes[index])
                continue
            if run:
                pieces.append(run.decode("utf-8", "replace"))
                run.clear()
            pieces.append(self._backend.id_to_token(index) or "")
        return [*pieces, run.decode("utf-8", "replace")] if run else pieces

    def is_shown(self, token_id: int) -> bool:
        """Whether the token contributes to text: neither special nor outside the vocabulary."""
        return token_id not in self._hidden and 0 <= token_id < self.vocab_size

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it, None outside the vocabulary."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def vocabulary(self) -> list[str | None]:
        """All tokens in the order of their ids, None where an id has none."""
        by_id = {index: token for token, index in self._backend.get_vocab(with_added_tokens=True).items()}
        return [by_id.get(index) for index in range(max(by_id, default=-1) + 1)]

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> ChatPrompt:
        """Renders `{"role": ..., "content": ...}` messages, ready for the assistant's answer.

        Raises `ParameterError` without a chat template, and for messages that are malformed or refused by it.
        """
        if self._template is None:
            raise ParameterError("this model has no chat template; pass a raw prompt instead of messages")
        text = self._template.render(messages)
        return ChatPrompt(text, self.encode_part(text))


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Token sequences of each word as written and with a leading space, without duplicates.

    Raises `ParameterError` for a word without tokens.
    """
    if not words:
        return ()
    found: dict[tuple[int, ...], None] = {}
    anchor = tokenizer.encode_part("\n")
    for word in words:
        forms = [tokenizer.encode_part(word), tokenizer.encode_part(" " + word.lstrip(" "))]
        after_newline = tokenizer.encode_part("\n" + word)
        if after_newline[: len(anchor)] == anchor:
            # Where a tokenizer puts a space before every text, only this shows the word without one.
            forms.append(after_newline[len(anchor) :])
        if not all(forms):
            raise ParameterError(f"bad_words: {word!r} has no tokens in this model's vocabulary; remove it")
        found.update(dict.fromkeys(map(tuple, forms)))
    return tuple(found)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a GGUF file or a model folder. Raises `ModelLoadError`."""
    with reading(source.path):
        return _of_gguf(source.gguf.metadata) if source.kind is SourceKind.GGUF else _of_folder(source.path)


def _of_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    from outrider.text.gguf import gguf_tokenizer

    backend = gguf_tokenizer(metadata)
    ids = [metadata[key] for name in _GGUF_EOS_KEYS if (key := f"tokenizer.ggml.{name}") in metadata]
    special = {}
    for name, field in zip(_SPECIAL_NAMES, ("bos", "eos", "unknown", "padding")):
        index = metadata.get(f"tokenizer.ggml.{field}_token_id")
        if index is not None and (token := backend.id_to_token(index)) is not None:
            special[name] = token
    return Tokenizer(
        backend, eos_token_ids=ids, template=_template(metadata.get("tokenizer.chat_template"), special)
    )


def _of_folder(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _by_transformers(folder)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise ModelLoadError(f"{path} is not a tokenizer: {error}") from None
    config = {
        **_optional_json(folder / "special_tokens_map.json"),
        **_optional_json(folder / "tokenizer_config.json"),
    }
    special = {name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None}
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    ids = _folder_eos(folder)
    if not ids and "eos_token" in special:
        ids = [i for i in (backend.token_to_id(special["eos_token"]),) if i is not None]
    return Tokenizer(backend, eos_token_ids=ids, template=_template(template, special))


def _by_transformers(folder: Path) -> Tokenizer:
    """For a folder with a sentencepiece model only, which transformers converts."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a third-party converter raises
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelLoadError(
            f"{folder} holds no tokenizer.json and no tokenizer to convert: {reason}"
        ) from None
    return Tokenizer.of_transformers(tokenizer, _folder_eos(folder))


def _folder_eos(folder: Path) -> list[int]:
    """EOS ids of the generation configuration, else of the model's."""
    for name in ("generation_config.json", "config.json"):
        value = _optional_json(folder / name).get("eos_token_id")
        if value is not None:
            return [value] if isinstance(value, int) else list(value)
    return []


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _token_text(value: Any) -> str | None:
    """A special token of a configuration: a string, or a record with its `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _template(value: Any, special: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template; of several named ones, the one called "default"."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = {entry.get("name"): entry.get("template") for entry in value}
    if isinstance(value, Mapping):
        value = value.get("default")
    return ChatTemplate(value, special) if isinstance(value, str) and value else None


def _byte_tokens(backend: tokenizers.Tokenizer) -> dict[int, int]:
    """Byte-fallback tokens, `<0x00>` to `<0xFF>`, where the tokenizer decodes them as bytes."""
    probe = backend.token_to_id("<0x41>")
    if probe is None or backend.decode([probe, probe]).strip() != "AA":
        return {}
    ids = {byte: backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    return {index: byte for byte, index in ids.items() if index is not None}
