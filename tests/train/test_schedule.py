"""The learning rate: up to its peak, then down to its floor."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.train.schedule import rate_share


def test_it_rises_to_the_peak_and_falls_to_the_floor() -> None:
    shares = [rate_share(step, 200, warm_up=0.1, floor=0.05) for step in range(200)]
    assert shares[0] == pytest.approx(1 / 20)
    assert shares[19] == shares[20] == 1.0
    assert shares[-1] == pytest.approx(0.05)
    assert all(later > before for before, later in pairwise(shares[:20]))
    assert all(later < before for before, later in pairwise(shares[20:]))
    assert shares[110] == pytest.approx((1 + 0.05) / 2, abs=0.01)  # half-way down


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("warm_up", [0.0, 0.5, 1.0])
def test_short_runs_have_a_rate_at_every_step(steps: int, warm_up: float) -> None:
    shares = [rate_share(step, steps, warm_up=warm_up, floor=0.1) for step in range(steps)]
    assert all(0.1 <= share <= 1.0 for share in shares)
    assert max(shares) == 1.0
