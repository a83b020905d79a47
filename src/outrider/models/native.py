"""`NativeDecoder`: the compiled target for the Llama family on the CPU; bitwise one answer at any width."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, RoundResult, Scores, TokenWeights
from outrider.core.tree import TokenTree
from outrider.models.arch import Arch
from outrider.models.native_cache import NativeCache, PagePool
from outrider.models.native_library import Activations, BatchStruct, MatrixRole, NativeLibrary, SegmentStruct
from outrider.models.openmp import pool_pause
from outrider.models.passes import check_chunks, passes
from outrider.models.rope import angles
from outrider.models.taps import joined_taps

Ints = npt.NDArray[np.int32]
_PREFILL_ROWS = 512  # rows per pass of `extend`


@dataclass(frozen=True)
class NativeSetup:
    """How a native model was built; `doctor` and `inspect` show it."""

    dtype: str
    activations: Activations
    isa: str
    threads: int
    spoken_size: int  # rows of the head: fewer than the vocabulary where a draft model speaks a part of it


@dataclass(frozen=True, eq=False)
class _Segment:
    """The new rows of one sequence: parents are rows, -1 for the first; None for a chain."""

    cache: NativeCache
    tokens: Ints  # [rows]
    parents: Ints | None  # [rows]


class NativeDecoder:
    """A finished model of the library with one cache per sequence; fulfils `LayeredTarget`.

    Every sum's order is fixed and independent of rows, neighbours, threads, chunking and trees (docs/native.md), so
    logits are bitwise equal at any width: `row_invariant`. Logits are float32, [rows, spoken_size]: of a draft model
    with a vocabulary of its own, column i is the i-th token of that.
    """

    row_invariant = True
    supports_trees = True

    def __init__(
        self, library: NativeLibrary, model: int, arch: Arch, setup: NativeSetup, norm: torch.Tensor,
        taps: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Takes over `model`, a finished handle of `library`, and frees it with itself. `norm`: the final one."""
        self._norm = norm  # [hidden]
        self.arch, self.setup = arch, setup
        self.vocab_size, self.max_length = arch.vocab_size, arch.max_positions
        self.spoken_size = setup.spoken_size
        self.num_layers, self.hidden_size = arch.layers, arch.hidden
        self.taps: tuple[int, ...] = ()
        self._taps = np.empty(0, dtype=np.int32)
        self.tap(taps)
        self._library, self._model = library, model
        weakref.finalize(self, library.destroy, model)
        self._pause_torch = pool_pause()
        self._pool = PagePool(library.page_bytes(model))
        self._all_layers = np.arange(arch.layers, dtype=np.int32)
        self._tables = angles(arch, 0)
        self._logits = np.empty(0, dtype=np.float32)
        self._caches: dict[int, NativeCache] = {}
        self._scored: set[int] = set()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights that a pass reads, a tied embedding counted once."""
        return self._library.weight_bytes(self._model)

    @property
    def cache_bytes(self) -> int:
        """Bytes that the caches of all open sequences hold."""
        return sum(cache.nbytes for cache in self._caches.values())

    def tap(self, layers: Sequence[int]) -> None:
        """See `TappedTarget.tap`."""
        self.taps = joined_taps(self.taps, layers, self.num_layers)
        self._taps = np.array(sorted(self.taps), dtype=np.int32)

    def token_weights(self) -> TokenWeights:
        """See `TappedTarget.token_weights`."""
        dtype = torch.float32 if self.setup.dtype == "float32" else torch.bfloat16

        def numbers(role: MatrixRole, rows: int) -> torch.Tensor:  # [rows, hidden]
            unpacked = self._library.unpacked(self._model, role, -1, rows, self.hidden_size)
            return torch.from_numpy(unpacked).to(dtype)

        embedding = numbers(MatrixRole.EMBEDDING, self.vocab_size)
        head = embedding if self.arch.tied_head else numbers(MatrixRole.HEAD, self.spoken_size)
        return TokenWeights(embedding, head, self._norm, self.arch.rms_eps)

    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        """See `TargetModel.extend`. Raises `ParameterError` when a sequence would outgrow the context."""
        check_chunks(chunks, self.cached_length, self.max_length)
        features: list[list[torch.Tensor]] = [[] for _ in chunks]
        for pieces in passes(chunks, _PREFILL_ROWS):
            segments = [
                _Segment(self._open(chunks[index].sequence_id), np.array(tokens, dtype=np.int32), None)
                for index, tokens in pieces
            ]
            _, tapped = self._forward(segments, self._all_layers, self._taps, wanted=0)
            first = 0
            for (index, tokens), segment in zip(pieces, segments):
                segment.cache.length += len(tokens)
                self._scored.discard(chunks[index].sequence_id)
                if tapped is not None:
                    features[index].append(tapped[first : first + len(tokens)])
                first += len(tokens)
        empty = torch.empty(0, len(self.taps), self.hidden_size)
        return [torch.cat([empty, *parts]) if self.taps else None for parts in features]

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        """See `TargetModel.score`."""
        if not contexts:
            return []
        segments = self._segments(contexts, [draft.nodes for draft in drafts])
        logits, tapped = self._forward(segments, self._all_layers, self._taps, wanted=_rows(segments))
        self._scored = {context.sequence_id for context in contexts}
        scores, first = [], 0
        for segment in segments:
            end = first + len(segment.tokens)
            scores.append(Scores(logits[first:end], None if tapped is None else tapped[first:end]))
            first = end
        return scores

    def draft_rows(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """See `LayeredTarget.draft_rows`."""
        if not contexts:
            return []
        segments = self._segments(contexts, trees)
        chosen = np.array(layers, dtype=np.int32)
        logits, _ = self._forward(segments, chosen, self._taps[:0], wanted=_rows(segments))
        parts, first = [], 0
        for segment in segments:
            parts.append(logits[first : first + len(segment.tokens)].clone())
            first += len(segment.tokens)
        return parts

    def commit(self, results: Sequence[RoundResult]) -> None:
        """See `TargetModel.commit`. Keeping a run of first rows costs nothing; other paths are moved."""
        for result in results:
            assert result.sequence_id in self._scored, "commit follows a score of the same sequence"
            self._scored.discard(result.sequence_id)
            if not result.emitted:
                continue
            cache = self._caches[result.sequence_id]
            rows = [0, *(node + 1 for node in result.kept)]
            if rows[-1] != len(rows) - 1:
                kept = (ctypes.c_int32 * len(rows))(*rows)
                self._library.keep(self._model, cache.addresses, cache.length, kept, len(rows))
            cache.length += len(rows)

    def rewind(self, sequence_id: int, length: int) -> None:
        """See `TargetModel.rewind`."""
        self._open(sequence_id).truncate(length)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """See `TargetModel.fork`. Copies, so parent and child are independent afterwards."""
        assert sequence_id not in self._caches, "a fork opens a new sequence"
        self._caches[sequence_id] = self._open(parent_id).copy(length)

    def release(self, sequence_id: int) -> None:
        """See `TargetModel.release`."""
        cache = self._caches.pop(sequence_id, None)
        if cache is not None:
            cache.release()
        self._scored.discard(sequence_id)

    def cached_length(self, sequence_id: int) -> int:
        """See `TargetModel.cached_length`."""
        cache = self._caches.get(sequence_id)
        return cache.length if cache else 0

    def _open(self, sequence_id: int) -> NativeCache:
        cache = self._caches.get(sequence_id)
        if cache is None:
            cache = self._caches[sequence_id] = NativeCache(self._pool)
        return cache

    def _segments(self, contexts: Sequence[Context], trees: Sequence[TokenTree]) -> list[_Segment]:
        """One segment per sequence, rows in order. Whatever an earlier score left as scratch is void from here."""
        self._scored = set()
        assert len({context.sequence_id for context in contexts}) == len(contexts), "one draft per sequence"
        segments: list[_Segment] = []
        for context, tree in zip(contexts, trees):
            cache = self._open(context.sequence_id)
            assert cache.length == len(context.tokens) - 1, "the cache holds exactly context.tokens[:-1]"
            depth = max(tree.depths, default=0)
            assert cache.length + depth < self.max_length, "drafts end at the context limit"
            tokens = np.array((context.tokens[-1], *tree.tokens), dtype=np.int32)
            parents = None
            if not tree.is_chain:
                rows = (-1, *(0 if parent is None else parent + 1 for parent in tree.parents))
                parents = np.array(rows, dtype=np.int32)
            segments.append(_Segment(cache, tokens, parents))
        return segments

    def _forward(
        self, segments: Sequence[_Segment], layers: Ints, taps: Ints, *, wanted: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [wanted, spoken], valid until the next pass, and features [rows, taps, hidden] if there are taps.

        `layers` run in this order; `taps` ascend; `wanted`: the first so many rows, all segments counted through.
        """
        structs = (SegmentStruct * len(segments))()
        limit = 0
        addresses = []  # held here and not by `self` alone: no misuse from another thread may free them
        for struct, segment in zip(structs, segments):
            cache, rows = segment.cache, len(segment.tokens)
            cache.reserve(cache.length + rows)
            limit = max(limit, cache.length + rows)
            addresses.append(cache.addresses)
            struct.pages, struct.length, struct.rows = ctypes.addressof(addresses[-1]), cache.length, rows
            struct.tokens = segment.tokens.ctypes.data
            struct.parents = None if segment.parents is None else segment.parents.ctypes.data
        cosines, sines = self._angles(limit)
        if self._logits.size < wanted * self.spoken_size:
            self._logits = np.empty(wanted * self.spoken_size, dtype=np.float32)
        numbers = self._logits
        features = np.empty((_rows(segments), len(taps), self.hidden_size), dtype=np.float32)
        asked = np.arange(wanted, dtype=np.int32)
        batch = BatchStruct(
            structs, len(segments), layers.ctypes.data, len(layers),
            cosines.ctypes.data, sines.ctypes.data, len(cosines),
            taps.ctypes.data, len(taps), features.ctypes.data,
            asked.ctypes.data, wanted, numbers.ctypes.data,
        )  # fmt: skip
        self._pause_torch()
        self._library.forward(self._model, batch)
        logits = torch.from_numpy(numbers[: wanted * self.spoken_size].reshape(wanted, self.spoken_size))
        if not len(taps):
            return logits, None
        order = [sorted(self.taps).index(tap) for tap in self.taps]
        return logits, torch.from_numpy(features)[:, order]

    def _angles(self, limit: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosines and sines of at least `limit` positions, each [positions, head_dim / 2]."""
        if limit > len(self._tables[0]):
            self._tables = angles(self.arch, max(limit, 2 * len(self._tables[0]), 1024))
        return self._tables


def _rows(segments: Sequence[_Segment]) -> int:
    """New rows of all segments together."""
    return sum(len(segment.tokens) for segment in segments)
