"""`NativeDecoder`: the compiled target for the Llama family on the CPU; bitwise one answer at any width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, RoundResult, Scores, TokenWeights
from outrider.core.tree import TokenTree
from outrider.models.native_cache import NativeCache
from outrider.models.native_library import MatrixRole
from outrider.models.native_model import Ints, NativeModel, Segment
from outrider.models.passes import check_chunks, passes
from outrider.models.taps import joined_taps

_PREFILL_ROWS = 512  # rows per pass of `extend`


class NativeDecoder:
    """A model of the compiled library with one cache per sequence; fulfils `LayeredTarget`.

    Every sum's order is fixed and independent of rows, neighbours, threads, chunking and trees (docs/native.md), so
    logits are bitwise equal at any width: `row_invariant`. Logits are float32, [rows, spoken_size]: of a draft model
    with a vocabulary of its own, column i is the i-th token of that.
    """

    row_invariant = True
    supports_trees = True

    def __init__(self, model: NativeModel, norm: torch.Tensor, taps: Sequence[int] = ()) -> None:  # [hidden]
        """`norm`: the final one."""
        self._model, self._norm = model, norm
        self.arch, self.setup = arch, setup = model.arch, model.setup
        self.vocab_size, self.max_length = arch.vocab_size, arch.max_positions
        self.spoken_size = setup.spoken_size
        self.num_layers, self.hidden_size = arch.layers, arch.hidden
        self.taps: tuple[int, ...] = ()
        self.tap(taps)
        self._all_layers = np.arange(arch.layers, dtype=np.int32)
        self._logits = np.empty(0, dtype=np.float32)
        self._caches: dict[int, NativeCache] = {}
        self._scored: set[int] = set()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights that a pass reads, a tied embedding counted once."""
        return self._model.weight_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes that the caches of all open sequences hold."""
        return sum(cache.nbytes for cache in self._caches.values())

    def tap(self, layers: Sequence[int]) -> None:
        """See `TappedTarget.tap`."""
        self.taps = joined_taps(self.taps, layers, self.num_layers)
        ascending = sorted(self.taps)
        self._taps = np.array(ascending, dtype=np.int32)
        # NumPy moves columns on this thread; an indexing of torch would start its pool in every round.
        self._order = None if ascending == [*self.taps] else [ascending.index(tap) for tap in self.taps]

    def token_weights(self) -> TokenWeights:
        """See `TappedTarget.token_weights`."""
        dtype = torch.float32 if self.setup.dtype == "float32" else torch.bfloat16
        embedding = self._model.matrix(MatrixRole.EMBEDDING, self.vocab_size).to(dtype)
        head = embedding
        if not self.arch.tied_head:
            head = self._model.matrix(MatrixRole.HEAD, self.spoken_size).to(dtype)
        return TokenWeights(embedding, head, self._norm, self.arch.rms_eps)

    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        """See `TargetModel.extend`. Raises `ParameterError` when a sequence would outgrow the context."""
        check_chunks(chunks, self.cached_length, self.max_length)
        features: list[list[torch.Tensor]] = [[] for _ in chunks]
        for pieces in passes(chunks, _PREFILL_ROWS):
            caches = [self._open(chunks[index].sequence_id) for index, _ in pieces]
            segments = [
                Segment(cache, cache.length, np.array(tokens, dtype=np.int32))
                for cache, (_, tokens) in zip(caches, pieces)
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

    def draft_states(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """See `LayeredTarget.draft_states`."""
        if not contexts:
            return []
        segments = self._segments(contexts, trees)
        chosen, last = np.array(layers, dtype=np.int32), np.array([self.num_layers], dtype=np.int32)
        states = self._model.forward(segments, chosen, last, self._taps[:0], self._logits[:0])
        return list(
            torch.split(torch.from_numpy(states[:, 0]), [len(segment.tokens) for segment in segments])
        )

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
                self._model.keep(cache, rows)
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
            cache = self._caches[sequence_id] = self._model.new_cache()
        return cache

    def _segments(self, contexts: Sequence[Context], trees: Sequence[TokenTree]) -> list[Segment]:
        """One segment per sequence, rows in order. Whatever an earlier score left as scratch is void from here."""
        self._scored = set()
        assert len({context.sequence_id for context in contexts}) == len(contexts), "one draft per sequence"
        segments: list[Segment] = []
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
            segments.append(Segment(cache, cache.length, tokens, parents))
        return segments

    def _forward(
        self, segments: Sequence[Segment], layers: Ints, taps: Ints, *, wanted: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [wanted, spoken], valid until the next pass, and features [rows, taps, hidden] if there are taps.

        `layers` run in this order; `taps` ascend; `wanted`: the first so many rows, all segments counted through.
        """
        size = wanted * self.spoken_size
        if self._logits.size < size:
            self._logits = np.empty(size, dtype=np.float32)
        numbers = self._logits[:size].reshape(wanted, self.spoken_size)
        features = self._model.forward(segments, layers, taps, np.arange(wanted, dtype=np.int32), numbers)
        logits = torch.from_numpy(numbers)
        if not len(taps):
            return logits, None
        if self._order is not None:
            features = features[:, self._order]
        return logits, torch.from_numpy(features)


def _rows(segments: Sequence[Segment]) -> int:
    """New rows of all segments together."""
    return sum(len(segment.tokens) for segment in segments)
