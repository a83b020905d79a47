"""What the drafts that come with the package say of each position of a text: rows for `acceptance.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from outrider.core.protocols import Chunk, TappedTarget
from outrider.core.records import Context, Draft
from outrider.models.borrowed import read_borrowing
from outrider.models.borrowed_load import MappedModel, load_borrowing
from outrider.models.eagle_head import EagleHead, attention
from outrider.models.heads import read_head
from outrider.models.load import load
from outrider.models.medusa_head import MedusaHeads
from outrider.models.settings import RunSettings
from outrider.models.shipped import shipped_drafts


class FirstGuess(Protocol):
    """The first guess of a shipped draft at every pending token."""

    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        """[n + 1, vocab] logits after the context and each node of a chain; -inf for what the draft cannot say."""

    def release(self, sequence_id: int) -> None:
        """Frees what is held of a text."""


class States:
    """Hidden states of a copy of the target, so that the target itself needs no taps."""

    def __init__(self, copy: TappedTarget, taps: tuple[int, ...]) -> None:
        self._copy, self.vocab_size = copy, copy.vocab_size
        copy.tap(taps)
        self._known: dict[int, torch.Tensor] = {}

    def of(self, sequence_id: int, tokens: tuple[int, ...]) -> torch.Tensor:  # [tokens, taps, hidden]
        """Those of all tokens of a text, which goes on from call to call."""
        [new] = self._copy.extend([Chunk(sequence_id, tokens[self._copy.cached_length(sequence_id) :])])
        assert new is not None, "the copy is tapped"
        self._known[sequence_id] = torch.cat([self._known.get(sequence_id, new[:0]), new.clone()])
        return self._known[sequence_id]

    def release(self, sequence_id: int) -> None:
        self._copy.release(sequence_id)
        self._known.pop(sequence_id, None)


class EagleGuess:
    """An EAGLE head in float32, every entry made anew from the target's own states."""

    def __init__(self, head: EagleHead, states: States) -> None:
        self._head, self._states = head, states
        self.release = states.release

    @torch.inference_mode()
    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        tokens = (*context.tokens, *draft.nodes.tokens)
        states = self._states.of(context.sequence_id, tokens[:-1])
        entries = len(states)
        earlier = torch.ones(entries, entries, dtype=torch.bool).tril()
        thoughts = self._head(
            torch.tensor(tokens[1:]), self._head.fuse(states), torch.arange(entries),
            lambda queries, keys, values: attention(queries, keys.transpose(0, 1), values.transpose(0, 1), earlier),
        )  # fmt: skip
        logits = self._head.lm_head(thoughts.spoken[-1 - len(draft) :])
        return spread(logits, self._head.token_map, self._states.vocab_size)


class MedusaGuess:
    """The first of a set of Medusa heads."""

    def __init__(self, heads: MedusaHeads, states: States) -> None:
        self._heads, self._states = heads, states
        self.release = states.release

    @torch.inference_mode()
    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        tokens = (*context.tokens, *draft.nodes.tokens)
        states = self._states.of(context.sequence_id, tokens[:-1])
        logits = self._heads(states[-1 - len(draft) :, 0], 1)[:, 0]
        return spread(logits, self._heads.token_map, self._states.vocab_size)


class ModelGuess:
    """A draft model with a cache of its own."""

    def __init__(self, model: MappedModel, vocab_size: int) -> None:
        self._decoder, self._token_map, self._vocab_size = model.decoder, model.token_map, vocab_size
        self.release = model.decoder.release

    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        cached = self._decoder.cached_length(context.sequence_id)
        self._decoder.extend([Chunk(context.sequence_id, context.tokens[cached:-1])])
        [scores] = self._decoder.score([context], [draft])
        return spread(scores.logits, self._token_map, self._vocab_size)


def spread(logits: torch.Tensor, token_map: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Rows of a draft vocabulary [n, draft vocab] over the target's, [n, vocab]."""
    rows = torch.full((len(logits), vocab_size), -torch.inf)
    rows[:, slice(None) if token_map is None else token_map] = logits.float()
    return rows


def trained_pairs(model: str, threads: int | None) -> dict[str, Callable[[], FirstGuess]]:
    """The shipped drafts by name."""

    def copy() -> TappedTarget:
        loaded = load(model, target="native", dtype="bfloat16", threads=threads)
        assert isinstance(loaded, TappedTarget)
        return loaded

    def eagle3() -> FirstGuess:
        target = copy()
        head = read_head(shipped_drafts(target)["eagle3"])
        module = EagleHead(head, target.token_weights(), num_layers=target.num_layers).eval()
        return EagleGuess(module, States(target, module.taps))

    def medusa() -> FirstGuess:
        target = copy()
        head = read_head(shipped_drafts(target)["medusa"])
        heads = MedusaHeads(head, target.token_weights()).eval()
        return MedusaGuess(heads, States(target, (target.num_layers,)))

    def draft_model() -> FirstGuess:
        target = copy()
        path = shipped_drafts(target)["draft_model"]
        lent = load_borrowing(read_borrowing(path, path.name), target, RunSettings(threads=threads), "cpu")
        assert isinstance(lent, MappedModel), "the shipped draft model speaks a part of the vocabulary"
        return ModelGuess(lent, target.vocab_size)

    return {"shipped eagle3": eagle3, "shipped medusa": medusa, "shipped draft_model": draft_model}
