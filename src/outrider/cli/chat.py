"""`outrider chat`: a conversation in the terminal, or one message per line of standard input."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.display import display_on, follow, summary
from outrider.cli.options import (
    EngineSettings,
    engine_options,
    sampling_options,
    sampling_params,
    speculation_options,
)
from outrider.errors import ParameterError, nearest_or_all

if TYPE_CHECKING:
    from outrider.core.sampling import SamplingParams
    from outrider.llm import LLM

_COMMANDS = ("/reset", "/quit")


@click.command()
@click.argument("model")
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@engine_options
@speculation_options
@sampling_options
def chat(model: str, system: str | None, **given: Any) -> None:
    """Talks with MODEL, which remembers what was said.

    /reset forgets the conversation, /quit or the end of input leaves, Ctrl-C stops an answer and keeps what was said.
    """
    sampling = sampling_params(given)
    conversation = Conversation(EngineSettings.of(model, given).open(), sampling, system)
    for message in _typed() if sys.stdin.isatty() else _piped():
        if message == "/quit":
            return
        if message == "/reset":
            conversation.reset()
        elif re.fullmatch(r"/\w+", message):
            hint = nearest_or_all(message, _COMMANDS)
            _complain(ParameterError(f"unknown command {message!r}{hint}"))
        else:
            try:
                conversation.say(message)
            except KeyboardInterrupt:  # too early or too late to stop an answer: it only ends this turn
                click.echo()
            except ParameterError as error:
                _complain(ParameterError(f"{error}; /reset starts afresh"))


class Conversation:
    """The messages so far; grows with every answer."""

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._sampling = sampling
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._opening)

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages = list(self._opening)

    def say(self, message: str) -> None:
        """Shows the answer and remembers both. Raises `ParameterError` for what cannot be asked, and forgets it."""
        asked = [*self.messages, {"role": "user", "content": message}]
        prompt = self._llm.tokenizer.chat(asked).token_ids
        answer = follow(self._llm.stream(prompt, self._sampling), display_on(sys.stdout))
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        click.echo()
        click.echo(summary(answer), err=True)


def _piped() -> Iterator[str]:
    """Non-empty lines of standard input."""
    return (line for line in map(str.strip, sys.stdin) if line)


def _typed() -> Iterator[str]:
    """Lines typed at a prompt, with the line editing that the system has; Ctrl-C drops a line."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives `input` line editing and a history)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\n(/quit leaves)", err=True)
            continue
        if line:
            yield line


def _complain(error: ParameterError) -> None:
    """Somebody at a terminal can try again; a script must notice."""
    if not sys.stdin.isatty():
        raise error
    click.echo(f"error: {error}", err=True)
