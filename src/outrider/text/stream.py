"""Text that grows token by token: whole characters only, stop strings found, nothing lost or doubled."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"  # what an incomplete or invalid UTF-8 sequence decodes to
_WINDOW = 4  # tokens kept before looking for a character boundary inside a text that stays incomplete


class Decoder(Protocol):
    """What incremental decoding needs of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of all ids together, special tokens left out."""

    def is_shown(self, token_id: int) -> bool:
        """Whether the token contributes to text: neither special nor outside the vocabulary."""


class Detokenizer:
    """Decodes one sequence step by step: the deltas and `finish()` join to `decode` of all ids.

    Only the ids since a recent character boundary, with one token of context before it, are decoded again:
    the cost is O(new tokens) amortised. The last character is held back while later bytes could complete it.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._text = ""  # of the window
        self._given = 0  # characters of it that were returned

    def append(self, token_ids: Sequence[int]) -> str:
        """The new text that is final after these tokens; may be empty."""
        shown = [token for token in token_ids if self._tokenizer.is_shown(token)]
        if not shown:
            return ""
        self._window += shown
        self._text = self._tokenizer.decode(self._window)
        complete = len(self._text) - self._text.endswith(_REPLACEMENT)
        delta = self._text[self._given : complete]
        self._given = max(self._given, complete)
        if complete == len(self._text) or (len(self._window) > _WINDOW and self._ends_on_boundary()):
            self._keep_last(len(self._text) - self._given)
        return delta

    def finish(self) -> str:
        """What was held back, invalid bytes as U+FFFD; nothing may be appended afterwards."""
        rest = self._text[self._given :]
        self._given = len(self._text)
        return rest

    def _keep_last(self, held: int) -> None:
        """Starts a new window at the last token; `held` characters at its end are still to be returned."""
        self._window = self._window[-1:]
        self._text = self._tokenizer.decode(self._window)
        self._given = len(self._text) - held

    def _ends_on_boundary(self) -> bool:
        """Whether a character boundary lies before the last token: no later byte changes what precedes it."""
        last = self._tokenizer.decode(self._window[-1:])
        return bool(last) and self._tokenizer.decode(self._window[:-1]) + last == self._text


class StopChecker:
    """Finds the earliest stop string in the text of a growing sequence.

    A match must end in text that came after the first `min_tokens` tokens, as in vLLM. Of the stop strings
    that one token completes, the one that starts first counts.
    """

    def __init__(self, tokenizer: Decoder, stop: Sequence[str], min_tokens: int) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._unsearched = 0  # characters that belong to the first `min_tokens` tokens
        self._buffer = io.StringIO()
        self._length = 0
        self._tail = ""  # the last characters in which a stop string could have begun
        self._tail_length = max(map(len, self._stop), default=1) - 1

    @property
    def text(self) -> str:
        """The final text so far, stop strings included."""
        return self._buffer.getvalue()

    @property
    def length(self) -> int:
        """Characters of `text`."""
        return self._length

    @property
    def undecided(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._tail)), longest, -1):
                if self._tail.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def slice(self, start: int, end: int) -> str:
        """`text[start:end]` in O(end - start)."""
        self._buffer.seek(start)
        return self._buffer.read(end - start)

    def append(self, token_id: int) -> int | None:
        """Adds one token. When it completes a stop string: how many characters of the text precede that one."""
        return self._add(self._detokenizer.append((token_id,)), tokens=1)

    def finish(self) -> None:
        """Adds what was held back as an incomplete character."""
        self._add(self._detokenizer.finish(), tokens=0)

    def _add(self, new: str, tokens: int) -> int | None:
        self._num_tokens += tokens
        before = self._length
        self._buffer.seek(before)
        self._buffer.write(new)
        self._length += len(new)
        recent = self._tail + new
        self._tail = recent[-self._tail_length :] if self._tail_length else ""
        if self._num_tokens <= self._min_tokens:
            self._unsearched = self._length
            return None
        return self._search(recent, before + len(new) - len(recent), before) if new else None

    def _search(self, recent: str, start: int, before: int) -> int | None:
        """Where the first match in `recent` (text from `start` on) begins: one ending after `before`, `_unsearched`."""
        earliest = max(before, self._unsearched) + 1 - start  # where in `recent` a match may end
        found = [recent.find(stop, max(0, earliest - len(stop))) for stop in self._stop]
        hits = [index for index in found if index >= 0]
        return start + min(hits) if hits else None


class TextTracker:
    """The text of one sequence as its tokens become certain: trimmed at a stop string, safe to stream."""

    def __init__(self, tokenizer: Decoder, stop: tuple[str, ...], min_tokens: int) -> None:
        self._checker = StopChecker(tokenizer, stop, min_tokens)
        self._end: int | None = None  # length of the final text, once known
        self._shown = 0

    def append(self, token_id: int) -> bool:
        """Adds a token that is part of the text. True: it completed a stop string, and the text has ended."""
        assert self._end is None, "the text has ended"
        self._end = self._checker.append(token_id)
        return self._end is not None

    def append_stop_token(self, token_id: int) -> None:
        """Ends the text at an EOS or stop token, whose own text is not shown."""
        self.finish()

    def delta(self) -> str:
        """The text since the last call that nothing later can take back."""
        safe = self._checker.length - self._checker.undecided if self._end is None else self._end
        if safe <= self._shown:
            return ""
        delta = self._checker.slice(self._shown, safe)
        self._shown = safe
        return delta

    @property
    def text(self) -> str:
        """The final text so far, without the stop string."""
        return self._checker.text[: self._end]

    def finish(self) -> None:
        """Ends the text: what was held back becomes part of it and of the next `delta`. Idempotent."""
        if self._end is None:
            self._checker.finish()
            self._end = self._checker.length
