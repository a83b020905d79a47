"""Draft vocabularies hold what answers are made of, in the order that is promised; their laws are the target's."""

from __future__ import annotations

import pytest
import torch
from tiny_guesses import HIDDEN, MAP, VOCAB, WEIGHTS

from outrider.errors import ConfigError
from outrider.train.texts import Text
from outrider.train.vocabulary import DraftLaw, draft_vocabulary

TEXTS = [
    Text((5, 5, 5, 6, 6, 20), (9, 9, 9, 8, 8, 7), 0.0, "made"),
    Text((6, 6, 8), (8, 4, 9), 1.0, "made"),
]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [9]),
        (3, [4, 8, 9]),  # 4 and 7 are equally frequent
        (5, [4, 6, 7, 8, 9]),
        (9, [0, 1, 4, 5, 6, 7, 8, 9, 20]),
    ],
)
def test_answers_count_before_prompts_and_prompts_before_low_ids(size: int, expected: list[int]) -> None:
    assert draft_vocabulary(TEXTS, size, VOCAB).tolist() == expected


def test_what_must_be_held_is() -> None:
    assert draft_vocabulary(TEXTS, 3, VOCAB, always=(29, 2)).tolist() == [2, 9, 29]
    assert draft_vocabulary([], 3, VOCAB).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("size", "always"), [(0, ()), (VOCAB + 1, ()), (1, (2, 3))])
def test_impossible_sizes_are_refused(size: int, always: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=f"a draft vocabulary of {size} tokens: give from"):
        draft_vocabulary(TEXTS, size, VOCAB, always=always)


def test_a_draft_law_is_that_of_the_target_s_rows() -> None:
    law = DraftLaw(WEIGHTS, MAP, dtype=torch.float64)
    states = torch.randn(4, HIDDEN, dtype=torch.float64)
    scale = (states.square().mean(1, keepdim=True) + WEIGHTS.norm_eps).rsqrt()
    whole = (states * scale * WEIGHTS.norm) @ WEIGHTS.head.double().T
    torch.testing.assert_close(law.logits(states), whole[:, MAP])
    assert law.holds(torch.arange(VOCAB)).nonzero().flatten().tolist() == MAP.tolist()
    assert law.draft_ids(MAP).tolist() == list(range(len(MAP)))
