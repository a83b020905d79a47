"""Checks certain tokens and cuts them into passes of bounded width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from outrider.core.protocols import Chunk
from outrider.errors import ParameterError


def check_chunks(chunks: Sequence[Chunk], cached_length: Callable[[int], int], max_length: int) -> None:
    """One chunk per sequence. Raises `ParameterError` when a sequence would outgrow the context."""
    for chunk in chunks:
        length = cached_length(chunk.sequence_id) + len(chunk.tokens)
        if length > max_length:
            raise ParameterError(f"{length} tokens exceed the model's context of {max_length}: shorten them")
    assert len({chunk.sequence_id for chunk in chunks}) == len(chunks), "one chunk per sequence"


def passes(chunks: Sequence[Chunk], rows: int) -> Iterator[list[tuple[int, Sequence[int]]]]:
    """Passes of at most `rows` rows: lists of (chunk index, tokens), in order."""
    pieces: list[tuple[int, Sequence[int]]] = []
    room = rows
    for index, chunk in enumerate(chunks):
        done = 0
        while done < len(chunk.tokens):
            tokens = chunk.tokens[done : done + room]
            pieces.append((index, tokens))
            done, room = done + len(tokens), room - len(tokens)
            if room == 0:
                yield pieces
                pieces, room = [], rows
    if pieces:
        yield pieces
