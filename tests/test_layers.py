"""The import direction: each part knows only the parts below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import outrider

ROOT = Path(outrider.__file__).parent

# What each part may import of the package, itself and `errors` apart. A top-level module is a part of its own.
MAY_IMPORT = {
    "compiled": set(),
    "core": {"compiled"},
    "config": set(),
    "models": {"core", "compiled"},
    "text": {"models"},
    "drafters": {"core", "models", "config", "compiled"},
    "engine": {"core"},
    "pairing": {"core", "models", "config", "text"},
    "intake": {"core", "text"},
    "stream": {"core", "engine"},
    "llm": {"core", "compiled", "models", "config", "text", "drafters", "engine"}
    | {"pairing", "intake", "stream"},
    "transformers_call": {"llm", "core", "config", "intake"},
    "doctor": {"llm", "core", "models", "config", "text", "drafters", "pairing"},
    "train": {"llm", "core", "models", "config", "text", "drafters"},
    "cli": {"train", "doctor", "llm", "core", "models", "config", "text", "pairing", "intake", "stream"},
    "testing": {"core", "models", "config", "drafters", "engine", "llm"},
}
# Third-party packages a part may import; parts not named here may import any.
MAY_USE = {
    "compiled": {"numpy"},
    "core": {"torch", "numpy"},
    "config": set(),
    "errors": set(),
    "engine": set(),
}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "base", "misc", "v2"}

MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports_of(path: Path) -> set[str]:
    """Dotted names imported anywhere in a module, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module == "outrider"
                else {node.module}
            )
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__", "errors"):
        return
    assert part in MAY_IMPORT, f"give {part} a place in the import direction"
    parts = {name.split(".")[1] for name in imports_of(path) if name.startswith("outrider.")}
    extra = parts - MAY_IMPORT[part] - {part, "errors", "__version__"}
    assert not extra, f"{part} must not import {sorted(extra)}"


@pytest.mark.parametrize(
    "path", [p for p in MODULES if part_of(p) in MAY_USE], ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_lean_part_uses_no_further_package(path: Path) -> None:
    import sys

    third = {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names) - {"outrider"}
    assert third <= MAY_USE[part_of(path)]


def test_every_file_is_called_after_what_it_holds_and_stays_short() -> None:
    for path in MODULES:
        assert path.stem not in FORBIDDEN_NAMES, path
        assert len(path.read_text().splitlines()) <= 400, path
        if path.stem != "__init__" and path.read_text().strip():
            assert ast.get_docstring(ast.parse(path.read_text())), (
                f"{path}: say what the module is responsible for"
            )
