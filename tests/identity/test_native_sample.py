"""A sample of the identity suite on the compiled decoder: every text is plain decoding's, and no tie excuses any.

The whole suite is `scripts/test_model --target native`.
"""

from __future__ import annotations

from functools import cache

import pytest
from model_cells import BATCH, Model, Run, Scope, own_chats, plain_texts, run_cell
from native_cells import PRECISIONS, SETTINGS, Precision, native_cells

from outrider.compiled.library import NativeUnavailable
from outrider.models.native_library import library
from outrider.testing.divergence import NoiseBound

try:
    library()
except NativeUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

pytestmark = pytest.mark.model
SCOPE = Scope(prompts=8, tokens=24)


@pytest.fixture(scope="module", params=PRECISIONS, ids=str)
def model(request: pytest.FixtureRequest) -> Model:
    precision: Precision = request.param
    return precision.load(own_chats())


@pytest.fixture(scope="module")
def plain(model: Model):  # type: ignore[no-untyped-def]
    return cache(lambda setting: plain_texts(model, SCOPE, setting))


@pytest.mark.parametrize("run", native_cells(), ids=lambda run: run.name)
def test_speculation_writes_the_plain_text(model: Model, plain, run: Run) -> None:  # type: ignore[no-untyped-def]
    result = run_cell(model, SCOPE, run, plain(run.setting), no_noise)
    assert result.problems() == []
    assert result.differing == 0


def test_rows_hold_the_same_bits_at_the_widths_of_the_cells(model: Model) -> None:
    assert model.measure_bound(rows=60).largest == 0.0


def no_noise() -> NoiseBound:
    return NoiseBound(0.0, 0, ())


def test_the_parts_of_a_cell_are_all_prompts_once() -> None:
    for count in (8, 24, 100):
        parts = [range(count)[run.part(count)] for run in native_cells()]
        one_cell = [index for part in parts[:2] for index in part]
        assert one_cell == list(range(count))
    assert {run.batch for run in native_cells()} == {1, BATCH}
    assert {run.setting for run in native_cells()} == set(SETTINGS)
