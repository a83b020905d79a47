"""The learning rate over a run: a linear warm-up, then half a cosine down to a floor."""

from __future__ import annotations

import math


def rate_share(step: int, steps: int, *, warm_up: float, floor: float) -> float:
    """The share of the peak learning rate that step `step` (from 0) of `steps` takes; in (0, 1].

    `warm_up`: the share of the steps that it takes to reach the peak. `floor`: the share of the peak that is left
    at the last step.
    """
    assert 0 <= step < steps, f"step {step} of {steps}"
    rising = math.ceil(warm_up * steps)
    if step < rising:
        return (step + 1) / rising
    falling = steps - 1 - rising
    progress = (step - rising) / falling if falling > 0 else 0.0
    return floor + (1.0 - floor) * (1.0 + math.cos(math.pi * progress)) / 2.0
