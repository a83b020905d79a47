"""Rows scaled on demand: laws are those of scaling everything, and read a row no longer than it is valid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.core.law import Drawn, DrawnWithoutReplacement
from outrider.core.sampling import SamplingParams
from outrider.core.target_law import TargetLaw
from outrider.core.token_map import TokenMap

Array = npt.NDArray[Any]


def cut_in_full(row: Array, temperature: float, top_k: int | None, min_p: float) -> tuple[list[int], bytes]:
    """Columns of the support and their logits, each step on the whole row in float64."""
    with np.errstate(over="ignore"):
        logits = (row.astype(np.float64) - float(row.max())) / temperature
    floor = -math.inf if min_p == 0.0 else math.log(min_p)
    if top_k is not None and top_k < row.size:
        floor = max(floor, float(np.sort(logits)[-top_k]))
    kept = np.flatnonzero((logits >= floor) & (logits > -np.inf))
    return kept.tolist(), logits[kept].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_laws_are_those_of_scaling_the_whole_row(dtype: type) -> None:
    rng = np.random.default_rng(5)
    for case in range(500):
        size = int(rng.choice([2, 7, 60, 400]))
        spread = float(rng.choice([0.0, 1e-38, 1e-7, 1.0, 30.0, 1e30]))
        row = (rng.normal(0, spread, size).round(int(rng.integers(0, 9))) + rng.choice([0, 1, 1e6])).astype(
            dtype
        )
        row[rng.random(size) < rng.choice([0.0, 0.3])] = -np.inf
        row[int(rng.integers(size))] = 1.0
        temperature = float(rng.choice([1e-300, 1e-3, 0.7, 1.0, 2.5, 1e20, 1.7e308]))
        top_k = None if rng.random() < 0.4 else int(rng.integers(1, size + 2))
        min_p = float(rng.choice([0.0, 0.05, 1.0]))
        sampling = SamplingParams(temperature=temperature, top_k=top_k, min_p=min_p)
        columns = TokenMap(np.sort(rng.choice(900, size, replace=False)), 900) if case % 2 else None
        law = TargetLaw(sampling).node(row, (), columns)
        kept, logits = cut_in_full(row, temperature, top_k, min_p)
        tokens = np.arange(size) if law.tokens is None else law.tokens
        assert tokens.tolist() == (kept if columns is None else columns.tokens[kept].tolist())
        assert law.logits.tobytes() == logits


def test_a_plain_law_reads_its_row_when_asked_and_no_more_afterwards() -> None:
    row = np.random.default_rng(6).normal(0, 2, 50)
    row -= row.max()  # scaling changes nothing here, and still the law keeps no hold on the row
    law = TargetLaw(SamplingParams(temperature=1.0)).node(row, ())
    assert np.shares_memory(law.row.raw, row)
    before = law.logits.copy()
    row[:] = 0.0
    assert law.logits.tobytes() == before.tobytes()
    assert law.probs.argmax() == before.argmax()


@pytest.mark.parametrize("claim", [Drawn, DrawnWithoutReplacement])
def test_what_a_draft_keeps_outlives_its_row(claim: type[Drawn] | type[DrawnWithoutReplacement]) -> None:
    row = np.random.default_rng(7).normal(0, 2, 50).astype(np.float32)
    expected = TargetLaw(SamplingParams(temperature=0.7)).node(row.copy(), ()).probs
    drawn = claim(TargetLaw(SamplingParams(temperature=0.7)).node(row, ()))
    row[:] = 0.0
    assert drawn.probs.tobytes() == expected.tobytes()


def test_penalties_never_touch_the_row() -> None:
    row = np.zeros(9)
    law = TargetLaw(SamplingParams(temperature=1.0, presence_penalty=1.5), prompt=[1])
    law.append([2, 3])
    assert law.node(row, (4,)).logits.tolist() == [0, 0, -1.5, -1.5, -1.5, 0, 0, 0, 0]
    assert not row.any()
