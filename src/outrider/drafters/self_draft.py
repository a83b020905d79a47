"""`SelfDrafter`: the target's own first layers, or all but some of them, as the draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from outrider.core.protocols import LayeredTarget
from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.growth import UNCUT, Growth, GrowthSettings
from outrider.drafters.rows import DraftRows, DraftVocabulary
from outrider.errors import ConfigError, shown
from outrider.models.row_costs import bytes_of


class Exit(Protocol):
    """What speaks for the target where its first layers end, as `ExitHead`."""

    @property
    def token_map(self) -> torch.Tensor | None:
        """The target's ids [draft vocab] of the columns of rows; None where column i is token i."""

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [n, draft vocab] of the token after each state's own, from states [n, hidden]."""


class SelfDrafter:
    """Drafts with some layers of the target, on the target's cache; keeps no state of its own.

    Pays off on models trained for it (LayerSkip), or with a trained exit head: other models agree too little with what
    their final norm and head make of their own early layers. Where the target takes no trees it drafts chains.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, target: LayeredTarget, layers: Sequence[int], *, exit_head: Exit | None = None, topk: int = 1,
                 settings: GrowthSettings = UNCUT) -> None:  # fmt: skip
        """`exit_head` speaks behind the layers; None: the target's own final norm and head."""
        self.layers = tuple(layers)
        self._target, self._exit = target, exit_head
        token_map = None if exit_head is None else exit_head.token_map
        self._vocabulary = None if token_map is None else DraftVocabulary(token_map, target.vocab_size)
        self._window = settings.window(None)
        self._growth = Growth(
            target.vocab_size, topk if target.supports_trees else 1, settings.sample_method, settings.costs
        )

    @staticmethod
    def early_exit(target: LayeredTarget, layers: int, *, exit_head: Exit | None = None, topk: int = 1,
                   settings: GrowthSettings = UNCUT) -> SelfDrafter:  # fmt: skip
        """Drafts with the first `layers` layers. Raises `ConfigError` unless that leaves a part out."""
        if not 1 <= layers < target.num_layers:
            raise ConfigError(
                f"assistant_early_exit must be between 1 and {target.num_layers - 1} here, not {layers}"
            )
        return SelfDrafter(target, range(layers), exit_head=exit_head, topk=topk, settings=settings)

    @staticmethod
    def skip(target: LayeredTarget, skipped: Sequence[int], *, topk: int = 1,
             settings: GrowthSettings = UNCUT) -> SelfDrafter:  # fmt: skip
        """Drafts with all layers but `skipped`. Raises `ConfigError` when those are none, all, or unknown."""
        for layer in skipped:
            if not 0 <= layer < target.num_layers:
                raise ConfigError(
                    f"skip_layers: layer {shown(layer)} is not one of 0 to {target.num_layers - 1}"
                )
        layers = [layer for layer in range(target.num_layers) if layer not in skipped]
        if not layers or len(layers) == target.num_layers:
            raise ConfigError(
                f"skip_layers must leave out some of the {target.num_layers} layers, not {list(skipped)}"
            )
        return SelfDrafter(target, layers, topk=topk, settings=settings)

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The target's cache holds the prompt."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        allowed = [self._allowed(*job) for job in zip(contexts, budgets, drafts)]
        return self._growth.propose(contexts, allowed, drafts, lambda _: self._rows)

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts which guesses were kept; the text is read when a draft is asked for."""
        self._growth.observe(results)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The target forks its cache itself."""

    def forget(self, sequence_id: int) -> None:
        """Frees the counts; the target frees its cache itself."""
        self._growth.forget(sequence_id)

    def _allowed(self, context: Context, budget: Budget, draft: Draft) -> Budget:
        """The budget within the window; depth 0 where nothing can be added."""
        depth, room = budget.depth, budget.nodes - len(draft)
        if self._window is not None:
            depth = min(depth, self._window - len(context.tokens))
        fits = draft.nodes.is_chain and room > 0 and depth > len(draft)
        return Budget(depth, budget.nodes) if fits else Budget(0, 0)

    def _rows(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
    ) -> Sequence[torch.Tensor | DraftRows]:
        if self._exit is None:
            found = self._target.draft_rows(contexts, trees, self.layers)
            return [rows[list(asked)] for rows, asked in zip(found, wanted)]
        states = self._target.draft_states(contexts, trees, self.layers)
        with torch.no_grad():
            spoken = self._exit(torch.cat([own[list(asked)] for own, asked in zip(states, wanted)]))
        parts = torch.split(spoken, [len(asked) for asked in wanted])
        return parts if self._vocabulary is None else [self._vocabulary.rows(part) for part in parts]


def layer_bytes(target: LayeredTarget, count: int) -> int | None:
    """Weights of so many of the target's layers, its token matrices shared out among them; None where it tells none."""
    whole = bytes_of(target)
    return None if whole is None else whole * count // target.num_layers
