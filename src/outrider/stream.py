"""Streaming: the text of one request as it becomes certain."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outrider.core.completion import Completion
from outrider.core.sequence import Piece, Sequence
from outrider.engine.engine import Engine
from outrider.errors import ScoreError


@dataclass(frozen=True)
class Delta:
    """New text: neighbouring tokens that a drafter had guessed, or that the target added itself.

    `text` may lag `token_ids` while a character or a possible stop string is incomplete; joined over the
    stream it is the completion's text. `finish_reason` is set on the last delta only.
    """

    text: str
    token_ids: tuple[int, ...]
    from_draft: bool
    finish_reason: str | None = None


class TextStream(Iterator[Delta]):
    """Iterates over deltas; `completion` holds the whole once it has ended or was aborted.

    Raises `ScoreError` where the text could not go on.
    """

    def __init__(
        self, engine: Engine, sequence: Sequence, complete: Callable[[Sequence], Completion]
    ) -> None:
        self._engine = engine
        self._sequence = sequence
        self._complete = complete
        self._read = 0
        self._ready: list[Delta] = []
        self._ended = False
        # A stream that is dropped half-way must not go on being written beside later requests.
        weakref.finalize(self, engine.drop, sequence).atexit = False

    def __next__(self) -> Delta:
        with self._engine.turn:
            return self._next()

    def _next(self) -> Delta:
        while True:
            # Rounds that other requests asked for may have advanced this one, to its end even.
            self._ready += self._new_deltas()
            if self._ready:
                return self._ready.pop(0)
            if self._sequence.error is not None:
                raise ScoreError(self._sequence.error)
            reason = self._sequence.finish_reason
            if reason is not None and self._ended:
                raise StopIteration
            if reason is not None:  # ended without a token of its own: interrupted in another request's round
                self._ended = True
                return Delta("", (), False, reason.value)
            self._engine.step()

    @property
    def completion(self) -> Completion:
        """What has been written, complete when the stream has ended."""
        with self._engine.turn:
            return self._complete(self._sequence)

    def abort(self) -> Completion:
        """Ends the request where it stands and frees its caches; what is certain stays in the completion."""
        with self._engine.turn:
            self._engine.abort(self._sequence)
            self._read, self._ready, self._ended = len(self._sequence.pieces), [], True
            return self.completion

    def close(self) -> None:
        self.abort()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def _new_deltas(self) -> list[Delta]:
        pieces = self._sequence.pieces[self._read :]
        self._read += len(pieces)
        deltas = [
            _joined(list(run), drafted) for drafted, run in itertools.groupby(pieces, lambda p: p.from_draft)
        ]
        reason = self._sequence.finish_reason
        if reason is not None and deltas:
            last = deltas[-1]
            deltas[-1] = Delta(last.text, last.token_ids, last.from_draft, reason.value)
            self._ended = True
        return deltas


def _joined(pieces: list[Piece], from_draft: bool) -> Delta:
    return Delta("".join(p.text for p in pieces), tuple(p.token_id for p in pieces), from_draft)
