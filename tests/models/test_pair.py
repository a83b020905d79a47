"""Vocabularies of a target and a draft model, compared token by token."""

from __future__ import annotations

import pytest

from outrider.models.pair import compare_vocabularies

TOKENS = [f"t{index}" for index in range(128)]


def swapped(tokens: list[str], first: int, second: int) -> list[str]:
    changed = list(tokens)
    changed[first], changed[second] = changed[second], changed[first]
    return changed


def test_one_vocabulary_is_compatible_in_either_form() -> None:
    by_token = {token: index for index, token in enumerate(TOKENS)}
    for draft in (TOKENS, by_token):
        verdict = compare_vocabularies(TOKENS, draft, 128, 128)
        assert (verdict.verdict, verdict.first_difference) == ("compatible", None)


@pytest.mark.parametrize(("target_size", "draft_size"), [(128, 152), (152, 128), (160, 152)])
def test_rows_without_a_token_are_padding(target_size: int, draft_size: int) -> None:
    verdict = compare_vocabularies(TOKENS, TOKENS, target_size, draft_size)
    assert verdict.verdict == "padded"
    assert verdict.first_difference is not None
    assert str(target_size) in verdict.first_difference
    assert str(draft_size) in verdict.first_difference


def test_equal_padding_on_both_sides_is_compatible() -> None:
    assert compare_vocabularies(TOKENS, [*TOKENS, None], 152, 152).verdict == "compatible"


def test_two_swapped_ids_are_named_with_both_tokens() -> None:
    verdict = compare_vocabularies(TOKENS, swapped(TOKENS, 90, 17), 128, 128)
    assert verdict.verdict == "incompatible"
    assert verdict.first_difference == "id 17 is 't17' in the target, 't90' in the draft"


def test_swapped_ids_are_not_excused_by_padding() -> None:
    assert compare_vocabularies(TOKENS, swapped(TOKENS, 0, 1), 128, 152).verdict == "incompatible"


@pytest.mark.parametrize("extra_side", [0, 1])
def test_a_token_that_one_side_lacks_is_a_difference_where_both_have_rows(extra_side: int) -> None:
    sides = [TOKENS, [*TOKENS, "<extra>"]]
    target, draft = sides[1 - extra_side], sides[extra_side]
    verdict = compare_vocabularies(target, draft, 152, 152)
    assert verdict.verdict == "incompatible"
    assert verdict.first_difference is not None
    assert verdict.first_difference.startswith("id 128 is")
    assert "'<extra>'" in verdict.first_difference


def test_a_token_beyond_the_other_models_rows_can_never_be_drafted() -> None:
    assert compare_vocabularies(TOKENS, [*TOKENS, "<extra>"], 128, 129).verdict == "padded"
