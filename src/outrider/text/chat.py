"""Chat templates: a conversation rendered into the text that the model was trained on."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import ModelLoadError, ParameterError


class ChatTemplate:
    """A model's Jinja template with its special tokens, rendered in a sandbox: it comes with the weights."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self.fingerprint = hashlib.sha256(source.encode()).hexdigest()
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the model's chat template is malformed at line {error.lineno}: {error}"
            ) from None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text, up to where the assistant's answer begins. Raises `ParameterError`."""
        checked = _checked(messages)
        try:
            return self._template.render(
                messages=checked,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except Exception as error:  # a template is code from a file: it may raise anything
            raise ParameterError(f"the model's chat template refuses the messages: {error}") from None


class _Generation(Extension):
    """Accepts `{% generation %}` blocks, which mark assistant text for training, and renders their body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
             separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:  # fmt: skip
    # jinja2's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _checked(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise ParameterError(
            f"messages must be a list of {{'role', 'content'}} mappings, not {type(messages).__name__}"
        )
    if not messages:
        raise ParameterError("messages must not be empty; pass at least one user message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ParameterError(f"messages[{index}] must be a mapping, not {type(message).__name__}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise ParameterError(f"messages[{index}] needs a text {key!r}, not {message.get(key)!r}")
    return [dict(message) for message in messages]
