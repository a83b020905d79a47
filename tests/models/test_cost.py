"""Timing of passes and probes of the machine: what is timed, and what is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outrider.core.records import Context, Draft, Scores
from outrider.errors import ConfigError
from outrider.models.cost import rates_of, row_costs
from outrider.testing.toy import ToyTarget


class TimedTarget(ToyTarget):
    """Remembers how many tokens were cached and how many rows were asked for at each score."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.passes: list[tuple[int, int]] = []

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        self.passes.append((self.cached_length(contexts[0].sequence_id), len(drafts[0]) + 1))
        return super().score(contexts, drafts)


def test_every_width_is_timed_in_turn_after_the_cached_tokens() -> None:
    target = TimedTarget(17)
    costs = row_costs(target, (1, 4, 16), cached=20, repeats=3)
    assert target.passes == [(20, 1), (20, 4), (20, 16)] * 4
    assert list(costs) == [1, 4, 16]
    assert all(0 < cost < 1000 for cost in costs.values())
    assert target.cached_length(2**62) == 0


def test_a_short_context_caches_less_and_a_tiny_one_is_refused() -> None:
    target = TimedTarget(17, max_length=40)
    row_costs(target, (1, 8), repeats=1)
    assert {cached for cached, _ in target.passes} == {31}
    with pytest.raises(ConfigError, match="context of 9 tokens is too short for 8 rows"):
        row_costs(TimedTarget(17, max_length=9), (1, 8))


def test_torch_rates_are_those_of_a_machine() -> None:
    torch.set_num_threads(1)
    rates = rates_of(ToyTarget(17))
    assert 0.2 < rates.bandwidth_gbs < 1000
    assert 0.5 < rates.product_gflops < 10_000
