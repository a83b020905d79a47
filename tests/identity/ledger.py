"""Where finished parts of the long suites are kept, so that a restart goes on where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from model_cells import Model, Result, Run, Suite, plain_texts, run_cell

import outrider
from outrider.testing.divergence import Layout, NoiseBound

# Parts of the package that no cell goes through: a change of them leaves every finished cell as it is.
ASIDE = ("cli", "__main__.py", "doctor.py", "llm.py", "intake.py", "stream.py")


def deciding_files() -> list[Path]:
    """The code that decides what a cell writes and how it is judged."""
    package, here = Path(outrider.__file__).parent, Path(__file__).parent
    parts = [p for p in sorted(package.rglob("*.py")) if p.relative_to(package).parts[0] not in ASIDE]
    return [
        *parts,
        *(here / name for name in ("model_cells.py", "native_cells.py", "method_cells.py", "ledger.py")),
    ]


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """The finished part of this name, made now if it is missing; JSON in, JSON out."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(make()))
        unfinished.rename(path)
    return json.loads(path.read_text())


@dataclass(frozen=True)
class Ledger:
    """Finished parts of one suite as files, under a key of code, prompts and scope: what is there is not rerun."""

    folder: Path
    suite: Suite

    @cached_property
    def root(self) -> Path:
        code = hashlib.sha256(f"{self.suite.name} {self.suite.scope}".encode())
        for path in (*deciding_files(), *self.suite.deciding):
            code.update(path.read_bytes())
        return self.folder / f"{self.suite.name} {code.hexdigest()[:12]}"

    def bound(self, model: Model) -> NoiseBound:
        found = kept(self.root / "bound.json", lambda: dataclasses.asdict(model.measure_bound()))
        return NoiseBound(
            found["largest"], found["rows"], tuple(Layout(**layout) for layout in found["layouts"])
        )

    def plain(self, model: Model, setting: str) -> list[list[int]]:
        path, count = self.root / f"plain {setting}.json", self.suite.prompts(setting)
        texts: list[list[int]] = kept(path, lambda: plain_texts(model, self.suite.scope, setting, count))
        return texts

    def result(self, model: Model, run: Run) -> Result:
        """A finished cell; the bound is measured before any text is written."""
        bound, plain = self.bound(model), self.plain(model, run.setting)
        made = kept(self.root / f"{run.name}.json", lambda: dataclasses.asdict(
            run_cell(model, self.suite.scope, run, plain, lambda: bound)))  # fmt: skip
        return Result(**{**made, "divergences": tuple(made["divergences"])})
