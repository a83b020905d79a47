"""Evaluation: what a draft comes to on held-out texts, with the rounds of greedy texts played back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.core.completion import SpeculationStats
from outrider.train.curve import Evaluation
from outrider.train.distributed import ALONE, World
from outrider.train.order import packed
from outrider.train.playback import play_back
from outrider.train.recipe import Judged, Recipe
from outrider.train.texts import Batch, Text

_COUNTERS = 5  # numbers of a played-back chain beside its histogram


class Texts(Protocol):
    """Texts with the target's features of them; always the same, in the same order."""

    def lengths(self) -> Sequence[int]:
        """Tokens of each text."""

    def batch(self, indices: Sequence[int]) -> Batch:
        """These texts, in this order, on any device."""


@dataclass(frozen=True)
class HeldOut:
    """Texts that are never trained on."""

    texts: Sequence[Text]
    source: Texts  # the same texts with their features


def device_of(recipe: Recipe) -> torch.device:
    """Where the recipe's module is."""
    return next(recipe.module.parameters()).device


def judged(recipe: Recipe, texts: Texts, indices: Sequence[int]) -> tuple[Judged, Batch]:
    """What a recipe says of some texts, where its module is; autocast leaves the target's states as they are."""
    device = device_of(recipe)
    with torch.autocast(device.type, enabled=False):
        batch = texts.batch(indices)
    batch = Batch(batch.tokens.to(device), batch.features.to(device), batch.answered.to(device))
    return recipe.judge(batch), batch


def evaluate(recipe: Recipe, held_out: HeldOut, *, batch_tokens: int, step: int = 0,
             world: World = ALONE) -> Evaluation:  # fmt: skip
    """Judges all texts with the module as it is, without gradients; its mode is put back.

    Every process of a world judges its share and gets the answer for all.
    """
    lengths = held_out.source.lengths()
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sums = torch.zeros(4, recipe.steps, dtype=torch.float64)
    chains: list[SpeculationStats] = []
    training = recipe.module.training
    recipe.module.eval()
    try:
        with torch.no_grad():
            for indices in world.share(packed(order, lengths, batch_tokens)):
                found, _ = judged(recipe, held_out.source, indices)
                sums += _sums(found)
                chains += _chains(found, [held_out.texts[index] for index in indices])
    finally:
        recipe.module.train(training)
    chain = _added_up(chains, recipe.steps, device_of(recipe), world)
    moved = sums.to(device_of(recipe))
    world.add_up(moved)
    losses, overlaps, counts, hits = moved.tolist()
    return Evaluation(step, _means(losses, counts), _means(overlaps, counts), _means(hits, counts), chain)


def _sums(found: Judged) -> torch.Tensor:  # [4, steps] float64
    hits = found.hits.sum((0, 1))
    rows = [
        row.detach().to("cpu", torch.float64) for row in (found.losses, found.overlaps, found.counts, hits)
    ]
    return torch.stack(rows)


def _means(sums: Sequence[float], counts: Sequence[float]) -> tuple[float, ...]:
    return tuple(total / count if count else 0.0 for total, count in zip(sums, counts))


def _chains(found: Judged, texts: Sequence[Text]) -> list[SpeculationStats]:
    """The rounds of the texts of temperature 0."""
    hits = found.hits.cpu()
    return [
        play_back(hits[row], prompt_tokens=len(text.prompt), answer_tokens=len(text.answer),
                  num_spec_tokens=hits.shape[2])
        for row, text in enumerate(texts)
        if text.temperature == 0.0
    ]  # fmt: skip


def _added_up(chains: Sequence[SpeculationStats], steps: int, device: torch.device,
              world: World) -> SpeculationStats:  # fmt: skip
    """The counters of all texts of all processes."""
    own = SpeculationStats.total(chains)
    histogram = own.acceptance_histogram or (0,) * (steps + 1)
    counters = (own.num_rounds, own.num_spec_steps, own.num_draft_tokens, own.num_accepted_draft_tokens,
                own.num_emitted_tokens)  # fmt: skip
    numbers = torch.tensor([*counters, *histogram], device=device)
    world.add_up(numbers)
    found = numbers.tolist()
    rounds, spec_steps, drafted, accepted, emitted = found[:_COUNTERS]
    return SpeculationStats(rounds, spec_steps, drafted, accepted, emitted, steps, tuple(found[_COUNTERS:]))
