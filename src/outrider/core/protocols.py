"""What a drafter, a target and an acceptance rule must be: `typing.Protocol`s, no base classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from outrider.core.law import NodeLaw
from outrider.core.noise import Noise
from outrider.core.records import (
    Budget,
    Context,
    Draft,
    Guarantee,
    RoundResult,
    Scores,
    TokenWeights,
    Verdict,
)
from outrider.core.tree import TokenTree


@dataclass(frozen=True)
class Chunk:
    """Certain tokens to append to one sequence's cache; the first use of a `sequence_id` opens the sequence."""

    sequence_id: int
    tokens: Sequence[int]


@runtime_checkable
class TargetModel(Protocol):
    """A model with caches. Invariant between rounds: it caches exactly `context.tokens[:-1]`."""

    @property
    def vocab_size(self) -> int:
        """Rows of the head: every token id is below it."""

    @property
    def row_invariant(self) -> bool:
        """Whether logits are bitwise equal at any width, batch, chunking and tree."""

    @property
    def max_length(self) -> int | None:
        """The context limit in tokens, None when there is none."""

    @property
    def supports_trees(self) -> bool:
        """Whether `score` takes drafts that branch."""

    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        """Appends certain tokens to the caches, several sequences at once, any chunk size.

        Returns the tapped features of the new tokens, [len(chunk), taps, hidden] each (None without taps).
        """

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        """One forward over the pending token and the nodes of every sequence.

        Requires that each cache holds exactly `context.tokens[:-1]`. Changes nothing that `extend`, `fork` or a later
        `score` can see: rows beyond the cached length are scratch, kept only for the `commit` that follows.
        Logits are valid until the next call.
        """

    def commit(self, results: Sequence[RoundResult]) -> None:
        """After a `score`: caches the old pending token and `result.kept`, in path order; drops the rest."""

    def rewind(self, sequence_id: int, length: int) -> None:
        """Forgets all but the first `length` cached tokens; `length` is at most the cached length."""

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """Opens a sequence whose cache equals the first `length` cached tokens of the parent."""

    def release(self, sequence_id: int) -> None:
        """Frees a sequence; unknown ids are ignored."""

    def cached_length(self, sequence_id: int) -> int:
        """Number of cached certain tokens; 0 for a sequence never opened."""


@runtime_checkable
class LayeredTarget(TargetModel, Protocol):
    """A target that can run some of its layers as a draft model on its own cache."""

    @property
    def num_layers(self) -> int:
        """Layers that `draft_rows` and `draft_states` may choose from."""

    def draft_rows(self, contexts: Sequence[Context], trees: Sequence[TokenTree],
                   layers: Sequence[int]) -> list[torch.Tensor]:  # fmt: skip
        """Logits [n + 1, vocab] after the given layers, final norm and head, for pending token and nodes.

        Reads the cache of `context.tokens[:-1]`, writes only scratch beyond it; `score` recomputes every row.
        """

    def draft_states(self, contexts: Sequence[Context], trees: Sequence[TokenTree],
                     layers: Sequence[int]) -> list[torch.Tensor]:  # fmt: skip
        """As `draft_rows`, but the hidden states [n + 1, hidden] after the given layers, before the final norm."""


@runtime_checkable
class TappedTarget(TargetModel, Protocol):
    """A target whose hidden states and token matrices a draft head may read."""

    @property
    def num_layers(self) -> int:
        """Layers; tap i is the hidden state entering layer i, tap `num_layers` the one before the final norm."""

    @property
    def hidden_size(self) -> int:
        """Numbers of a hidden state."""

    @property
    def taps(self) -> tuple[int, ...]:
        """What the columns of all features are, in order."""

    def tap(self, layers: Sequence[int]) -> None:
        """Adds columns to the features of every later pass; layers tapped already stay where they are.

        Raises `ConfigError` on a layer that the model does not have.
        """

    def token_weights(self) -> TokenWeights:
        """Embedding, head and final norm as numbers, made anew; float32, or as stored where that is narrower."""


class Drafter(Protocol):
    """Guesses tokens. Holds state per `sequence_id`, opened at its first sight and freed by `forget`."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose hidden states it needs (empty: none)."""

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The target has cached the next n prompt tokens, in order; each call continues the one before.

        `features` [n, taps, hidden] are theirs, None without taps; `context` is that of the whole prompt.
        """

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        """Returns a draft per context that contains `drafts[i]` unchanged, within `budgets[i]`; may be empty.

        May append nodes below existing ones, never remove or reorder: so methods chain.
        """

    def observe(self, results: Sequence[RoundResult]) -> None:
        """What became certain. O(emitted); catching up is lazy, in `propose`."""

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """Opens a sequence that shares the parent's first `length` tokens."""

    def forget(self, sequence_id: int) -> None:
        """Frees a sequence; unknown ids are ignored."""


Laws = Callable[[int], NodeLaw]
"""The target law at a row (0: after the pending token); raises `ScoreError` on a row without a law."""


class AcceptanceRule(Protocol):
    """Decides which nodes stay. Pure: knows no model, cache, RNG object or stopping."""

    @property
    def guarantee(self) -> Guarantee:
        """What the rule keeps."""

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        """One verdict for one sequence; asks only for the laws it needs."""
