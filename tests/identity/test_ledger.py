"""Finished cells of the long suite are kept exactly as long as nothing that decides them has changed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import ledger
import pytest
from ledger import Ledger, deciding_files, kept
from model_cells import SCRIPT_NOTE, Model, Scope, Suite, torch_suite

ROOT = Path(__file__).parents[2]
PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import native_cells, method_cells, ledger, outrider.models.hf
print(json.dumps([m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "outrider"]))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """`scripts/test_model` as a module."""
    loader = importlib.machinery.SourceFileLoader("test_model_script", str(ROOT / "scripts" / "test_model"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # its records look up their module
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
    compiled = tmp_path / "compiled.so"
    compiled.write_bytes(b"sums")
    suite = Suite("tiny", Model.load, Scope(), (), (compiled,))
    for name in ("core/round.py", "cli/main.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    monkeypatch.setattr(ledger.outrider, "__file__", str(tmp_path / "__init__.py"))

    def key() -> str:
        return Ledger(tmp_path, suite).root.name

    first = key()
    (tmp_path / "cli/main.py").write_text("changed")
    assert key() == first
    (tmp_path / "core/round.py").write_text("changed")
    second = key()
    assert second != first
    compiled.write_bytes(b"other sums")
    assert key() not in (first, second)
    assert Ledger(tmp_path, torch_suite(Scope())).root != Ledger(tmp_path, torch_suite(Scope(tokens=9))).root


def test_a_finished_part_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "part.json"
    assert kept(path, lambda: [1, 2]) == [1, 2]
    assert kept(path, lambda: pytest.fail("made again")) == [1, 2]


def test_each_target_has_a_suite_and_prompts_that_are_left_out_are_told(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def suites(*arguments: str) -> list[Suite]:
        monkeypatch.setattr(sys, "argv", ["test_model", *arguments])
        found: list[Suite] = script.chosen_suites(script.parse())
        return found

    monkeypatch.delenv("OUTRIDER_PROMPTS", raising=False)
    assert [suite.name for suite in suites("--target", "torch")] == ["torch float32"]
    assert capsys.readouterr().err == ""
    native = suites("--target", "native")
    if native:
        assert [suite.scope for suite in native] == [Scope(24, 200)] * 3
        assert "this repository's prompts alone" in capsys.readouterr().err
        questions = [json.dumps({"turns": [f"question {i}", "more"]}) for i in range(480)]
        (tmp_path / "spec_bench.jsonl").write_text("\n".join(questions))
        monkeypatch.setenv("OUTRIDER_PROMPTS", str(tmp_path))
        assert suites("--target", "native")[0].scope == Scope(100, 200)
        assert tmp_path / "spec_bench.jsonl" in suites("--target", "native")[0].deciding
        assert capsys.readouterr().err == ""
    else:
        assert "the native target is left out" in capsys.readouterr().err
    methods = suites("--target", "methods")
    assert len(methods) == (2 if native else 0)
    assert {suite.scope for suite in methods} <= {Scope(40, 160)}
    assert not {suite.name for suite in methods} & {suite.name for suite in native}
    assert len(suites()) == 1 + len(native) + len(methods)
    assert suites("--tokens", "8", "--prompts", "50")[0].scope == Scope(24, 8)


def test_the_long_suite_runs_every_test_marked_full(script: ModuleType) -> None:
    assert script.FULL[1:] == ["-m", "pytest", "-m", "full", "tests"]


def test_the_summary_says_what_the_bound_excuses(script: ModuleType) -> None:
    assert "no difference at all is excused" in script.excused(0.0)
    assert "1.5e-05: only ties" in script.excused(1.5e-5)
    assert "0.49" in SCRIPT_NOTE
