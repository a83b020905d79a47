"""What the drafts that come with the package say of each position of a text: rows for `acceptance.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from outrider.core.protocols import Chunk, TappedTarget, TargetModel
from outrider.core.records import Context, Draft
from outrider.models.borrowed import read_borrowing
from outrider.models.borrowed_load import MappedModel, load_borrowing
from outrider.models.eagle_head import EagleHead, attention
from outrider.models.heads import read_head
from outrider.models.load import load
from outrider.models.medusa_head import MedusaHeads
from outrider.models.settings import RunSettings
from outrider.models.shipped import shipped_drafts

MODEL = "smollm2-135m"


class FirstGuess(ABC):
    """The first guess of a shipped draft at every pending token, spread over the target's vocabulary."""

    def __init__(self, token_map: torch.Tensor, vocab_size: int) -> None:
        self._token_map, self._vocab_size = token_map, vocab_size

    def rows(self, context: Context, draft: Draft) -> torch.Tensor:  # [n + 1, vocab]
        """Logits after the context and after each node of a chain; -inf for tokens that the draft cannot say."""
        tokens = (*context.tokens, *draft.nodes.tokens)
        logits = self._logits(context.sequence_id, tokens, len(draft) + 1)
        rows = torch.full((len(logits), self._vocab_size), -torch.inf)
        rows[:, self._token_map] = logits.float()
        return rows

    @abstractmethod
    def _logits(self, sequence_id: int, tokens: tuple[int, ...], count: int) -> torch.Tensor:
        """[count, draft vocab]: what is guessed to follow each of the last `count` tokens."""

    @abstractmethod
    def release(self, sequence_id: int) -> None:
        """Frees what is held of a text."""


class _HeadGuess(FirstGuess):
    """A head on the states of a copy of the target, so that the target itself needs no taps."""

    def __init__(self, copy: TappedTarget, taps: tuple[int, ...], token_map: torch.Tensor) -> None:
        super().__init__(token_map, copy.vocab_size)
        self._copy = copy
        copy.tap(taps)
        self._features: dict[int, torch.Tensor] = {}

    def _read(self, sequence_id: int, tokens: tuple[int, ...]) -> torch.Tensor:  # [tokens, taps, hidden]
        known = self._copy.cached_length(sequence_id)
        [new] = self._copy.extend([Chunk(sequence_id, tokens[known:])])
        assert new is not None, "the copy is tapped"
        before = self._features.get(sequence_id, new[:0])
        self._features[sequence_id] = torch.cat([before, new.clone()])
        return self._features[sequence_id]

    def release(self, sequence_id: int) -> None:
        self._copy.release(sequence_id)
        self._features.pop(sequence_id, None)


class EagleGuess(_HeadGuess):
    """An EAGLE head in float32, every entry made anew from the target's own states."""

    def __init__(self, head: EagleHead, copy: TappedTarget) -> None:
        assert head.token_map is not None, "the shipped head speaks a part of the vocabulary"
        super().__init__(copy, head.taps, head.token_map)
        self._head = head

    @torch.inference_mode()
    def _logits(self, sequence_id: int, tokens: tuple[int, ...], count: int) -> torch.Tensor:
        features = self._read(sequence_id, tokens[:-1])
        entries = len(features)
        earlier = torch.ones(entries, entries, dtype=torch.bool).tril()
        thoughts = self._head(
            torch.tensor(tokens[1:]), self._head.fuse(features), torch.arange(entries),
            lambda queries, keys, values: attention(queries, keys.transpose(0, 1), values.transpose(0, 1), earlier),
        )  # fmt: skip
        logits: torch.Tensor = self._head.lm_head(thoughts.spoken[-count:])
        return logits


class MedusaGuess(_HeadGuess):
    """The first of a set of Medusa heads."""

    def __init__(self, heads: MedusaHeads, copy: TappedTarget) -> None:
        assert heads.token_map is not None, "the shipped heads speak a part of the vocabulary"
        super().__init__(copy, (copy.num_layers,), heads.token_map)
        self._heads = heads

    @torch.inference_mode()
    def _logits(self, sequence_id: int, tokens: tuple[int, ...], count: int) -> torch.Tensor:
        features = self._read(sequence_id, tokens[:-1])
        logits: torch.Tensor = self._heads(features[-count:, 0], 1)[:, 0]
        return logits


class ModelGuess(FirstGuess):
    """A draft model with a cache of its own."""

    def __init__(self, decoder: TargetModel, token_map: torch.Tensor, vocab_size: int) -> None:
        super().__init__(token_map, vocab_size)
        self._decoder = decoder

    def _logits(self, sequence_id: int, tokens: tuple[int, ...], count: int) -> torch.Tensor:
        known, first = self._decoder.cached_length(sequence_id), len(tokens) - count
        self._decoder.extend([Chunk(sequence_id, tokens[known:first])])
        context = Context.of(tokens[: first + 1], sequence_id=sequence_id)
        return self._decoder.score([context], [Draft.chain(tokens[first + 1 :])])[0].logits

    def release(self, sequence_id: int) -> None:
        self._decoder.release(sequence_id)


def trained_pairs(threads: int | None) -> dict[str, Callable[[], FirstGuess]]:
    """The shipped drafts by name."""

    def copy() -> TappedTarget:
        loaded = load(MODEL, target="native", dtype="bfloat16", threads=threads)
        assert isinstance(loaded, TappedTarget)
        return loaded

    def eagle3() -> FirstGuess:
        target = copy()
        head = read_head(shipped_drafts(target)["eagle3"])
        return EagleGuess(
            EagleHead(head, target.token_weights(), num_layers=target.num_layers).eval(), target
        )

    def medusa() -> FirstGuess:
        target = copy()
        head = read_head(shipped_drafts(target)["medusa"])
        return MedusaGuess(MedusaHeads(head, target.token_weights()).eval(), target)

    def draft_model() -> FirstGuess:
        target = copy()
        path = shipped_drafts(target)["draft_model"]
        lent = load_borrowing(read_borrowing(path, path.name), target, RunSettings(threads=threads), "cpu")
        assert isinstance(lent, MappedModel), "the shipped draft model speaks a part of the vocabulary"
        return ModelGuess(lent.decoder, lent.token_map, target.vocab_size)

    return {"shipped eagle3": eagle3, "shipped medusa": medusa, "shipped draft_model": draft_model}
