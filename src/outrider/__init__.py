"""Outrider: exact speculative decoding. Faster text, the same text."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public names load on first use: importing the package, or asking the command line for help, imports no torch.
_HOME = {
    "LLM": "outrider.llm",
    "generate_with": "outrider.llm",
    "Delta": "outrider.llm",
    "SamplingParams": "outrider.core.sampling",
    "Completion": "outrider.core.records",
    "Context": "outrider.core.records",
    "Draft": "outrider.core.records",
    "SpeculativeConfig": "outrider.config",
}

__all__ = [
    "LLM",
    "Completion",
    "Context",
    "Delta",
    "Draft",
    "SamplingParams",
    "SpeculativeConfig",
    "generate_with",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
