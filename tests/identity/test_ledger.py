"""Finished cells of the long suite are kept exactly as long as nothing that decides them has changed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import model_cells
import pytest
from model_cells import SCRIPT_NOTE, Ledger, Scope, deciding_files

ROOT = Path(__file__).parents[2]
PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import model_cells, outrider.models.hf
print(json.dumps([m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "outrider"]))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """`scripts/test_model` as a module."""
    loader = importlib.machinery.SourceFileLoader("test_model_script", str(ROOT / "scripts" / "test_model"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_key_covers_all_code_that_a_cell_uses_and_none_of_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(Path(__file__).parent)], capture_output=True, text=True, check=True
    )
    used = {Path(name) for name in json.loads(done.stdout)}
    covered = set(deciding_files())
    assert used <= covered
    assert not [path for path in covered if {"cli", "llm.py"} & set(path.parts)]


def test_the_key_changes_with_what_decides_texts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("core/round.py", "cli/main.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    monkeypatch.setattr(model_cells.outrider, "__file__", str(tmp_path / "__init__.py"))

    def key() -> str:
        return Ledger(tmp_path, Scope()).root.name

    first = key()
    (tmp_path / "cli/main.py").write_text("changed")
    assert key() == first
    (tmp_path / "core/round.py").write_text("changed")
    assert key() != first


def test_the_long_suite_runs_every_test_marked_full(script: ModuleType) -> None:
    assert script.FULL[1:] == ["-m", "pytest", "-m", "full", "tests"]


def test_the_summary_says_what_the_bound_excuses(script: ModuleType) -> None:
    assert "no difference at all is excused" in script.excused(0.0)
    assert "1.5e-05: only ties" in script.excused(1.5e-5)
    assert "0.49" in SCRIPT_NOTE
