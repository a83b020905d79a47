"""`CachedHead`: an EAGLE head with a cache per sequence, certain entries first, guessed ones behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.cache import CacheShape, SequenceCache
from outrider.models.eagle_head import EagleHead, Thoughts, attention
from outrider.models.linear import MIN_ROWS


@dataclass(frozen=True, eq=False)
class Entries:
    """Certain entries of one sequence from `start` on: `tokens[i]` is the text's token at position start + i + 1.

    `features` [n, taps, hidden] are those of the positions that the head has none of yet, up to the last entry's.
    """

    sequence_id: int
    start: int
    tokens: Sequence[int]
    features: torch.Tensor  # [n, taps, hidden]


@dataclass(frozen=True)
class Guesses:
    """Guessed entries to add to one sequence: nodes of a draft. `parents[i]` is a row: 0 the last certain entry, whose
    row follows the pending token, then the guesses since, in the order in which they were added."""

    sequence_id: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]


class DraftHead(Protocol):
    """What `EagleDrafter` asks of a head. Entry t pairs the token at t + 1 with the feature of position t."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The columns of the features it is given."""

    @property
    def vocab_size(self) -> int:
        """Tokens it can read: the target's ids."""

    @property
    def token_map(self) -> torch.Tensor | None:
        """The target's ids [draft vocab] of the columns of its rows; None where column i is token i."""

    @property
    def max_length(self) -> int | None:
        """The longest text it can guess in, in tokens; None when there is none."""

    def extend(self, entries: Sequence[Entries]) -> None:
        """Makes certain entries, of several sequences at once; the first use of an id opens a sequence.

        Entries from `start` on are made anew, also where they were made with another token; all guesses are dropped.
        """

    def pending_rows(self, sequence_ids: Sequence[int]) -> list[torch.Tensor]:
        """The row [draft vocab] after the pending token, the last entry's guess. Right after an `extend` of each."""

    def guess(self, guesses: Sequence[Guesses]) -> list[torch.Tensor]:
        """Adds entries below rows that exist; their own rows [n, draft vocab]. The states above stand for features."""

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """Opens a sequence that knows the features of the parent's first `length` positions, and their entries."""

    def release(self, sequence_id: int) -> None:
        """Frees a sequence; unknown ids are ignored."""


class CachedHead:
    """Runs an `EagleHead` without gradients; fulfils `DraftHead`. A call is one forward, of however many sequences.

    The states that entries took from the target's features are kept beside keys and values, so that an entry can be
    made anew with another token: the last one of a fork, which its parent made with the parent's next token.
    """

    def __init__(self, head: EagleHead) -> None:
        self.head = head
        self.taps, self.vocab_size, self.max_length = head.taps, head.vocab_size, head.arch.max_positions
        self.token_map = head.token_map
        arch, like = head.arch, head.embedding
        self._shape = CacheShape(1, arch.kv_heads, arch.head_dim, arch.max_positions, like.dtype, like.device)
        self._memories: dict[int, _Memory] = {}

    @torch.inference_mode()
    def extend(self, entries: Sequence[Entries]) -> None:
        """See `DraftHead.extend`."""
        features = torch.cat([each.features for each in entries])
        fused = self.head.fuse(_grouped(features))
        new = torch.split(fused[: len(features)], [len(each.features) for each in entries])
        jobs: list[_Job] = []
        for each, states in zip(entries, new):
            memory = self._open(each.sequence_id)
            memory.rewrite(each.start, states)
            end = each.start + len(each.tokens)
            assert len(memory.states) == end > each.start, "one feature per entry, one entry at least"
            jobs.append(_certain_job(memory, each, end, jobs[-1].end if jobs else 0))
        thoughts = self._run(jobs)
        for job in jobs:
            job.memory.keys_and_values.keep(job.slots)
            last = slice(job.end - 1, job.end)
            job.memory.restart(thoughts.spoken[last], thoughts.states[last])

    @torch.inference_mode()
    def pending_rows(self, sequence_ids: Sequence[int]) -> list[torch.Tensor]:
        """See `DraftHead.pending_rows`."""
        return list(self._logits(torch.cat([self._memories[one].spoken for one in sequence_ids])))

    @torch.inference_mode()
    def guess(self, guesses: Sequence[Guesses]) -> list[torch.Tensor]:
        """See `DraftHead.guess`."""
        jobs: list[_Job] = []
        for each in guesses:
            jobs.append(_guessed_job(self._memories[each.sequence_id], each, jobs[-1].end if jobs else 0))
        thoughts = self._run(jobs)
        for each, job in zip(guesses, jobs):
            job.memory.grow(each.parents, thoughts.states[job.first : job.end])
        rows = self._logits(thoughts.spoken[: jobs[-1].end])
        return [rows[job.first : job.end] for job in jobs]

    @torch.inference_mode()
    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """See `DraftHead.fork`. Copies, so parent and child are independent afterwards."""
        assert sequence_id not in self._memories, "a fork opens a new sequence"
        self._memories[sequence_id] = self._open(parent_id).copy(length)

    def release(self, sequence_id: int) -> None:
        """See `DraftHead.release`."""
        self._memories.pop(sequence_id, None)

    def cached_length(self, sequence_id: int) -> int:
        """Certain entries of a sequence; 0 for one never opened."""
        memory = self._memories.get(sequence_id)
        return memory.keys_and_values.length if memory else 0

    def _open(self, sequence_id: int) -> _Memory:
        like = self.head.embedding
        return self._memories.setdefault(sequence_id, _Memory(SequenceCache(self._shape), like[:0]))

    def _run(self, jobs: Sequence[_Job]) -> Thoughts:
        """One forward over the rows of all jobs, padded to the group of rows that row-invariant products want."""
        device, states = self.head.embedding.device, _grouped(torch.cat([job.states for job in jobs]))
        padding = [0] * (len(states) - jobs[-1].end)
        tokens = [token for job in jobs for token in job.tokens] + padding
        positions = [position for job in jobs for position in job.positions] + padding

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            read = torch.zeros_like(queries)
            for job in jobs:
                own = slice(job.first, job.end)
                read[own] = job.attend(queries[own], keys[own], values[own])
            return read

        thoughts: Thoughts = self.head(
            torch.tensor(tokens, device=device), states, torch.tensor(positions, device=device), attend
        )
        return thoughts

    def _logits(self, spoken: torch.Tensor) -> torch.Tensor:  # [rows, hidden] -> [rows, draft vocab]
        return self.head.logits(_grouped(spoken))[: len(spoken)]


class _Memory:
    """One sequence: keys, values and states of its certain entries, then what its guesses came to."""

    def __init__(self, keys_and_values: SequenceCache, states: torch.Tensor) -> None:
        self.keys_and_values = keys_and_values
        self.states = states  # [certain entries, hidden]: the features they were made from
        self.spoken = states[:0]  # [1, hidden] of the last certain entry, once it was made
        self.thoughts = states[:0]  # [rows, hidden]: what stands for the feature below each row
        self.paths: list[tuple[int, ...]] = []  # by row: the guesses that lead to it, itself included
        self._store = states

    def rewrite(self, start: int, states: torch.Tensor) -> None:  # [n, hidden]
        """Cuts the entries back to `start`, and adds states behind those that are known."""
        assert start <= self.keys_and_values.length, "entries are made in order"
        self.keys_and_values.truncate(start)
        known, total = len(self.states), len(self.states) + len(states)
        if total > len(self._store):
            room = max(total, len(self._store) * 3 // 2, 64)
            store = states.new_empty(room, states.shape[1])
            store[:known] = self.states
            self._store = store
        self._store[known:total] = states
        self.states = self._store[:total]

    def restart(self, spoken: torch.Tensor, thought: torch.Tensor) -> None:  # [1, hidden] each
        """The last certain entry came to this; guesses begin anew below it."""
        self.spoken, self.thoughts, self.paths = spoken, thought, [()]

    def grow(self, parents: Sequence[int], thoughts: torch.Tensor) -> None:  # [n, hidden]
        """Guesses below the rows `parents` came to this."""
        first = len(self.paths) - 1
        self.paths += [(*self.paths[parent], first + index) for index, parent in enumerate(parents)]
        self.thoughts = torch.cat([self.thoughts, thoughts])

    def copy(self, length: int) -> _Memory:
        return _Memory(self.keys_and_values.copy(length), self.states[:length].clone())


@dataclass(frozen=True, eq=False)
class _Job:
    """Rows `first` to `end` of a forward: entries of one sequence, whose keys go to `slots` of its cache."""

    memory: _Memory
    first: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    slots: range
    states: torch.Tensor  # [rows, hidden]
    visible: torch.Tensor  # bool [rows, keys]

    @property
    def end(self) -> int:
        return self.first + len(self.slots)

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Stores keys and values [rows, kv_heads, head_dim]; what the rows read, [rows, heads, head_dim]."""
        cache = self.memory.keys_and_values
        cache.reserve(self.slots.stop)
        where = slice(self.slots.start, self.slots.stop)
        cache.keys[0][:, where] = keys.transpose(0, 1)
        cache.values[0][:, where] = values.transpose(0, 1)
        read = slice(0, self.slots.stop)
        return attention(queries, cache.keys[0][:, read], cache.values[0][:, read], self.visible)


def _grouped(rows: torch.Tensor) -> torch.Tensor:  # [n, ...] -> [n rounded up, ...]
    """Zeros below the rows, up to the group in which the sum of a row does not hang on the others."""
    pad = -len(rows) % MIN_ROWS
    return torch.cat([rows, rows.new_zeros(pad, *rows.shape[1:])]) if pad else rows


def _certain_job(memory: _Memory, entries: Entries, end: int, first: int) -> _Job:
    """Entries `entries.start` to `end`, each of which sees all before it."""
    run, device = range(entries.start, end), memory.states.device
    keys, own = torch.arange(end, device=device), torch.arange(entries.start, end, device=device)
    visible = keys <= own.unsqueeze(1)
    return _Job(
        memory, first, tuple(entries.tokens), tuple(run), run, memory.states[entries.start : end], visible
    )


def _guessed_job(memory: _Memory, guesses: Guesses, first: int) -> _Job:
    """Guesses, each of which sees the certain entries, its ancestors and itself, at the position after its parent's."""
    certain, guessed, new = memory.keys_and_values.length, len(memory.paths) - 1, len(guesses.parents)
    slots = range(certain + guessed, certain + guessed + new)
    visible = torch.zeros(new, slots.stop, dtype=torch.bool)
    visible[:, :certain] = True
    for index, parent in enumerate(guesses.parents):
        visible[index, [certain + one for one in (*memory.paths[parent], guessed + index)]] = True
    positions = tuple(certain + len(memory.paths[parent]) for parent in guesses.parents)
    states = memory.thoughts[list(guesses.parents)]
    return _Job(memory, first, guesses.tokens, positions, slots, states, visible.to(states.device))
