"""Recycling: what it learns from rows and prompts, the shape of its trees, and the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, RoundResult, Scores
from outrider.drafters.recycling import RecyclingDrafter
from outrider.errors import ConfigError
from outrider.models.row_costs import RowCosts
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget

FREE = RowCosts.linear(0.0)
VOCAB = 10
WIDE = Budget(4, 16)


def drafted(drafter: RecyclingDrafter, text: Sequence[int], budget: Budget = WIDE, given: Draft = EMPTY_DRAFT,
            sequence_id: int = 0) -> Draft:  # fmt: skip
    [draft] = drafter.propose([Context.of(text, sequence_id=sequence_id)], [budget], [given])
    return draft


def row(*best: int) -> list[float]:
    """Logits whose best tokens are these, in this order."""
    logits = [-float(token) - 20.0 for token in range(VOCAB)]
    for rank, token in enumerate(best):
        logits[token] = -float(rank)
    return logits


def shown(drafter: RecyclingDrafter, draft: Draft, rows: Sequence[Sequence[float]], emitted: Sequence[int],
          accepted: Sequence[int] = ()) -> None:  # fmt: skip
    """A round that scored the draft with these rows."""
    result = RoundResult(0, tuple(emitted), tuple(accepted), draft, Scores(torch.tensor(rows)))
    drafter.observe([result])


def children(draft: Draft, row: int) -> list[int]:
    return [draft.nodes.tokens[node] for node in draft.nodes.children[row]]


def free(**settings: int) -> RecyclingDrafter:
    """A drafter that fills its budget."""
    return RecyclingDrafter(costs=FREE, **settings)


def test_a_prompt_s_bigrams_are_drafted_the_most_recent_first() -> None:
    draft = drafted(free(), [1, 2, 1, 3, 1, 2, 1, 4, 1], Budget(1, 9))
    assert children(draft, 0) == [4, 2, 3]


def test_every_scored_row_counts_half_among_the_successors_of_its_token() -> None:
    drafter = free(successors=2)
    draft = drafted(drafter, [5, 6, 7, 5], Budget(1, 1))
    assert children(draft, 0) == [6]
    shown(drafter, draft, [row(8, 9), row(2, 3)], emitted=[1])  # after 5, and after the rejected 6
    assert children(drafted(drafter, [5, 6, 7, 5, 1, 5]), 0) == [8, 6]
    assert children(drafted(drafter, [5, 6, 7, 5, 1, 5, 6]), 0) == [2, 7]


def test_rows_of_the_text_outlast_rejected_rows_of_the_same_token() -> None:
    drafter = free(successors=1)
    draft = Draft.tree([4, 3, 4], [None, None, 1])
    drafted(drafter, [1, 2, 3])
    shown(drafter, draft, [row(0), row(7), row(8), row(9)], emitted=[4, 7], accepted=[0])
    assert children(drafted(drafter, [1, 2, 3, 4, 7, 4], Budget(1, 1)), 0) == [7]


def test_rows_without_numbers_teach_nothing() -> None:
    drafter = free()
    draft = drafted(drafter, [5, 6, 5], Budget(1, 1))
    shown(drafter, draft, [row(6, 2), [float("nan")] * VOCAB], emitted=[6])
    assert children(drafted(drafter, [5, 6, 5, 6], Budget(1, 4)), 0) == [5]


def test_logits_may_change_after_the_round() -> None:
    drafter, logits = free(successors=2), torch.tensor([row(8, 9)])
    drafted(drafter, [5])
    drafter.observe([RoundResult(0, (8,), (), EMPTY_DRAFT, Scores(logits))])
    logits.zero_()
    assert children(drafted(drafter, [5, 8, 1, 5], Budget(1, 2)), 0) == [8, 9]


def test_trees_are_best_first_and_chains_follow_the_best() -> None:
    cycle = [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert drafted(free(topk=1), cycle).nodes.tokens == (1, 2, 3, 0)
    bushy = [0, 9, 0, 8, 0, 7, 0, 1, 5, 1, 4, 1, 2, 3, 0]
    draft = drafted(free(), bushy, Budget(3, 6))
    assert len(draft) == 6
    assert not draft.nodes.is_chain
    assert max(draft.nodes.depths) <= 3
    narrow = drafted(free(topk=2), bushy, Budget(3, 12))
    assert max(len(below) for below in narrow.nodes.children) == 2


def test_successors_that_prove_right_grow_deep_trees_and_wrong_ones_none() -> None:
    deep = {}
    for right in (True, False):
        drafter, text = RecyclingDrafter(successors=2), [0, 1, 2, 3] * 3
        for _ in range(150):
            draft = drafted(drafter, text)
            tokens = (text[-1], *draft.nodes.tokens)
            emitted = (text[-1] + 1) % 4 if right else (text[-1] + 2) % 4
            shown(drafter, draft, [row((token + 1) % 4, 9) for token in tokens], [emitted])
            text.append(emitted)
        deep[right] = len(drafted(drafter, text))
    assert deep[True] >= 4
    assert deep[False] == 0


def test_a_given_chain_is_continued_and_a_given_tree_left_alone() -> None:
    text, law = [0, 1, 2, 3, 0], Draft.chain([1, 2]).groups[0]
    draft = drafted(free(topk=1), text, WIDE, Draft.chain([1, 2]))
    assert draft.nodes.tokens == (1, 2, 3, 0)
    assert draft.groups[0] == law
    tree = Draft.tree([1, 2], [None, None])
    assert drafted(free(), text, WIDE, tree) is tree
    assert drafted(free(), text, Budget(0, 0)) is EMPTY_DRAFT


def test_rounds_nobody_asked_about_are_not_read() -> None:
    drafter = free()
    drafted(drafter, [5, 6, 7])
    shown(drafter, EMPTY_DRAFT, [row(1)], emitted=[1])
    unread = RoundResult(0, (2,), (), EMPTY_DRAFT, Scores(torch.empty(1, 0)))  # nothing to look at
    drafter.observe([unread])
    assert children(drafted(drafter, [5, 6, 7, 1, 2, 1], Budget(1, 1)), 0) == [2]


def test_sequences_share_nothing() -> None:
    drafter = free()
    drafted(drafter, [1, 2, 1])
    drafter.fork(0, 1, 2)
    assert drafted(drafter, [1], sequence_id=1) == EMPTY_DRAFT
    drafter.forget(0)
    drafter.forget(99)
    assert drafted(drafter, [1]) == EMPTY_DRAFT


def test_a_fork_drafts_what_a_cold_start_on_its_text_would() -> None:
    text, drafter = [1, 2, 3, 1, 2, 4, 1], free()
    draft = drafted(drafter, text)
    shown(drafter, draft, [row(9, 8)] * (len(draft) + 1), emitted=[9])
    drafter.fork(0, 1, 6)
    assert drafted(drafter, text, sequence_id=1) == drafted(free(), text)


@pytest.mark.parametrize("settings", [{"successors": 0}, {"topk": 0}])
def test_empty_counts_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        RecyclingDrafter(**settings)


@pytest.mark.parametrize("settings", [{}, {"successors": 3, "topk": 2}, {"topk": 1}])
@pytest.mark.parametrize("row_cost", [0.0, 0.05])
def test_the_contract_is_kept(settings: dict[str, int], row_cost: float) -> None:
    check_drafter(
        lambda target: RecyclingDrafter(costs=RowCosts.linear(row_cost), **settings),
        lambda: ToyTarget(12, sharpness=4.0),
    )


def test_targets_without_trees_get_chains() -> None:
    check_drafter(
        lambda target: RecyclingDrafter(topk=1, costs=FREE),
        lambda: ToyTarget(12, sharpness=4.0, supports_trees=False),
    )


def test_below_chains_that_are_not_kept_nothing_is_drafted_any_more() -> None:
    """A leaf is worth what chains of its length were: nodes below one that never holds cost rows for nothing."""
    found = {}
    for kept in (True, False):
        drafter, text = RecyclingDrafter(successors=2), [0, 1, 2, 3] * 4
        for _ in range(150):
            follower = (text[-1] + 1) % 4
            chain = Draft.chain([follower if kept else (text[-1] + 2) % 4])
            draft = drafted(drafter, text, given=chain)
            tokens = (text[-1], *draft.nodes.tokens)
            accepted = (0,) if kept else ()
            emitted = (follower, (follower + 1) % 4) if kept else (follower,)
            rows = [row((token + 1) % 4, 9) for token in tokens]
            shown(drafter, draft, rows, list(emitted), accepted=accepted)
            text += emitted
        found[kept] = len(drafted(drafter, text, given=chain)) - 1
    assert found[True] >= 2
    assert found[False] == 0
