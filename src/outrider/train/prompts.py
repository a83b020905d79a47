"""Prompts for training: read from files of the common shapes, rendered with the target's chat template, split."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.text import Tokenizer

Message = Mapping[str, str]

LEAST_PROMPTS = 24
"""Fewer leave nothing to train on beside what is held out."""
_LEAST_TOKENS = 2  # a draft below fewer has no hidden state to go by
_HELD_OUT_SHARE = 16  # one prompt in so many is held out ...
_MOST_HELD_OUT = 96  # ... up to this number
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True)
class Asked:
    """What a file asks: a conversation up to the assistant's turn."""

    messages: tuple[Message, ...]
    source: str  # the file's name


@dataclass(frozen=True)
class Prompt:
    """A conversation as the target reads it."""

    tokens: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class PromptSplit:
    """Prompts to train on, and prompts that training never sees."""

    train: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]


def read_prompts(paths: Sequence[Path]) -> list[Asked]:
    """The conversations of all files, in order, repeated ones once.

    `.jsonl` or `.json`: a record per line (or one list) of a known shape; other files: a prompt per line. Answers in
    the records are left out: the target answers itself. Raises `ConfigError` naming file and line.
    """
    found: dict[tuple[tuple[str, str], ...], Asked] = {}
    for path in paths:
        for asked in _read(path):
            found.setdefault(tuple((m["role"], m["content"]) for m in asked.messages), asked)
    return list(found.values())


def render(asked: Sequence[Asked], tokenizer: Tokenizer, most_tokens: int) -> list[Prompt]:
    """The conversations through the chat template, as raw text for a model without one; those of too many tokens, or
    of a single one, are left out.

    Those that come to the same tokens are one prompt: what is held out must not be trained on in another spelling.
    """
    prompts: dict[tuple[int, ...], Prompt] = {}
    for one in asked:
        if tokenizer.fingerprint is None:
            tokens = tokenizer.encode("\n\n".join(message["content"] for message in one.messages))
        else:
            tokens = tokenizer.chat(one.messages).token_ids
        if _LEAST_TOKENS <= len(tokens) <= most_tokens:
            prompts.setdefault(tuple(tokens), Prompt(tuple(tokens), one.source))
    return list(prompts.values())


def split(prompts: Sequence[Prompt]) -> PromptSplit:
    """Shuffles and holds a share out, both by the prompts' own tokens: the order of the files has no part in it.

    Raises `ConfigError` where too few are left on either side.
    """
    if len(prompts) < LEAST_PROMPTS:
        raise ConfigError(
            f"{len(prompts)} usable prompts leave no held-out data to judge the draft by: give at least {LEAST_PROMPTS}"
        )
    ranked = sorted(prompts, key=_rank)
    count = min(max(8, len(prompts) // _HELD_OUT_SHARE), _MOST_HELD_OUT)
    return PromptSplit(tuple(ranked[count:]), tuple(ranked[:count]))


def file_hashes(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each file, by name; with its folder's name where two files have one name."""
    names = Counter(path.name for path in paths)
    return {
        path.name if names[path.name] == 1 else f"{path.parent.name}/{path.name}": _hash(path)
        for path in paths
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _rank(prompt: Prompt) -> str:
    return hashlib.sha256(repr(prompt.tokens).encode()).hexdigest()


def _read(path: Path) -> Iterator[Asked]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file of prompts: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as prompts ({error}): give a text or .jsonl file"
        ) from None
    if path.suffix not in (".jsonl", ".json"):
        for _, line in _lines(text):
            yield Asked(_single(line.strip()), path.name)
        return
    for number, record in _records(path, text):
        yield Asked(_conversation(record, f"{path.name}:{number}"), path.name)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank. Ends of lines are those of files: U+2028 and its like, at which
    `str.splitlines` cuts too, may stand inside a JSON text."""
    for number, line in enumerate(re.split("\r\n?|\n", text), start=1):
        if line.strip():
            yield number, line


def _records(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Number and value of each record."""
    if path.suffix == ".json":
        whole = _json(text, path.name, "it")
        if not isinstance(whole, list):
            raise ConfigError(f"{path.name}: must hold a list of records: write one per line as .jsonl")
        yield from enumerate(whole, start=1)
        return
    for number, line in _lines(text):
        yield number, _json(line, f"{path.name}:{number}", "the line")


def _json(text: str, place: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # Python also limits the digits of a number
        raise ConfigError(f"{place}: is not JSON ({error}): repair {what}") from None


def _conversation(record: Any, place: str) -> tuple[Message, ...]:
    if isinstance(record, str):
        return _single(record)
    if isinstance(record, Mapping):
        for read in _SHAPES:
            found = read(record)
            if found:
                return found
    keys = ", ".join(map(str, record)) if isinstance(record, Mapping) else type(record).__name__
    raise ConfigError(
        f"{place}: no prompt in a record of {keys}: write messages, conversations, turns, prompt, question, "
        "or instruction with an optional input"
    )


def _single(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _of_messages(record: Mapping[str, Any]) -> tuple[Message, ...] | None:
    """OpenAI's `messages`, or ShareGPT's `conversations` of `from` and `value`: up to the last user's turn."""
    listed = record.get("messages") or record.get("conversations")
    if not isinstance(listed, list):
        return None
    messages: list[Message] = []
    for each in listed:
        if not isinstance(each, Mapping):
            return None
        role = _ROLES.get(str(each.get("role", each.get("from"))))
        content = each.get("content", each.get("value"))
        if role is None or not isinstance(content, str):
            return None
        messages.append({"role": role, "content": content})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return tuple(messages)


def _of_turns(record: Mapping[str, Any]) -> tuple[Message, ...] | None:
    """MT-bench's `turns`: the first one."""
    turns = record.get("turns")
    return _single(turns[0]) if isinstance(turns, list) and turns and isinstance(turns[0], str) else None


def _of_instruction(record: Mapping[str, Any]) -> tuple[Message, ...] | None:
    """Alpaca's `instruction` and `input`; self-instruct keeps the input in its first instance."""
    instruction, given = record.get("instruction"), record.get("input")
    instances = record.get("instances")
    if given is None and isinstance(instances, list) and instances and isinstance(instances[0], Mapping):
        given = instances[0].get("input")
    if not isinstance(instruction, str) or not instruction.strip():
        return None
    return _single(f"{instruction}\n\n{given}" if isinstance(given, str) and given.strip() else instruction)


def _of_text(record: Mapping[str, Any]) -> tuple[Message, ...] | None:
    """One text under `prompt` or `question`."""
    for key in ("prompt", "question"):
        text = record.get(key)
        if isinstance(text, str) and text.strip():
            return _single(text)
    return None


_SHAPES: tuple[Callable[[Mapping[str, Any]], tuple[Message, ...] | None], ...] = (
    _of_messages,
    _of_turns,
    _of_instruction,
    _of_text,
)
