"""Text on the terminal as it becomes certain, and the line that sums a text up."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from outrider.cli.progress import Progress
from outrider.cli.report import Totals

if TYPE_CHECKING:
    from outrider.core.completion import Completion
    from outrider.stream import Delta, TextStream

_DRAFTED, _RESET = "\x1b[36m", "\x1b[0m"
# What a model writes must not move the cursor or recolour the terminal.
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True)
class Display:
    """Where a text is shown. `write` takes new text and whether a drafter had guessed it.

    `live`: somebody watches the text grow, so no progress line is needed while it does.
    """

    write: Callable[[str, bool], None]
    live: bool


SILENT = Display(lambda text, from_draft: None, live=False)


def display_on(out: TextIO) -> Display:
    """Plain text for pipes and files; on a terminal, guessed text in a second colour unless NO_COLOR is set."""
    if not out.isatty():
        return Display(lambda text, from_draft: _show(out, text), live=True)
    coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    colour, reset = (_DRAFTED, _RESET) if coloured else ("", "")

    def write(text: str, from_draft: bool) -> None:
        visible = text.translate(_CONTROL)
        _show(out, f"{colour}{visible}{reset}" if from_draft and visible else visible)

    return Display(write, live=True)


def follow(stream: TextStream, display: Display) -> Completion:
    """Shows a text as it grows. Ctrl-C ends it: the completion then holds what was certain, reason "abort"."""
    shown = 0
    try:
        for delta in _arriving(stream, display):
            shown += len(delta.text)  # first, since Ctrl-C strikes while the text is being written
            display.write(delta.text, delta.from_draft)
    except KeyboardInterrupt:
        completion = stream.abort()
        display.write(completion.text[shown:], False)
        return completion
    return stream.completion


def summary(completion: Completion) -> str:
    """Speed, what drafting brought, and what is promised of the text, in one line."""
    totals = Totals.of(completion)
    drafted = totals.stats.num_accepted_draft_tokens / totals.written if totals.written else 0.0
    parts = (
        f"{totals.written} tokens",
        f"{totals.tokens_per_second:.1f} tokens/s",
        f"{totals.stats.tokens_per_pass:.2f} tokens per pass",
        f"{drafted:.0%} drafted",
        f"seed {completion.seed}",
        completion.guarantee,
    )
    return ", ".join(parts)


def _show(out: TextIO, text: str) -> None:
    out.write(text)
    out.flush()


def _arriving(stream: TextStream, display: Display) -> Iterator[Delta]:
    """The deltas; a progress line runs until the first, or to the end where nobody sees the text grow."""
    first: list[Delta] = []
    with Progress("reading the prompt") as progress:
        if display.live:
            first = list(itertools.islice(stream, 1))
        else:
            written = 0
            for delta in stream:
                yield delta
                written += len(delta.token_ids)
                progress.say(f"writing: {written} tokens")
    yield from first
    yield from stream
