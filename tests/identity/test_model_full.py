"""The whole identity suite on the real model; finished cells are shared with `scripts/test_model`."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_cells import Cell, Ledger, Model, Scope, all_cells

pytestmark = pytest.mark.full
RUNS = Path(__file__).parents[2] / "runs" / "test-model"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load()


@pytest.mark.parametrize(
    ("cell", "setting", "batch"), all_cells(), ids=lambda value: getattr(value, "name", str(value))
)
def test_speculation_writes_the_plain_text(model: Model, cell: Cell, setting: str, batch: int) -> None:
    assert Ledger(RUNS, Scope()).result(model, cell, setting, batch).problems() == []
