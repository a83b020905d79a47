"""What the drafts that come with the package say of each position of a text: rows for `acceptance.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


class DraftRows(Protocol):
    """A draft on the target's text."""

    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        """[n + 1, vocab] logits after the context and each node of a chain, -inf for what the draft cannot say; valid
        until the next call."""

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


Guess = Callable[[tuple[int, ...], torch.Tensor, int], torch.Tensor]
"""(tokens [n + 1], states [n, taps, hidden], count) -> logits [count, draft vocab] after each of the last tokens."""


class HeadRows:
    """The first guess of a head at every pending token, on the target's own states."""

    def __init__(self, states: States, token_map: torch.Tensor | None, guess: Guess) -> None:
        self._states, self._token_map, self._guess = states, token_map, guess
        self.release = states.release

    @torch.inference_mode()
    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        tokens = (*context.tokens, *draft.nodes.tokens)
        states = self._states.of(context.sequence_id, tokens[:-1])
        return spread(self._guess(tokens, states, 1 + len(draft)), self._token_map, self._states.vocab_size)


def eagle_guess(head: EagleHead, tokens: tuple[int, ...], states: torch.Tensor, count: int) -> torch.Tensor:
    """An EAGLE head in float32, every entry made anew."""
    entries = len(states)
    earlier = torch.ones(entries, entries, dtype=torch.bool).tril()
    thoughts = head(
        torch.tensor(tokens[1:]), head.fuse(states), torch.arange(entries),
        lambda queries, keys, values: attention(queries, keys.transpose(0, 1), values.transpose(0, 1), earlier),
    )  # fmt: skip
    logits: torch.Tensor = head.lm_head(thoughts.spoken[-count:])
    return logits


def medusa_guess(
    heads: MedusaHeads, tokens: tuple[int, ...], states: torch.Tensor, count: int
) -> torch.Tensor:
    """The first of a set of Medusa heads, which reads no token."""
    logits: torch.Tensor = heads(states[-count:, 0], 1)[:, 0]
    return logits


class ModelRows:
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


def trained_pairs(model: str, threads: int | None) -> dict[str, Callable[[], DraftRows]]:
    """The shipped drafts by name."""

    def copy() -> TappedTarget:
        loaded = load(model, target="native", dtype="bfloat16", threads=threads)
        assert isinstance(loaded, TappedTarget)
        return loaded

    def eagle3() -> DraftRows:
        target = copy()
        head = read_head(shipped_drafts(target)["eagle3"])
        module = EagleHead(head, target.token_weights(), num_layers=target.num_layers).eval()
        return HeadRows(States(target, module.taps), module.token_map, partial(eagle_guess, module))

    def medusa() -> DraftRows:
        target = copy()
        head = read_head(shipped_drafts(target)["medusa"])
        heads = MedusaHeads(head, target.token_weights()).eval()
        return HeadRows(States(target, (target.num_layers,)), heads.token_map, partial(medusa_guess, heads))

    def draft_model() -> DraftRows:
        target = copy()
        path = shipped_drafts(target)["draft_model"]
        lent = load_borrowing(read_borrowing(path, path.name), target, RunSettings(threads=threads), "cpu")
        assert isinstance(lent, MappedModel), "the shipped draft model speaks a part of the vocabulary"
        return ModelRows(lent, target.vocab_size)

    return {"shipped eagle3": eagle3, "shipped medusa": medusa, "shipped draft_model": draft_model}
