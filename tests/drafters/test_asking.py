"""When a model is asked for drafts: while the text keeps what they cost, and now and then to see whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest
import torch

from outrider.core.protocols import Chunk
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, RoundResult, Scores
from outrider.drafters.asking import Asking
from outrider.drafters.growth import GrowthSettings
from outrider.drafters.self_draft import SelfDrafter
from outrider.models.row_costs import FREE, DraftCosts, RowCosts, draft_costs
from outrider.testing.toy import ToyTarget

CHAIN = Draft.chain([1, 2])
COSTS = DraftCosts(RowCosts.linear(0.1), 0.1, 0.2)


def result(accepted: tuple[int, ...], draft: Draft = CHAIN, sequence_id: int = 0) -> RoundResult:
    return RoundResult(sequence_id, (*accepted, 0), accepted, draft, Scores(torch.empty(0)))


def asked(asking: Asking, kept: Sequence[int], price: float, given: int = 0) -> list[bool]:
    """Whether each round asks; round i keeps `kept[i]` of what it drafted, if it did."""
    answers = []
    for count in kept:
        answers.append(asking.asks(given))
        if answers[-1]:
            asking.drafted(given, 2, price)
        asking.observe(result(tuple(range(given + count))))
    return answers


def runs(answers: Sequence[bool]) -> list[tuple[bool, int]]:
    return [(answer, len([*group])) for answer, group in groupby(answers)]


def test_a_model_whose_drafts_keep_their_price_is_asked_in_every_round() -> None:
    assert all(asked(Asking(), [0, 1] * 200, 0.4))


def test_a_model_whose_drafts_are_never_kept_is_left_alone_for_longer_and_longer() -> None:
    lengths = runs(asked(Asking(), [0] * 400, 0.4))
    assert [answer for answer, _ in lengths[:6]] == [True, False] * 3
    assert [length for answer, length in lengths[:-1] if not answer][:4] == [16, 32, 64, 64]
    assert {length for answer, length in lengths[2:-1] if answer} == {4}


def test_a_text_that_changes_is_drafted_for_again() -> None:
    asking = Asking()
    assert not all(asked(asking, [0] * 100, 0.4))
    assert all(asked(asking, [2] * 200, 0.4)[-80:])


def test_what_hangs_below_chains_of_others_is_looked_at_apart() -> None:
    asking = Asking()
    assert not all(asked(asking, [0] * 100, 0.4))
    assert all(asked(asking, [1] * 100, 0.4, given=1))


def test_of_a_given_chain_only_what_was_added_counts() -> None:
    asking, below = Asking(), 0
    for _ in range(100):
        if asking.asks(2):
            below += 1
            asking.drafted(2, 1, 0.4)
        asking.observe(result((0, 1), Draft.chain([1, 2, 3])))
    assert below < 50


def sizes(costs: DraftCosts, texts: Sequence[float]) -> list[list[int]]:
    """Sizes of the drafts of 120 rounds of texts side by side; a text keeps such a share of its drafts, whole."""
    target = ToyTarget(8)
    contexts = [Context.of([1, 2, 3], sequence_id=text) for text in range(len(texts))]
    target.extend([Chunk(text, [1, 2]) for text in range(len(texts))])
    drafter = SelfDrafter(target, [0], settings=GrowthSettings(costs=costs))
    found: list[list[int]] = [[] for _ in texts]
    for turn in range(120):
        drafts = drafter.propose(contexts, [Budget(2, 2)] * len(texts), [EMPTY_DRAFT] * len(texts))
        for text, draft in enumerate(drafts):
            found[text].append(len(draft))
        kept = [int((turn + 1) * share) > int(turn * share) for share in texts]
        drafter.observe(
            [
                result(tuple(range(len(draft))) if whole else (), draft, text)
                for text, (draft, whole) in enumerate(zip(drafts, kept))
            ]
        )
    return found


def test_texts_decide_alone_as_they_do_side_by_side() -> None:
    texts = (0.0, 0.9, 0.2)
    together = sizes(COSTS, texts)
    assert together == [sizes(COSTS, [share])[0] for share in texts]
    assert together[0].count(0) > 60
    assert together[1].count(0) == 0


def test_drafts_that_cost_nothing_are_always_asked_for() -> None:
    assert sizes(FREE, [0.0])[0].count(0) == 0


def test_the_price_of_a_draft_is_what_the_round_would_have_made_of_it() -> None:
    assert COSTS.price(3, 2) == pytest.approx(0.2 + 2 * 0.1 + 2 * 0.1)
    assert COSTS.price(4, 1, promised=3.0, given=3) == pytest.approx((0.2 + 0.1 + 0.1) * 3.0 / 1.2)
    assert FREE.price(9, 5) == 0.0


def test_a_forward_of_unknown_size_counts_as_a_tenth_of_a_pass() -> None:
    target = ToyTarget(8)
    unknown = draft_costs(target, None)
    assert unknown == draft_costs(target, 1000), "the toy does not tell its own size"
    assert 0.1 < unknown.level < 0.2
