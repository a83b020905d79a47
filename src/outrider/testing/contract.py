"""The contracts of `core/protocols.py` as checks that a plugin's author can run: target, drafter, rule."""

from __future__ import annotations

from outrider.testing.drafter_contract import check_drafter
from outrider.testing.rule_contract import check_rule
from outrider.testing.target_contract import check_target

__all__ = ["check_drafter", "check_rule", "check_target"]
