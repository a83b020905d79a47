"""The tools that users import come from one place, and cost nothing until they are used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import outrider.testing

TOOLS = {
    "check_drafter", "check_target", "check_rule", "ToyTarget", "ScriptedDrafter", "BranchingNoise", "outcomes",
    "oracle_text",
}  # fmt: skip


def test_every_tool_is_the_one_of_its_module() -> None:
    assert set(outrider.testing.__all__) == TOOLS
    for name in TOOLS:
        tool = getattr(outrider.testing, name)
        assert getattr(importlib.import_module(tool.__module__), name) is tool


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="check_model"):
        outrider.testing.check_model  # noqa: B018


def test_the_package_loads_its_tools_on_first_use() -> None:
    probe = "import outrider.testing, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
