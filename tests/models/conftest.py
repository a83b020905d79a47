"""Lets the suites of models import the plain modules beside them, and gives them tiny models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from hf_models import MODELS
from saved_models import CONFIG


@pytest.fixture(params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    """Each family of tiny transformers models."""
    return str(request.param)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """The model of `saved_models`."""
    torch.manual_seed(11)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture
def folder(tmp_path: Path, model: LlamaForCausalLM) -> Path:
    """The model, saved."""
    model.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"
