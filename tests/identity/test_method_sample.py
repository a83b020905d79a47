"""A sample of the identity suite of every draft method, on all targets: every text is plain decoding's.

The whole suite is `scripts/test_model --target methods`.
"""

from __future__ import annotations

from functools import cache, partial

import pytest
from method_cells import METHODS, SCOPE, SHARES, cells, layouts, load_model, method_runs
from model_cells import BATCH, PENALTIES, Cell, Model, Run, Scope, own_chats, plain_texts, run_cell
from native_cells import PRECISIONS

from outrider.config import BUILT_IN_METHODS
from outrider.models.placement import placement_of
from outrider.testing.divergence import NoiseBound

PAIR, SHORT_PAIR = Scope(prompts=2, tokens=32), Scope(prompts=2, tokens=24)
NATIVE = {
    "bfloat16": (("suffix tree", "T=0.8"), ("lookahead", "T=0"), ("eagle3 tree", PENALTIES)),
    "gguf": (("recycling", PENALTIES), ("medusa tree", "T=0.8"), ("scripted eagle tree", "T=0.8")),
}
PORTABLE = tuple((method.forms[-1], ("T=0", PENALTIES)[index % 2]) for index, method in enumerate(METHODS))


@pytest.mark.model
@pytest.mark.native
@pytest.mark.parametrize("precision", PRECISIONS[:2], ids=str)
def test_methods_write_the_plain_text_on_the_compiled_decoder(precision) -> None:  # type: ignore[no-untyped-def]
    model = precision.load(own_chats())
    plain = cache(lambda setting: plain_texts(model, PAIR, setting))
    for name, setting in NATIVE[precision.dtype]:
        run = Run(named(name), setting, 2)
        result = run_cell(model, PAIR, run, plain(setting), lambda: NoiseBound(0.0, 0, ()))
        assert (result.problems(), result.differing) == ([], 0), run.name
        assert result.rounds <= result.tokens == 64


@pytest.fixture(scope="module", params=["torch", "hf"])
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(request.param)


@pytest.fixture(scope="module")
def plain(model: Model):  # type: ignore[no-untyped-def]
    return cache(lambda setting: plain_texts(model, SHORT_PAIR, setting))


@pytest.fixture(scope="module")
def bound(model: Model):  # type: ignore[no-untyped-def]
    return cache(partial(model.measure_bound, rows=500, layouts=layouts(2)))


@pytest.mark.model
@pytest.mark.parametrize(("cell", "setting"), PORTABLE, ids=lambda value: getattr(value, "name", value))
def test_methods_write_the_plain_text_up_to_certified_ties(
    model: Model, plain, bound, cell: Cell, setting: str
) -> None:  # type: ignore[no-untyped-def]
    assert placement_of(model.target).dtype == "float32"
    result = run_cell(model, SHORT_PAIR, Run(cell, setting, 2), plain(setting), bound)
    assert result.problems() == []
    assert result.tokens == 48


def test_every_method_has_a_cell_and_every_cell_is_run_at_every_setting() -> None:
    names = [cell.name.split(", ") for cell in cells() if not cell.name.startswith("scripted")]
    assert set(BUILT_IN_METHODS) - {"none"} <= {name.split()[0] for parts in names for name in parts}
    runs = method_runs(SCOPE)
    for cell in cells():
        found = {(run.setting, run.batch) for run in runs if run.cell is cell}
        assert {setting for setting, _ in found} == set(SHARES), cell.name
        assert {("T=0", 1), ("T=0", BATCH), ("T=0.8", 1), ("T=0.8", BATCH)} <= found, cell.name


def test_the_forms_of_a_method_divide_all_prompts_among_them() -> None:
    for method in METHODS:
        for setting in ("T=0", "T=0.8"):
            parts = [range(SCOPE.prompts)[run.part(SCOPE.prompts)] for run in method.runs(setting, 1.0)]
            assert [i for part in parts for i in part] == list(range(round(SCOPE.prompts * method.share)))


def test_runs_for_which_few_prompts_leave_nothing_are_left_out() -> None:
    assert all(run.part(2).start < run.part(2).stop for run in method_runs(Scope(prompts=2)))


def named(name: str) -> Cell:
    return next(cell for cell in cells() if cell.name == name)
