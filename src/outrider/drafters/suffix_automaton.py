"""`SuffixAutomaton`: all that texts hold, with counts of what followed what."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

BYTES_PER_TOKEN = 1100
"""No automaton holds more bytes per token that it has read: at most two states of 140 bytes with their dicts."""
_ROOT = 0
_SLOT = 9  # bytes of an entry of a list, what the list holds in reserve included
_NUMBER = 28  # bytes of an integer above the small ones that Python keeps ready


class Match(NamedTuple):
    """The last `length` tokens of some text and the state that holds them. Valid until more is read."""

    state: int
    length: int


class Guess(NamedTuple):
    """A token that followed a context of `length` tokens `times` of the `total` times that anything followed it."""

    token: int
    times: int
    total: int
    length: int


class SuffixAutomaton:
    """The suffix automaton of texts (Blumer et al. 1985): every part of them is a path from the root.

    A state stands for the parts that end at the same places; its link leads to their longest common end that ends at
    more places. *Contexts* are ends of at most `longest` tokens; what followed them is counted exactly. A token read
    costs O(1) amortised for the states, of which it makes two at most, and a step per context for the counts.
    """

    def __init__(self, longest: int) -> None:
        assert longest >= 1, "a context holds a token"
        self.texts = 0
        self.tokens_read = 0
        self._longest = longest
        self._next: list[dict[int, int]] = [{}]
        self._link = [_ROOT]
        self._length = [0]  # of the longest part of a state
        self._count = [0]  # places at which a state's parts end, for parts of `longest` + 1 tokens at most
        self._followed = [0]  # those of them that a token follows, for contexts
        self._best: list[int | None] = [None]  # the token that does so most often, of equals the latest
        self._last = _ROOT
        self._end = _ROOT  # the state of the last tokens read, at most one more than a context holds
        self._end_length = 0

    @property
    def end(self) -> Match:
        """The longest context at the end of what was read."""
        length = min(self._end_length, self._longest)
        return Match(self._holding(self._end, length), length)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, within a few percent. O(states)."""
        states = len(self._link)
        return states * (6 * _SLOT + 3 * _NUMBER) + sum(map(sys.getsizeof, self._next))

    def begin(self) -> None:
        """What is read next starts a text of its own."""
        self.texts += 1
        self._last = self._end = _ROOT
        self._end_length = 0

    def read(self, tokens: Iterable[int]) -> None:
        """Takes in how the text goes on."""
        for token in tokens:
            self._extend(token)
            self._tally(token)
            self.tokens_read += 1

    def find(self, tokens: Sequence[int]) -> Match:
        """The longest context at the end of `tokens` that occurs in what was read."""
        match = Match(_ROOT, 0)
        for token in tokens[-self._longest :]:
            match = self.after(match, token)
        return match

    def after(self, match: Match, token: int) -> Match:
        """The longest context at the end of the matched tokens and `token` that occurs in what was read."""
        state, length = match
        while token not in self._next[state]:
            if state == _ROOT:
                return Match(_ROOT, 0)
            state = self._link[state]
            length = self._length[state]
        length = min(length + 1, self._longest)
        return Match(self._holding(self._next[state][token], length), length)

    def followed(self, match: Match) -> Match:
        """The longest context at the end of the match that something follows."""
        state, length = match
        while self._best[state] is None and state != _ROOT:
            state = self._link[state]
            length = self._length[state]
        return Match(state, length)

    def guesses(self, match: Match) -> Iterator[Guess]:
        """The best guess of every context at the end of the match that was followed, longest first; the empty one
        is not asked."""
        state, length = match
        while state != _ROOT:
            token = self._best[state]
            if token is not None:
                yield Guess(token, self._count[self._next[state][token]], self._followed[state], length)
            state = self._link[state]
            length = self._length[state]

    def children(self, match: Match, most: int) -> Iterator[Guess]:
        """Guesses of every context as in `guesses`, up to `most` for each: the best one, then the newest ones."""
        state, length = match
        while state != _ROOT:
            best, total = self._best[state], self._followed[state]
            if best is not None:
                below = self._next[state]
                yield Guess(best, self._count[below[best]], total, length)
                for token, child in islice(reversed(below.items()), most):
                    if token != best:
                        yield Guess(token, self._count[child], total, length)
            state = self._link[state]
            length = self._length[state]

    def _extend(self, token: int) -> None:
        """Adds the parts that end with the new token."""
        following, link = self._next, self._link
        state = self._last
        if token in following[state]:  # as long as the text says what another began with
            self._last = self._split(state, token)
            return
        made = self._last = self._add({}, self._length[state] + 1)
        while token not in following[state]:
            following[state][token] = made
            if state == _ROOT:
                return
            state = link[state]
        link[made] = self._split(state, token)

    def _split(self, state: int, token: int) -> int:
        """The state of the longest part of `state` with `token` below it, set apart from longer parts."""
        following, link = self._next, self._link
        whole, length = following[state][token], self._length[state] + 1
        if self._length[whole] == length:
            return whole
        made = self._add(dict(following[whole]), length)
        self._count[made], self._followed[made] = self._count[whole], self._followed[whole]
        self._best[made] = self._best[whole]
        link[made], link[whole] = link[whole], made
        while following[state].get(token) == whole:
            following[state][token] = made
            state = link[state]  # the root's link is the root, which has been redirected by then
        return made

    def _add(self, following: dict[int, int], length: int) -> int:
        self._next.append(following)
        self._link.append(_ROOT)
        self._length.append(length)
        self._count.append(0)
        self._followed.append(0)
        self._best.append(None)
        return len(self._link) - 1

    def _tally(self, token: int) -> None:
        """Counts the new token below every context that it follows."""
        following, link, count, best = self._next, self._link, self._count, self._best
        length = min(self._end_length, self._longest)
        context = self._holding(self._end, length)
        self._end = state = self._holding(following[context][token], length + 1)
        self._end_length = length + 1
        while state != _ROOT:
            count[state] += 1
            state = link[state]
        state = context
        while True:
            self._followed[state] += 1
            favourite = best[state]
            if favourite != token:
                below = following[state]
                if favourite is None or count[below[token]] >= count[below[favourite]]:
                    best[state] = token
            if state == _ROOT:
                return
            state = link[state]

    def _holding(self, state: int, length: int) -> int:
        """The state that holds the last `length` tokens of the parts of `state`."""
        link, lengths = self._link, self._length
        while state != _ROOT and lengths[link[state]] >= length:
            state = link[state]
        return state
