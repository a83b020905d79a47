"""Threads: toy models are slower on many threads than on one, and spin against whatever else the machine runs."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """One thread for the fast suite, all of them for the real model."""
    real = request.node.get_closest_marker("model") is not None
    torch.set_num_threads(len(os.sched_getaffinity(0)) if real else 1)
