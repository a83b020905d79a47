"""What a machine must have for a test, and how many threads a test takes.

Toy models are slower on many threads than on one, and spin against whatever else the machine runs.
"""

from __future__ import annotations

import os

import pytest
import torch

from outrider.compiled.library import NativeUnavailable
from outrider.models.native_library import library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `native` are skipped where the compiled decoder is not built."""
    try:
        library()
    except NativeUnavailable as reason:
        for item in items:
            if item.get_closest_marker("native"):
                item.add_marker(pytest.mark.skip(reason=str(reason)))


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """One thread for the fast suite, all of them for the real model."""
    real = request.node.get_closest_marker("model") is not None
    torch.set_num_threads(len(os.sched_getaffinity(0)) if real else 1)
