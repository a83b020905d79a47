"""`NoDrafter`: plain decoding, which is a round with an empty draft."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.records import Budget, Context, Draft, RoundResult


class NoDrafter:
    """Adds nothing to any draft and keeps no state."""

    taps: tuple[int, ...] = ()

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """Needs nothing of the prompt."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return list(drafts)

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Needs nothing of what became certain."""

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """Has no state to share."""

    def forget(self, sequence_id: int) -> None:
        """Has no state to free."""
