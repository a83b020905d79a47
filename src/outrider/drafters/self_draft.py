"""`SelfDrafter`: the target's own first layers, or all but some of them, as the draft model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.protocols import LayeredTarget
from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.growth import Growth, SampleMethod
from outrider.errors import ConfigError


class SelfDrafter:
    """Drafts with some layers of the target, on the target's cache; keeps no state of its own.

    Pays off on models trained for it (LayerSkip); other models agree too little with their own early layers.
    Where the target takes no trees it drafts chains.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, target: LayeredTarget, layers: Sequence[int], *, topk: int = 1,
                 sample_method: SampleMethod = SampleMethod.PROBABILISTIC) -> None:  # fmt: skip
        self.layers = tuple(layers)
        self._target = target
        self._growth = Growth(target.vocab_size, topk if target.supports_trees else 1, sample_method)

    @staticmethod
    def early_exit(target: LayeredTarget, layers: int, *, topk: int = 1,
                   sample_method: SampleMethod = SampleMethod.PROBABILISTIC) -> SelfDrafter:  # fmt: skip
        """Drafts with the first `layers` layers. Raises `ConfigError` unless that leaves a part out."""
        if not 1 <= layers < target.num_layers:
            raise ConfigError(
                f"assistant_early_exit must be between 1 and {target.num_layers - 1} here, not {layers}"
            )
        return SelfDrafter(target, range(layers), topk=topk, sample_method=sample_method)

    @staticmethod
    def skip(target: LayeredTarget, skipped: Sequence[int], *, topk: int = 1,
             sample_method: SampleMethod = SampleMethod.PROBABILISTIC) -> SelfDrafter:  # fmt: skip
        """Drafts with all layers but `skipped`. Raises `ConfigError` when those are none, all, or unknown."""
        for layer in skipped:
            if not 0 <= layer < target.num_layers:
                raise ConfigError(f"skip_layers: layer {layer} is not one of 0 to {target.num_layers - 1}")
        layers = [layer for layer in range(target.num_layers) if layer not in skipped]
        if not layers or len(layers) == target.num_layers:
            raise ConfigError(
                f"skip_layers must leave out some of the {target.num_layers} layers, not {list(skipped)}"
            )
        return SelfDrafter(target, layers, topk=topk, sample_method=sample_method)

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The target's cache holds the prompt."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return self._growth.grow(contexts, budgets, drafts, self._rows)

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts which guesses were kept; the text is read when a draft is asked for."""
        self._growth.observe(results)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The target forks its cache itself."""

    def forget(self, sequence_id: int) -> None:
        """Frees the counts; the target frees its cache itself."""
        self._growth.forget(sequence_id)

    def _rows(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        found = self._target.draft_rows(contexts, trees, self.layers)
        return [rows[list(asked)] for rows, asked in zip(found, wanted)]
