"""A sample of the identity suite on the real model: every cell, a few prompts, short texts.

The whole suite is `scripts/test_model`.
"""

from __future__ import annotations

from functools import cache

import pytest
from model_cells import BATCH, CELLS, SETTINGS, Cell, Model, Run, Scope, plain_texts, run_cell

from outrider.models.placement import placement_of

pytestmark = pytest.mark.model
SCOPE = Scope(prompts=8, tokens=32)
ALONE = Scope(prompts=1, tokens=32)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load()


@pytest.fixture(scope="module")
def plain(model: Model):  # type: ignore[no-untyped-def]
    return cache(lambda setting: plain_texts(model, SCOPE, setting))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_speculation_writes_the_plain_text(model: Model, plain, cell: Cell, setting: str) -> None:  # type: ignore[no-untyped-def]
    bound = cache(model.measure_bound)
    together = run_cell(model, SCOPE, Run(cell, setting, BATCH), plain(setting), bound)
    assert together.problems() == []
    alone = run_cell(model, ALONE, Run(cell, setting, 1), plain(setting)[:1], bound)
    assert alone.differing == alone.certified <= 1


def test_the_draft_model_has_the_dtype_asked_for(model: Model) -> None:
    assert placement_of(model.draft).dtype == "bfloat16"
    assert (placement_of(model.target).target, placement_of(model.target).dtype) == ("torch", "float32")
