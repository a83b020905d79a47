"""Log-probabilities of the raw law: log-softmax, best alternatives, ties, degenerate rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.core.logprobs import token_logprob
from outrider.errors import ScoreError


def test_equal_to_log_softmax_with_the_best_alternatives() -> None:
    rng = np.random.default_rng(0)
    for vocab, top in [(2, 1), (40, 5), (3000, 20), (5, 9), (7, 0)]:
        row = torch.from_numpy(rng.normal(0, 4, vocab))
        expected = torch.log_softmax(row, dim=0)
        got = token_logprob(row, vocab // 2, top)
        assert got.token_id == vocab // 2
        assert got.logprob == pytest.approx(float(expected[vocab // 2]), abs=1e-9)
        values, ids = expected.topk(min(top, vocab))
        assert [token for token, _ in got.top] == ids.tolist()
        np.testing.assert_allclose([value for _, value in got.top], values.numpy(), atol=1e-9)


def test_ties_come_lowest_id_first() -> None:
    row = np.array([0.0, 2.0, 1.0, 2.0, 1.0, 1.0])
    assert [token for token, _ in token_logprob(row, 0, 4).top] == [1, 3, 2, 4]


def test_bitwise_equal_for_any_layout_and_dtype_widened() -> None:
    batch = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1))
    expected = token_logprob(batch[2].clone(), 17, 5)
    assert token_logprob(batch[2], 17, 5) == expected
    assert token_logprob(batch.T.contiguous()[:, 2], 17, 5) == expected
    half = batch[2].bfloat16()
    assert token_logprob(half, 17, 5) == token_logprob(half.double().numpy(), 17, 5)


def test_large_logits_and_masked_tokens() -> None:
    got = token_logprob(np.array([1e30, -np.inf, 1e30]), 0, 3)
    assert got.logprob == pytest.approx(-np.log(2))
    assert got.top[2] == (1, -np.inf)


@pytest.mark.parametrize("row", [[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf]])
def test_a_row_without_a_law_is_an_error(row: list[float]) -> None:
    with pytest.raises(ScoreError, match="logit"):
        token_logprob(np.array(row), 0, 1)
