"""Cuts certain tokens into passes of bounded width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.core.protocols import Chunk


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
