"""Outrider: exact speculative decoding. Faster text, the same text."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.config import SpeculativeConfig as SpeculativeConfig
    from outrider.core.completion import Completion as Completion
    from outrider.core.records import Context as Context
    from outrider.core.records import Draft as Draft
    from outrider.core.sampling import SamplingParams as SamplingParams
    from outrider.errors import OutriderError as OutriderError
    from outrider.llm import LLM as LLM
    from outrider.llm import Delta as Delta
    from outrider.transformers_call import generate_with as generate_with

__version__ = "0.1.0"

# Public names load on first use: importing the package, or asking the command line for help, imports no torch.
_HOME = {
    "LLM": "outrider.llm",
    "generate_with": "outrider.transformers_call",
    "Delta": "outrider.llm",
    "SamplingParams": "outrider.core.sampling",
    "Completion": "outrider.core.completion",
    "Context": "outrider.core.records",
    "Draft": "outrider.core.records",
    "SpeculativeConfig": "outrider.config",
    "OutriderError": "outrider.errors",
}

__all__ = [
    "LLM",
    "Completion",
    "Context",
    "Delta",
    "Draft",
    "OutriderError",
    "SamplingParams",
    "SpeculativeConfig",
    "generate_with",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
