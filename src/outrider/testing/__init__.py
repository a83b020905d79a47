"""Shipped test tools: a toy target, scripted drafts, branching noise, contracts, an oracle."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.testing.branching import BranchingNoise as BranchingNoise
    from outrider.testing.branching import outcomes as outcomes
    from outrider.testing.drafter_contract import check_drafter as check_drafter
    from outrider.testing.oracle import oracle_text as oracle_text
    from outrider.testing.rule_contract import check_rule as check_rule
    from outrider.testing.scripted import ScriptedDrafter as ScriptedDrafter
    from outrider.testing.target_contract import check_target as check_target
    from outrider.testing.toy import ToyTarget as ToyTarget

# Loaded on first use, as the names of the package itself are.
_HOME = {
    "BranchingNoise": "branching",
    "ScriptedDrafter": "scripted",
    "ToyTarget": "toy",
    "check_drafter": "drafter_contract",
    "check_rule": "rule_contract",
    "check_target": "target_contract",
    "oracle_text": "oracle",
    "outcomes": "branching",
}

__all__ = [
    "BranchingNoise",
    "ScriptedDrafter",
    "ToyTarget",
    "check_drafter",
    "check_rule",
    "check_target",
    "oracle_text",
    "outcomes",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'outrider.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"outrider.testing.{_HOME[name]}"), name)
