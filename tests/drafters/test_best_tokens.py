"""The best tokens of rows against a full sort, at every shape the search treats differently."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.drafters.best_tokens import best_tokens


@pytest.mark.parametrize("vocab", [3, 500, 4096, 5000, 49_152, 50_257])
@pytest.mark.parametrize("count", [1, 8, 32])
def test_they_equal_a_full_sort(vocab: int, count: int) -> None:
    rows = np.random.default_rng(vocab + count).standard_normal((5, vocab)).astype(np.float32)
    ids, values = best_tokens(torch.from_numpy(rows), count)
    wanted = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    assert np.array_equal(ids, wanted)
    assert np.array_equal(values, np.take_along_axis(rows, wanted, axis=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_dtype_is_read(dtype: torch.dtype) -> None:
    row = torch.arange(12.0).flip(0).to(dtype)[None]
    assert best_tokens(row, 3)[0].tolist() == [[0, 1, 2]]


def test_a_row_is_judged_alone() -> None:
    rows = torch.from_numpy(np.round(np.random.default_rng(2).standard_normal((9, 6000)), 1))  # full of ties
    together = best_tokens(rows, 8)[0]
    for row in range(9):
        assert np.array_equal(best_tokens(rows[row : row + 1], 8)[0][0], together[row])


@pytest.mark.parametrize("place", [0, 700, 5999])
def test_a_nan_shows_whatever_its_place(place: int) -> None:
    rows = torch.zeros(2, 6000)
    rows[1, place] = torch.nan
    broken = np.isnan(best_tokens(rows, 4)[1]).any(axis=1)
    assert broken.tolist() == [False, True]


def test_the_answer_outlives_the_logits() -> None:
    rows = torch.tensor([[1.0, 3.0, 2.0]])
    ids, values = best_tokens(rows, 3)
    rows.zero_()
    assert ids.tolist() == [[1, 2, 0]]
    assert values.tolist() == [[3.0, 2.0, 1.0]]
