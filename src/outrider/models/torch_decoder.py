"""`TorchDecoder`: the lean PyTorch target for the Llama family, on the CPU or a CUDA device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, RoundResult, Scores, TokenWeights
from outrider.core.tree import TokenTree
from outrider.models.arch import Arch
from outrider.models.cache import CacheShape, SequenceCache
from outrider.models.passes import check_chunks, passes
from outrider.models.rope import RopeTable, rotate
from outrider.models.segments import Segment, chain_segment, tree_segment
from outrider.models.taps import joined_taps
from outrider.models.weights import LayerWeights, decoder_weights

_PREFILL_ROWS = 256  # rows per pass of `extend`: wide enough for full speed, small enough for any prompt


class TorchDecoder:
    """A Llama-family decoder with one cache per sequence; fulfils `LayeredTarget`.

    `taps`: layer ids i; the feature is the hidden state entering layer i, or for i == num_layers the state after the
    last layer, before the final norm. Logits [rows, spoken_size] are float32 (float64 for a float64 model); of a draft
    model with a vocabulary of its own, column i is the i-th token of that. All of them are inference tensors: clone
    what autograd shall see.

    How far rows are alike: linears are packed for one blocked kernel, rows come in groups of four, attention lengths
    are rounded to the BLAS's own cuts (`padded_length`), and tree nodes lie in the vector lanes of plain decoding. On
    x86 with AVX-512 and MKL, in float32 and bfloat16, a row's logits are bitwise equal in a chain of any
    width, in any prefill chunking, beside any neighbours, and on any path of a tree that no cut of the cache
    divides (measured on SmolLM2; see the tests). Side paths that such a cut divides are summed in another order, and
    other processors' libraries promise nothing, so `row_invariant` is False.
    """

    row_invariant = False
    supports_trees = True

    def __init__(
        self,
        arch: Arch,
        state: Mapping[str, torch.Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        taps: Sequence[int] = (),
        spoken_size: int | None = None,
    ) -> None:
        """Fuses and packs `state` (Hugging Face names). Raises `ModelLoadError` naming a tensor that does not fit.

        `spoken_size`: rows of `lm_head.weight`, where a draft model speaks fewer tokens than it reads; None: all.
        """
        assert spoken_size is None or not arch.tied_head, "a tied head has the rows of the embedding"
        self.arch = arch
        self.dtype, self.device = dtype, torch.device(device)
        self.vocab_size, self.max_length = arch.vocab_size, arch.max_positions
        self.spoken_size = spoken_size or arch.vocab_size
        self.num_layers, self.hidden_size = arch.layers, arch.hidden
        self.taps = joined_taps((), taps, arch.layers)
        with torch.inference_mode():
            self._weights = decoder_weights(arch, state, dtype, self.device, self.spoken_size)
        self._rope = RopeTable(arch, dtype, self.device)
        self._shape = CacheShape(
            arch.layers, arch.kv_heads, arch.head_dim, arch.max_positions, dtype, self.device
        )
        self._caches: dict[int, SequenceCache] = {}
        self._scored: dict[int, tuple[int, ...]] = {}  # slots of the rows of the last score, by sequence

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that a pass reads, a head of its own precision included."""
        return self._weights.nbytes

    def tap(self, layers: Sequence[int]) -> None:
        """See `TappedTarget.tap`."""
        self.taps = joined_taps(self.taps, layers, self.num_layers)

    def token_weights(self) -> TokenWeights:
        """See `TappedTarget.token_weights`."""
        weights = self._weights
        head = weights.embedding if self.arch.tied_head else weights.head.matrix()
        return TokenWeights(weights.embedding.clone(), head.clone(), weights.norm.clone(), self.arch.rms_eps)

    @torch.inference_mode()
    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        """See `TargetModel.extend`. Raises `ParameterError` when a sequence would outgrow the context."""
        check_chunks(chunks, self.cached_length, self.max_length)
        features: list[list[torch.Tensor]] = [[] for _ in chunks]
        for pieces in passes(chunks, _PREFILL_ROWS):
            segments: list[Segment] = []
            for index, tokens in pieces:
                cache = self._open(chunks[index].sequence_id)
                segments.append(chain_segment(cache, segments[-1].end if segments else 0, tokens, self.dtype))
            _, tapped = self._forward(segments, range(self.num_layers), self.taps)
            for (index, _), segment in zip(pieces, segments):
                segment.cache.keep(segment.slots)
                self._scored.pop(chunks[index].sequence_id, None)
                if tapped is not None:
                    features[index].append(tapped[segment.first : segment.end])
        empty = torch.empty(0, len(self.taps), self.hidden_size, dtype=self.dtype, device=self.device)
        return [torch.cat([empty, *parts]) if self.taps else None for parts in features]

    @torch.inference_mode()
    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        """See `TargetModel.score`."""
        if not contexts:
            return []
        segments = self._segments(contexts, [draft.nodes for draft in drafts])
        hidden, tapped = self._forward(segments, range(self.num_layers), self.taps)
        logits = self._logits(hidden, segments[-1].end)
        self._scored = {context.sequence_id: segment.slots for context, segment in zip(contexts, segments)}
        return [
            Scores(logits[s.first : s.end], None if tapped is None else tapped[s.first : s.end])
            for s in segments
        ]

    @torch.inference_mode()
    def draft_rows(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """See `LayeredTarget.draft_rows`."""
        if not contexts:
            return []
        segments = self._segments(contexts, trees)
        hidden, _ = self._forward(segments, layers, ())
        logits = self._logits(hidden, segments[-1].end)
        return [logits[segment.first : segment.end] for segment in segments]

    @torch.inference_mode()
    def draft_states(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """See `LayeredTarget.draft_states`."""
        if not contexts:
            return []
        segments = self._segments(contexts, trees)
        hidden, _ = self._forward(segments, layers, ())
        return [hidden[segment.first : segment.end] for segment in segments]

    @torch.inference_mode()
    def commit(self, results: Sequence[RoundResult]) -> None:
        """See `TargetModel.commit`. Keeping a run of first children costs nothing; other paths are gathered."""
        for result in results:
            slots = self._scored.pop(result.sequence_id, None)
            assert slots is not None, "commit follows a score of the same sequence"
            if result.emitted:
                self._caches[result.sequence_id].keep([slots[0], *(slots[node + 1] for node in result.kept)])

    def rewind(self, sequence_id: int, length: int) -> None:
        """See `TargetModel.rewind`."""
        self._open(sequence_id).truncate(length)

    @torch.inference_mode()
    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """See `TargetModel.fork`. Copies, so parent and child are independent afterwards."""
        assert sequence_id not in self._caches, "a fork opens a new sequence"
        self._caches[sequence_id] = self._open(parent_id).copy(length)

    def release(self, sequence_id: int) -> None:
        """See `TargetModel.release`."""
        self._caches.pop(sequence_id, None)
        self._scored.pop(sequence_id, None)

    def cached_length(self, sequence_id: int) -> int:
        """See `TargetModel.cached_length`."""
        cache = self._caches.get(sequence_id)
        return cache.length if cache else 0

    @property
    def cache_bytes(self) -> int:
        """Bytes that the caches of all open sequences hold."""
        return sum(cache.nbytes for cache in self._caches.values())

    def _open(self, sequence_id: int) -> SequenceCache:
        return self._caches.setdefault(sequence_id, SequenceCache(self._shape))

    def _segments(self, contexts: Sequence[Context], trees: Sequence[TokenTree]) -> list[Segment]:
        """One segment per sequence, rows in order. Whatever an earlier score left as scratch is void from here."""
        self._scored = {}
        segments: list[Segment] = []
        for context, tree in zip(contexts, trees):
            cache = self._open(context.sequence_id)
            assert cache.length == len(context.tokens) - 1, "the cache holds exactly context.tokens[:-1]"
            first = segments[-1].end if segments else 0
            segments.append(tree_segment(cache, first, context.tokens[-1], tree, self.dtype))
            assert max(segments[-1].positions) < self.max_length, "drafts end at the context limit"
        return segments

    def _forward(
        self, segments: Sequence[Segment], layers: Sequence[int], taps: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs `layers` over all rows, writing keys and values to the segments' slots.

        Returns the last hidden state [rows, hidden], padding included, and the tapped states [rows, taps, hidden].
        """
        pad = [0] * (segments[-1].attended_end - segments[-1].end)
        tokens = torch.tensor([t for s in segments for t in s.tokens] + pad, device=self.device)
        positions = torch.tensor([p for s in segments for p in s.positions] + pad, device=self.device)
        cos, sin = self._rope.at(positions, max(max(s.positions) for s in segments) + 1)
        x = self._weights.embedding[tokens]
        states = {0: x} if 0 in taps else {}
        for index in layers:
            layer = self._weights.layers[index]
            x = x + layer.output(self._attend(x, layer, index, segments, cos, sin))
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
            if index + 1 in taps:
                states[index + 1] = x
        return x, torch.stack([states[tap] for tap in taps], dim=1) if taps else None

    def _attend(
        self, x: torch.Tensor, layer: LayerWeights, index: int, segments: Sequence[Segment],
        cos: torch.Tensor, sin: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Attention of one layer before its output projection: [rows, hidden] -> [rows, heads * head_dim]."""
        heads, kv_heads, head_dim = self.arch.heads, self.arch.kv_heads, self.arch.head_dim
        rows = len(x)
        qkv = layer.qkv(self._normed(x, layer.attention_norm)).view(rows, heads + 2 * kv_heads, head_dim)
        turned = qkv[:, : heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = self._normed(turned[:, :heads], layer.query_norm)
            turned = torch.cat([queries, self._normed(turned[:, heads:], layer.key_norm)], dim=1)
        turned = rotate(turned, cos, sin)
        queries, keys, values = turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]
        outputs = []
        for s in segments:
            cached_keys, cached_values = s.cache.keys[index], s.cache.values[index]
            cached_keys[:, s.write] = keys[s.first : s.end].transpose(0, 1)
            cached_values[:, s.write] = values[s.first : s.end].transpose(0, 1)
            length = s.mask.shape[1]
            attended = F.scaled_dot_product_attention(
                queries[s.first : s.attended_end].transpose(0, 1).unsqueeze(0),
                cached_keys[:, :length].unsqueeze(0),
                cached_values[:, :length].unsqueeze(0),
                attn_mask=s.mask,
                enable_gqa=heads != kv_heads,
            )
            outputs.append(attended[0].transpose(0, 1).reshape(-1, heads * head_dim))
        if len(outputs) == 1:
            return outputs[0]
        return torch.cat([*(out[: len(s.tokens)] for out, s in zip(outputs[:-1], segments)), outputs[-1]])

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.arch.rms_eps)

    def _logits(
        self, hidden: torch.Tensor, rows: int
    ) -> torch.Tensor:  # [rows + padding, hidden] -> [rows, spoken_size]
        norm = self._weights.norm
        return self._weights.head(self._normed(hidden.to(norm.dtype), norm))[:rows]
