"""The logits processors before the temperature: masks, bias, and penalties on a node's own history."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from outrider.core.law import Floats, Ids
from outrider.core.sampling import SamplingParams
from outrider.core.token_map import Columns
from outrider.errors import ParameterError


class Processors:
    """Changes a row of logits by the request's settings and by prompt + output + path.

    Order: bad_words, no_repeat_ngram -> min_tokens, logit_bias -> repetition, presence, frequency penalty.
    Reads `log`, the append-only list of prompt and output; what is indexed of it is brought up to date only
    when a node needs it.
    """

    def __init__(self, sampling: SamplingParams, log: list[int], prompt_length: int,
                 stop_ids: frozenset[int], bad_word_ids: tuple[tuple[int, ...], ...]) -> None:  # fmt: skip
        self._log, self._prompt_length = log, prompt_length
        self._bad_words = BadWords(bad_word_ids) if bad_word_ids else None
        size = sampling.no_repeat_ngram_size
        self._ngrams = NgramIndex(log, size) if size else None
        self._min_tokens = sampling.min_tokens if stop_ids else 0
        self._stop_ids = stop_ids
        self._bias_ids = np.array(sorted(sampling.logit_bias), dtype=np.int64)
        self._bias = np.array(
            [sampling.logit_bias[token] for token in self._bias_ids.tolist()], dtype=np.float64
        )
        self._repetition = sampling.repetition_penalty
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._seen = TokenCounts(log, 0) if self._repetition != 1.0 else None
        self._written = TokenCounts(log, prompt_length) if self._presence or self._frequency else None
        self._always = any((self._bad_words, self._ngrams, sampling.logit_bias, self._seen, self._written))

    def active(self, path: Sequence[int]) -> bool:
        """Whether any processor can change the row after this path."""
        return self._always or self._holds_back(path)

    def apply(self, logits: Floats, path: Sequence[int], columns: Columns) -> None:  # [columns], in place
        """Applies every processor. Raises `ParameterError` when logit_bias names a token beyond the vocabulary."""
        with np.errstate(over="ignore", invalid="ignore"):
            self._mask(logits, path, columns)
            self._add_bias(logits, columns)
            if self._seen is not None:
                places, _ = columns.found(self._seen.through(path)[0])
                values = logits[places]
                logits[places] = np.where(values > 0, values / self._repetition, values * self._repetition)
            if self._written is not None:
                tokens, counts = self._written.through(path)
                places, which = columns.found(tokens)
                logits[places] -= self._frequency * counts[which]
                logits[places] -= self._presence

    def _holds_back(self, path: Sequence[int]) -> bool:
        """Whether the text is still too short to stop here."""
        return len(self._log) - self._prompt_length + len(path) < self._min_tokens

    def _mask(self, logits: Floats, path: Sequence[int], columns: Columns) -> None:
        banned: set[int] = set()
        if self._bad_words is not None:
            start = max(self._prompt_length, len(self._log) - self._bad_words.reach)
            banned |= self._bad_words.completing([*self._log[start:], *path])
        if self._ngrams is not None:
            banned |= self._ngrams.repeating(path)
        if self._holds_back(path):
            banned |= self._stop_ids
        if banned:
            places, _ = columns.found(np.array(list(banned), dtype=np.int64))
            logits[places] = -np.inf

    def _add_bias(self, logits: Floats, columns: Columns) -> None:
        if not self._bias_ids.size:
            return
        largest = int(self._bias_ids[-1])
        if largest >= columns.vocab_size:
            raise ParameterError(
                f"logit_bias names token {largest}, but the vocabulary ends at {columns.vocab_size - 1}; remove it"
            )
        places, which = columns.found(self._bias_ids)
        logits[places] += self._bias[which]


class TokenCounts:
    """How often each token occurs in an append-only log from `start` on; O(new tokens) to catch up."""

    def __init__(self, log: list[int], start: int) -> None:
        self._log, self._read = log, start
        self._slots: dict[int, int] = {}  # token -> its place in the arrays
        self._tokens: Ids = np.zeros(64, dtype=np.int64)
        self._counts: Ids = np.zeros(64, dtype=np.int64)

    def through(self, path: Sequence[int]) -> tuple[Ids, Ids]:  # [d], [d]
        """Distinct tokens of the log and the path, and their counts. Valid until the log grows."""
        for token in self._log[self._read :]:
            self._count(token)
        self._read = len(self._log)
        tokens, counts = self._tokens[: len(self._slots)], self._counts[: len(self._slots)]
        if path:
            return self._with_path(tokens, counts.copy(), path)
        return tokens, counts

    def _count(self, token: int) -> None:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[slot] = token
        self._counts[slot] += 1

    def _with_path(self, tokens: Ids, counts: Ids, path: Sequence[int]) -> tuple[Ids, Ids]:
        fresh: dict[int, int] = {}
        for token in path:
            slot = self._slots.get(token)
            if slot is None:
                fresh[token] = fresh.get(token, 0) + 1
            else:
                counts[slot] += 1
        if not fresh:
            return tokens, counts
        return (np.concatenate([tokens, np.array(list(fresh), dtype=np.int64)]),
                np.concatenate([counts, np.array(list(fresh.values()), dtype=np.int64)]))  # fmt: skip


class NgramIndex:
    """Which tokens followed each (size - 1)-gram of an append-only log; O(new tokens) to catch up."""

    def __init__(self, log: list[int], size: int) -> None:
        self._log, self._size, self._read = log, size, 0
        self._followers: dict[tuple[int, ...], set[int]] = {}

    def repeating(self, path: Sequence[int]) -> set[int]:
        """Tokens that would repeat an n-gram of the log and the path when emitted after them."""
        before = self._size - 1
        for end in range(max(self._read, before), len(self._log)):
            prefix = tuple(self._log[end - before : end])
            self._followers.setdefault(prefix, set()).add(self._log[end])
        self._read = len(self._log)
        tail = (*self._log[len(self._log) - min(before, len(self._log)) :], *path)
        if len(tail) < before:
            return set()
        prefix = tail[len(tail) - before :]
        banned = set(self._followers.get(prefix, ()))
        banned.update(tail[end] for end in range(before, len(tail)) if tail[end - before : end] == prefix)
        return banned


class BadWords:
    """Token sequences that must not appear in the output. `reach`: how many earlier tokens decide."""

    def __init__(self, words: Collection[tuple[int, ...]]) -> None:
        assert all(words), "a bad word has at least one token"
        self.reach = max(len(word) for word in words) - 1
        self._always = {word[0] for word in words if len(word) == 1}
        self._by_previous: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                self._by_previous.setdefault(word[-2], []).append(word)

    def completing(self, tail: Sequence[int]) -> set[int]:
        """Tokens that would complete a bad word after an output that ends with `tail`."""
        banned = set(self._always)
        for word in self._by_previous.get(tail[-1], ()) if tail else ():
            before = len(word) - 1
            if before <= len(tail) and tuple(tail[len(tail) - before :]) == word[:-1]:
                banned.add(word[-1])
        return banned
