"""`ScriptedHead`: a draft head that knows what each sequence will write, right at a chosen share of positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from outrider.core.noise import uniform
from outrider.models.head_cache import Entries, Guesses

_PEAK, _SECOND = 40.0, 20.0  # logits that no noise of a test overturns, above a floor of 0


class ScriptedHead:
    """A `DraftHead` without weights, so that tests of a drafter have drafts that do get accepted.

    A row has a clear peak: at the text's token, or at a share `corrupted` of the positions (which ones depends on the
    seed and the position alone) at another; there the text's token comes second half of the time, so that trees find
    more than chains. Rows past the end of a text are flat.

    Every call asserts what `DraftHead` demands of its caller: entries that hold the text's tokens, one feature per
    position in order, guesses below rows that exist. `calls` counts the calls by name.
    """

    token_map: torch.Tensor | None = None

    def __init__(self, texts: Mapping[int, Sequence[int]], *, vocab_size: int, corrupted: float = 0.3, seed: int = 0,
                 taps: tuple[int, ...] = (1,), max_length: int | None = None) -> None:  # fmt: skip
        assert 0.0 <= corrupted <= 1.0, f"corrupted is a share, not {corrupted}"
        self.vocab_size, self.taps, self.max_length = vocab_size, taps, max_length
        self.calls: Counter[str] = Counter()
        self._texts, self._corrupted, self._seed = texts, corrupted, seed
        self._certain: dict[int, int] = {}  # entries
        self._depths: dict[int, list[int]] = {}  # of the rows since the last `extend`

    def extend(self, entries: Sequence[Entries]) -> None:
        """See `DraftHead.extend`."""
        self.calls["extend"] += 1
        for each in entries:
            known, end = self._certain.get(each.sequence_id, 0), each.start + len(each.tokens)
            assert 0 <= each.start <= known, f"entries from {each.start} on, but {known} are made"
            assert end > each.start, "one entry at least"
            assert end == known + len(each.features), (
                f"{end} entries with {known} + {len(each.features)} features"
            )
            assert each.features.shape[1] == len(self.taps), "one column per tap"
            text = self._texts[each.sequence_id]
            assert list(each.tokens) == list(text[each.start + 1 : end + 1]), "entries hold the text's tokens"
            self._certain[each.sequence_id], self._depths[each.sequence_id] = end, [0]

    def pending_rows(self, sequence_ids: Sequence[int]) -> list[torch.Tensor]:
        """See `DraftHead.pending_rows`."""
        self.calls["pending_rows"] += 1
        assert all(self._depths[one] == [0] for one in sequence_ids), "right after an extend"
        return [self._row(one, self._certain[one] + 1) for one in sequence_ids]

    def guess(self, guesses: Sequence[Guesses]) -> list[torch.Tensor]:
        """See `DraftHead.guess`."""
        self.calls["guess"] += 1
        rows = []
        for each in guesses:
            depths, next_one = self._depths[each.sequence_id], self._certain[each.sequence_id] + 1
            assert len(each.tokens) == len(each.parents) > 0, "a parent per guess"
            assert all(0 <= parent < len(depths) for parent in each.parents), "below a row that exists"
            assert all(0 <= token < self.vocab_size for token in each.tokens), "a token that it can read"
            new = [depths[parent] + 1 for parent in each.parents]
            depths += new
            rows.append(torch.stack([self._row(each.sequence_id, next_one + depth) for depth in new]))
        return rows

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """See `DraftHead.fork`. The new sequence looks its own text up."""
        assert sequence_id not in self._certain, f"sequence {sequence_id} is already open"
        assert length <= self._certain[parent_id], f"a fork of {length} of {self._certain[parent_id]} entries"
        self._certain[sequence_id] = length

    def release(self, sequence_id: int) -> None:
        """See `DraftHead.release`."""
        self._certain.pop(sequence_id, None)
        self._depths.pop(sequence_id, None)

    @property
    def open_sequences(self) -> tuple[int, ...]:
        """Sequences that hold entries: empty when every request was released."""
        return tuple(self._certain)

    def _row(self, sequence_id: int, position: int) -> torch.Tensor:  # [vocab] float64
        row = torch.zeros(self.vocab_size, dtype=torch.float64)
        text = self._texts[sequence_id]
        if position >= len(text):
            return row
        right = text[position]
        corrupt, spot, second = uniform(self._seed, position, np.arange(3), purpose=1)
        if corrupt >= self._corrupted:
            row[right] = _PEAK
        else:
            row[(right + 1 + int(spot * (self.vocab_size - 1))) % self.vocab_size] = _PEAK
            row[right] = _SECOND if second < 0.5 else 0.0
        return row
