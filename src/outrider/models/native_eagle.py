"""`NativeEagleHead`: an EAGLE-3 head in the compiled library, one pass for each level of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from outrider.core.protocols import Chunk
from outrider.models.head_cache import Entries, Guesses
from outrider.models.native_cache import NativeCache
from outrider.models.native_eagle_load import PackedEagle
from outrider.models.native_model import Floats, Ints, Segment
from outrider.models.passes import passes

_PASS_ROWS = 512  # of certain entries
_LAYERS = np.zeros(1, dtype=np.int32)  # the one it has


class NativeEagleHead:
    """Runs a packed EAGLE-3 head; fulfils `DraftHead` as `CachedHead` does, in its own precision.

    Rows depend on the entries above them alone, bit for bit, whatever is asked for at once (docs/native.md). The
    columns of rows ascend by the target's ids.
    """

    def __init__(self, packed: PackedEagle) -> None:
        self._model, self._reading = packed.model, packed.reading
        self.taps, self.token_map = packed.reading.taps, packed.token_map
        self.vocab_size, self.max_length = packed.model.arch.vocab_size, packed.model.arch.max_positions
        self._state = np.array([2 if packed.norm_output else 1], dtype=np.int32)  # what the next step is fed
        self._memories: dict[int, _Memory] = {}

    def extend(self, entries: Sequence[Entries]) -> None:
        """See `DraftHead.extend`."""
        read = self._reading([each.features for each in entries])
        memories, first = [self._open(each.sequence_id) for each in entries], 0
        for each, memory in zip(entries, memories):
            end = first + len(each.features)
            memory.rewrite(each.start, read[first:end])
            assert len(memory.states) == each.start + len(each.tokens) > each.start, "one feature per entry"
            first = end
        for pieces in passes([Chunk(each.sequence_id, each.tokens) for each in entries], _PASS_ROWS):
            self._make([(memories[index], tokens) for index, tokens in pieces])

    def pending_rows(self, sequence_ids: Sequence[int]) -> list[torch.Tensor]:
        """See `DraftHead.pending_rows`."""
        return [torch.from_numpy(self._memories[sequence_id].pending) for sequence_id in sequence_ids]

    def guess(self, guesses: Sequence[Guesses]) -> list[torch.Tensor]:
        """See `DraftHead.guess`."""
        memories = [self._memories[each.sequence_id] for each in guesses]
        segments = [memory.guessed(each) for memory, each in zip(memories, guesses)]
        wanted = np.arange(sum(len(each.tokens) for each in guesses), dtype=np.int32)
        logits, states = self._run(segments, wanted)
        rows, first = [], 0
        for memory, each in zip(memories, guesses):
            end = first + len(each.tokens)
            memory.grow(states[first:end])
            rows.append(torch.from_numpy(logits[first:end]))
            first = end
        return rows

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """See `DraftHead.fork`. Copies, so parent and child are independent afterwards."""
        assert sequence_id not in self._memories, "a fork opens a new sequence"
        self._memories[sequence_id] = self._open(parent_id).copy(length)

    def release(self, sequence_id: int) -> None:
        """See `DraftHead.release`."""
        memory = self._memories.pop(sequence_id, None)
        if memory is not None:
            memory.cache.release()

    def cached_length(self, sequence_id: int) -> int:
        """Certain entries of a sequence; 0 for one never opened."""
        memory = self._memories.get(sequence_id)
        return memory.cache.length if memory else 0

    def _open(self, sequence_id: int) -> _Memory:
        memory = self._memories.get(sequence_id)
        if memory is None:
            states = np.empty((0, self._model.arch.hidden), dtype=np.float32)
            memory = self._memories[sequence_id] = _Memory(self._model.new_cache(), states)
        return memory

    def _make(self, pieces: Sequence[tuple[_Memory, Sequence[int]]]) -> None:
        """One pass over certain entries; the last of each sequence is what its guesses hang from."""
        segments = [memory.certain(tokens) for memory, tokens in pieces]
        last = [end - 1 for end in accumulate(len(segment.tokens) for segment in segments)]
        logits, states = self._run(segments, np.array(last, dtype=np.int32))
        for (memory, tokens), row, logit in zip(pieces, last, logits):
            memory.cache.length += len(tokens)
            memory.restart(logit, states[row : row + 1])

    def _run(self, segments: Sequence[Segment], wanted: Ints) -> tuple[Floats, Floats]:
        """Logits [wanted, draft vocab], and the states [rows, hidden] that a next step is fed, the caller's own."""
        logits = np.empty((len(wanted), self._model.setup.spoken_size), dtype=np.float32)
        states = self._model.forward(segments, _LAYERS, self._state, wanted, logits)
        return logits, states[:, 0]


class _Memory:
    """One sequence: keys, values and states of its certain entries, then what its guesses came to."""

    def __init__(self, cache: NativeCache, states: Floats) -> None:
        self.cache = cache
        self.states = states  # [certain entries, hidden]: what they start from
        self.pending = states[:0, 0]  # [draft vocab] of the last certain entry, once it was made
        # [n, inputs]: what the last n states will be made of, by `certain` entries.
        self._features = states[:0]
        self._store = states
        self._thoughts = states  # [rows, hidden]: what stands for the feature below each row
        self._parents: list[int] = []  # of guesses: the guess above, -1 for the last certain entry
        self._is_chain = True

    def rewrite(self, start: int, features: Floats) -> None:  # [n, inputs]
        """Cuts the entries back to `start`; the states of n more will be made of these features."""
        assert start <= self.cache.length, "entries are made in order"
        self.cache.truncate(start)
        known, total = len(self.states), len(self.states) + len(features)
        if total > len(self._store):
            rows = max(total, len(self._store) * 3 // 2, 64)
            store = np.empty((rows, self.states.shape[1]), dtype=np.float32)
            store[:known] = self.states
            self._store = store
        self.states, self._features = self._store[:total], features

    def certain(self, tokens: Sequence[int]) -> Segment:
        """The next certain entries."""
        start, end = self.cache.length, self.cache.length + len(tokens)
        fresh = max(0, end - (len(self.states) - len(self._features)))
        features, self._features = self._features[:fresh], self._features[fresh:]
        numbers = np.array(tokens, dtype=np.int32)
        return Segment(self.cache, start, numbers, states=self.states[start:end], features=features)

    def restart(self, pending: Floats, thought: Floats) -> None:  # [draft vocab], [1, hidden]
        """The last certain entry came to this; guesses begin anew below it."""
        self.pending, self._thoughts, self._parents, self._is_chain = pending, thought, [], True

    def guessed(self, guesses: Guesses) -> Segment:
        """Guesses below rows; `grow` takes what they came to. What was a chain all along needs no parents."""
        certain, known = self.cache.length, len(self._parents)
        tokens = np.array(guesses.tokens, dtype=np.int32)
        states = self._thoughts[list(guesses.parents)]
        self._parents += [row - 1 for row in guesses.parents]
        self._is_chain = self._is_chain and guesses.parents == tuple(range(known, known + len(tokens)))
        if self._is_chain:
            return Segment(self.cache, certain + known, tokens, states=states)
        return Segment(self.cache, certain, tokens, np.array(self._parents, dtype=np.int32), known, states)

    def grow(self, thoughts: Floats) -> None:  # [n, hidden]
        """The guesses asked for last came to this."""
        self._thoughts = np.concatenate([self._thoughts, thoughts])

    def copy(self, length: int) -> _Memory:
        return _Memory(self.cache.copy(length), self.states[:length].copy())
