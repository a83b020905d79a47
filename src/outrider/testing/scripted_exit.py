"""`scripted_exit`: self-drafting with an exit head that knows the texts and errs at a chosen share of the places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from outrider.core.protocols import LayeredTarget
from outrider.core.records import Context
from outrider.core.tree import TokenTree
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.drafters.self_draft import SelfDrafter
from outrider.testing.scripted_medusa import Script


def scripted_exit(
    target: LayeredTarget, texts: Mapping[int, Sequence[int]], *, layers: int, topk: int = 1, corrupted: float = 0.3,
    seed: int = 0, sample_method: SampleMethod = SampleMethod.PROBABILISTIC,
) -> SelfDrafter:  # fmt: skip
    """The real drafter on the target's real layers; in the place of what they come to stands where each row is.

    So drafts are right only where rows are asked for and placed as they should, and the layers leave what they leave
    in the target's cache.
    """
    placed = cast(LayeredTarget, _Placed(target))
    head = _Exit(Script(texts, target.vocab_size, 1, corrupted, seed))
    return SelfDrafter.early_exit(
        placed, layers, exit_head=head, topk=topk, settings=GrowthSettings(sample_method=sample_method)
    )


class _Placed:
    """What a drafter asks of a target, with (sequence, position) of each row as its hidden state."""

    def __init__(self, target: LayeredTarget) -> None:
        self.vocab_size, self.num_layers = target.vocab_size, target.num_layers
        self.supports_trees = target.supports_trees
        self._target = target

    def draft_states(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:  # [n + 1, 2] each
        found = self._target.draft_states(contexts, trees, layers)
        assert [len(states) for states in found] == [1 + len(tree) for tree in trees], "a state per row"
        return [_places(context, tree) for context, tree in zip(contexts, trees)]


class _Exit:
    """An exit head that reads a place and looks up what comes next."""

    token_map: torch.Tensor | None = None

    def __init__(self, script: Script) -> None:
        self._script = script

    def __call__(self, states: torch.Tensor) -> torch.Tensor:  # [n, 2] -> [n, vocab]
        # A place further back the script's first head speaks of the token after `states`.
        before = states - torch.tensor([0, 1])
        return self._script(before, 1)[:, 0]


def _places(context: Context, tree: TokenTree) -> torch.Tensor:  # [n + 1, 2]
    pending = len(context.tokens) - 1
    return torch.tensor(
        [[context.sequence_id, pending + depth] for depth in (0, *tree.depths)], dtype=torch.int64
    )
