"""Cells of the identity suite on the compiled decoder, which is row-invariant: no difference at all is excused."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from model_cells import BATCH, CELLS, NAME, PROMPTS, Chat, Model, Run, Scope, Suite, own_chats

from outrider.compiled.library import chosen_isa
from outrider.models.load import load, resolve
from outrider.models.native_library import library
from outrider.text import load_tokenizer

SCOPE = Scope(prompts=100, tokens=200)
SETTINGS = ("T=0", "T=1")
QUESTIONS = "spec_bench.jsonl"
# A quarter of the prompts are answered alone, the others in batches: so rows meet many widths and neighbours.
PARTS: Mapping[int, tuple[float, float]] = {1: (0.0, 0.25), BATCH: (0.25, 1.0)}
_DRAFTERS = ("ngram", "draft_model tree")


@dataclass(frozen=True)
class Precision:
    """How weights are kept and what the inputs of products are rounded to."""

    dtype: str
    activations: str

    def __str__(self) -> str:
        return self.dtype if self.activations == "auto" else f"{self.dtype}, {self.activations} activations"

    def load(self, chats: tuple[Chat, ...]) -> Model:
        """The target, and as its draft model the file's blocks with int8 activations: quick, and no target here."""
        source = resolve(NAME)
        target = load(source, target="native", dtype=self.dtype, activations=self.activations)
        draft = load(source, target="native", dtype="gguf", activations="int8")
        return Model(target, draft, load_tokenizer(source), chats)


PRECISIONS = (Precision("bfloat16", "auto"), Precision("gguf", "auto"), Precision("int8", "int8"))


def native_cells() -> tuple[Run, ...]:
    cells = [cell for cell in CELLS if cell.name in _DRAFTERS]
    return tuple(
        Run(cell, setting, batch, *part)
        for cell, setting, (batch, part) in itertools.product(cells, SETTINGS, PARTS.items())
    )


def native_suites(scope: Scope) -> list[Suite]:
    """One suite per precision; fewer prompts than `scope` asks for where no folder gives them.

    A part's key holds the compiled code and the instruction set, which decide the texts too.
    """
    chats = (*own_chats(), *questions())
    scope = replace(scope, prompts=min(scope.prompts, len(chats)))
    isa, files = chosen_isa(library().instruction_sets()), suite_files()
    return [
        Suite(f"native {precision} ({isa})", partial(precision.load, chats), scope, native_cells(), files)
        for precision in PRECISIONS
    ]


def suite_files() -> tuple[Path, ...]:
    """The prompts and the compiled code, which decide the texts of these suites. Needs the compiled library."""
    compiled = importlib.util.find_spec("outrider._native")
    assert compiled is not None, "the library was opened"
    return (PROMPTS, Path(str(compiled.origin)), *filter(None, (question_file(),)))


def question_file() -> Path | None:
    """The Spec-Bench questions in the folder OUTRIDER_PROMPTS; None without it."""
    folder = os.environ.get("OUTRIDER_PROMPTS")
    return Path(folder) / QUESTIONS if folder else None


def questions(count: int = SCOPE.prompts - 24) -> list[Chat]:
    """First turns of the questions, evenly over the file and so over its kinds; none without the file."""
    path = question_file()
    if path is None:
        return []
    turns = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()]
    return [[{"role": "user", "content": turns[index * len(turns) // count]}] for index in range(count)]
