"""What rows are taken to cost, and how many are worth it."""

from __future__ import annotations

import pytest

from outrider.models.native_library import Activations
from outrider.models.row_costs import _NATIVE, _WIDE, RowCosts, expected_costs
from outrider.testing.toy import ToyTarget


@pytest.mark.parametrize("table", [*_NATIVE.values(), _WIDE])
def test_costs_begin_at_one_pass_and_never_fall(table: tuple[float, ...]) -> None:
    costs = RowCosts(table)
    found = [costs.of(rows) for rows in range(1, 40)]
    assert found[0] == 1.0
    assert found == sorted(found)
    assert costs.of(39) > costs.of(len(table))


def test_a_linear_cost_goes_on_for_ever() -> None:
    assert RowCosts.linear(0.05).of(21) == pytest.approx(2.0)
    assert expected_costs(ToyTarget(5)).of(3) == pytest.approx(1.08)
    assert ("gguf", Activations.INT8) in _NATIVE


def test_nodes_are_scored_as_long_as_they_raise_the_tokens_per_cost() -> None:
    costs = RowCosts.linear(0.1)
    assert costs.worthwhile([]) == 0
    assert costs.worthwhile([0.05, 0.05]) == 0
    assert costs.worthwhile([0.9, 0.8, 0.05]) == 2
    assert RowCosts.linear(0.0).worthwhile([0.9, 0.0, 0.0]) == 3


def test_a_step_is_taken_where_what_lies_beyond_it_pays() -> None:
    steps = RowCosts((1.0, 1.3, 1.3, 1.3))
    assert steps.worthwhile([0.2]) == 0
    assert steps.worthwhile([0.2, 0.2, 0.2]) == 3


def test_what_is_drafted_already_counts() -> None:
    costs = RowCosts((1.0, 1.0, 1.0, 2.0))
    assert costs.worthwhile([0.5]) == 1
    assert costs.worthwhile([0.5], promised=1.5, rows=3) == 0
