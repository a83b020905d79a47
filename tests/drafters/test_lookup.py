"""N-gram lookup against a search that scans the whole text, and its bookkeeping."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outrider.core.law import Drawn
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Group, RoundResult, Scores
from outrider.drafters.lookup import NgramDrafter
from outrider.errors import ConfigError
from outrider.models.row_costs import RowCosts
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget


def drafted(drafter: NgramDrafter, text: Sequence[int], budget: int, given: Draft = EMPTY_DRAFT) -> Draft:
    (draft,) = drafter.propose([Context.of(text)], [Budget(budget, budget)], [given])
    return draft


def scanned(text: Sequence[int], low: int, high: int, room: int) -> tuple[int, ...]:
    """The definition, by scanning: longest n, then the most recent earlier end, copied with overlap."""
    for size in range(min(high, len(text) - 1), low - 1, -1):
        for end in range(len(text) - 2, size - 2, -1):
            if list(text[end + 1 - size : end + 1]) == list(text[len(text) - size :]):
                grown = list(text)
                for step in range(room):
                    grown.append(grown[end + 1 + step])
                return tuple(grown[len(text) :])
    return ()


def test_the_longest_match_wins_over_a_more_recent_shorter_one() -> None:
    text = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert drafted(NgramDrafter(2, 5), text, 1).nodes.tokens == (7,)
    assert drafted(NgramDrafter(2, 2), text, 1).nodes.tokens == (8,)


def test_a_match_that_runs_into_the_end_repeats_its_period() -> None:
    assert drafted(NgramDrafter(2, 5), [5, 1, 2, 3, 1, 2, 3], 7).nodes.tokens == (1, 2, 3, 1, 2, 3, 1)


def test_nothing_is_drafted_without_a_match() -> None:
    assert drafted(NgramDrafter(), [1, 2, 3, 4, 5], 4) == EMPTY_DRAFT
    assert drafted(NgramDrafter(), [1], 4) == EMPTY_DRAFT


@pytest.mark.parametrize(("low", "high"), [(1, 3), (2, 5), (3, 3)])
def test_drafts_equal_a_full_scan_at_every_length_of_a_growing_text(low: int, high: int) -> None:
    rng = random.Random(low * 10 + high)
    text = [rng.randrange(4) for _ in range(120)]
    drafter = NgramDrafter(low, high)
    length = 1
    while length <= len(text):
        assert drafted(drafter, text[:length], 6).nodes.tokens == scanned(text[:length], low, high, 6), length
        length += rng.choice([1, 1, 2, 7])


def test_a_given_chain_is_continued_as_if_it_were_text() -> None:
    rng = random.Random(7)
    for _ in range(200):
        text = [rng.randrange(3) for _ in range(rng.randrange(1, 30))]
        given = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        draft = drafted(NgramDrafter(2, 4), text, 8, Draft.chain(given))
        assert draft.nodes.tokens == (*given, *scanned(text + given, 2, 4, 8 - len(given)))


def test_a_given_chain_keeps_its_laws() -> None:
    law = Drawn(np.array([0.5, 0.5]))
    draft = drafted(NgramDrafter(1, 2), [0, 1, 0, 1], 4, Draft.chain([0], [law]))
    assert draft.nodes.tokens == (0, 1, 0, 1)
    assert draft.groups[0] == (Group(law, (0,)),)


def test_a_given_tree_and_a_spent_budget_are_left_alone() -> None:
    tree = Draft.tree([0, 1], [None, None])
    assert drafted(NgramDrafter(1, 2), [0, 1, 0, 1], 4, tree) is tree
    assert drafted(NgramDrafter(1, 2), [0, 1, 0, 1], 0) is EMPTY_DRAFT
    (draft,) = NgramDrafter(1, 2).propose([Context.of([0, 1, 0])], [Budget(8, 3)], [EMPTY_DRAFT])
    assert len(draft) == 3


def test_a_forgotten_sequence_leaves_nothing_behind() -> None:
    drafter = NgramDrafter(2, 3)
    drafted(drafter, [1, 2, 3, 1, 2], 3)
    drafter.forget(0)
    drafter.forget(99)
    assert drafted(drafter, [1, 2], 3) == EMPTY_DRAFT


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3)])
def test_an_empty_range_is_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match="prompt_lookup_min"):
        NgramDrafter(low, high)


def test_the_contract_is_kept() -> None:
    check_drafter(lambda target: NgramDrafter(1, 3), lambda: ToyTarget(12, sharpness=4.0))


def test_dear_rows_shorten_a_copy_until_copies_prove_right() -> None:
    text = [5, 1, 2, 3, 4, 6, 7, 8, 9, 1, 2]
    costs = RowCosts((1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8))
    assert len(drafted(NgramDrafter(2, 5), text, 7)) == 7
    first = len(drafted(NgramDrafter(2, 5, costs), text, 7))
    assert 0 < first < 7
    lengths = {}
    for kept in (True, False):
        drafter = NgramDrafter(2, 5, costs)
        for _ in range(60):
            draft = drafted(drafter, text, 7)
            accepted = tuple(range(len(draft))) if kept else ()
            emitted = (3, 4, 6, 7, 8, 9, 1, 2)[: len(draft) + 1] if kept else (0,)
            drafter.observe([RoundResult(0, emitted, accepted, draft, Scores(torch.empty(0)))])
        lengths[kept] = len(drafted(drafter, text, 7))
    assert lengths[True] > first
    assert lengths[False] == 0
