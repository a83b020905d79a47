"""Every exception that Outrider raises for what a user did or a model returned."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.core.completion import Completion

_MOST_SHOWN = 200  # characters


class OutriderError(Exception):
    """Root of all errors meant for the user: one line that names the value and the remedy."""


class ParameterError(OutriderError, ValueError):
    """A sampling field or a prompt cannot be honoured (a server answers 400)."""


class ConfigError(OutriderError, ValueError):
    """An engine setting is unknown, malformed, or contradicts another."""


class ModelLoadError(OutriderError):
    """A model, its file or its tokenizer cannot be loaded or cannot be used here."""


class PairError(OutriderError):
    """A draft model and a target do not share a vocabulary."""


class ScoreError(OutriderError):
    """The target returned a row from which no token can be chosen (NaN, or everything masked)."""


class TrainingError(OutriderError):
    """A training run cannot go on: its numbers are no longer finite, or its checkpoint is not its own."""


class GenerationError(OutriderError):
    """Some requests of a batch failed; `completions` holds all of them, in input order.

    The failed ones have `finish_reason == "abort"` and say why in `error`; the others are complete.
    """

    def __init__(self, message: str, completions: list[Completion]) -> None:
        super().__init__(message)
        self.completions = completions


def shown(value: object) -> str:
    """A value for a message: what Python refuses to print, or prints at length, is named by its size or cut."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        return f"a {type(value).__name__} with an integer too long to print"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name: `; did you mean 'x'?`, or nothing when none is near."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def nearest_or_all(name: object, known: Collection[str]) -> str:
    """As `nearest`; where none is near, all are named."""
    return nearest(name, known) or f"; known: {', '.join(known)}"
