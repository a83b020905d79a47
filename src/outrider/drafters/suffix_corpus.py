"""`SuffixCorpus`: the last texts of an engine, as suffix automata that are dropped oldest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.drafters.suffix_automaton import SuffixAutomaton
from outrider.errors import ConfigError


class SuffixCorpus:
    """Texts in two halves: when the newer one is full it becomes the older one, and the older one is dropped.

    So it holds at most `most_texts` texts and `most_tokens` tokens, and at least the last half of them. Nothing can be
    taken out of a suffix automaton; dropping a half costs nothing. A text longer than half of `most_tokens` is cut.
    `longest`: tokens of the longest context that is counted. Raises `ConfigError` on fewer than one text.
    """

    most_tokens = 1 << 17

    def __init__(self, longest: int = 24, most_texts: int = 10_000) -> None:
        if most_texts < 1:
            raise ConfigError(f"suffix_decoding_max_cached_requests must be at least 1, not {most_texts}")
        self._longest = longest
        self._halves = [SuffixAutomaton(longest)]
        self._count = 2 if most_texts > 1 else 1
        self._most_texts = most_texts // self._count
        self._most_tokens = self.most_tokens // 2

    def __iter__(self) -> Iterator[SuffixAutomaton]:
        """The automata, newest texts first."""
        return iter(self._halves)

    @property
    def memory_bytes(self) -> int:
        """Bytes held, within a few percent."""
        return sum(half.memory_bytes for half in self._halves)

    def add(self, text: Sequence[int]) -> None:
        """Takes in a text. O(its tokens)."""
        text = text[: self._most_tokens]
        if not text:
            return
        newest = self._halves[0]
        if newest.texts == self._most_texts or newest.tokens_read + len(text) > self._most_tokens:
            newest = SuffixAutomaton(self._longest)
            self._halves = [newest, *self._halves][: self._count]
        newest.begin()
        newest.read(text)
