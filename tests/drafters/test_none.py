"""Plain decoding drafts nothing and keeps what others drafted."""

from __future__ import annotations

from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft
from outrider.drafters.none import NoDrafter
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget


def test_drafts_come_back_as_they_were() -> None:
    given = [EMPTY_DRAFT, Draft.chain([1])]
    assert NoDrafter().propose([Context.of([1]), Context.of([2])], [Budget(4, 4)] * 2, given) == given


def test_the_contract_is_kept() -> None:
    check_drafter(lambda target: NoDrafter(), lambda: ToyTarget(12))
