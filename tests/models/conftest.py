"""Lets the suites of models import the plain module beside them, `hf_models`, and run over its families."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hf_models import MODELS


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    """Each family of tiny transformers models."""
    return str(request.param)
