"""`NgramPool`: what has followed each token of one text, or may follow it, most recently seen first."""

from __future__ import annotations

from collections.abc import Sequence


class NgramPool:
    """At most `ways` continuations of `length` tokens per first token; the one not seen for longest makes room."""

    def __init__(self, length: int, ways: int) -> None:
        self._length, self._ways = length, ways
        self._after: dict[int, list[tuple[int, ...]]] = {}
        self._read = 0  # first tokens of the text whose n-grams are in

    def add(self, token: int, continuation: tuple[int, ...]) -> None:
        """Makes this the most recent continuation of `token`. O(ways)."""
        assert len(continuation) == self._length, "n-grams of one length"
        found = self._after.setdefault(token, [])
        if continuation in found:
            found.remove(continuation)
        found.insert(0, continuation)
        del found[self._ways :]

    def read(self, tokens: Sequence[int]) -> None:
        """Takes in the n-grams of a growing text that were not complete at the last call."""
        new = tokens[self._read :]
        for place in range(len(new) - self._length):
            self.add(new[place], tuple(new[place + 1 : place + 1 + self._length]))
        self._read = max(self._read, len(tokens) - self._length)

    def after(self, token: int) -> Sequence[tuple[int, ...]]:
        """Continuations of `token`, most recent first; valid until the next `add` or `read`."""
        return self._after.get(token, ())
