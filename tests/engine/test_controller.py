"""Controllers: budgets before drafts."""

from __future__ import annotations

from outrider.core.records import Budget, Context
from outrider.engine.controller import BatchSizeController, FixedController


def contexts(count: int) -> list[Context]:
    return [Context.of([1], sequence_id=i) for i in range(count)]


def test_a_fixed_controller_gives_everyone_the_same() -> None:
    assert FixedController(Budget(4, 8)).budgets(contexts(3), 9) == [Budget(4, 8)] * 3


def test_the_draft_length_follows_the_batch_size() -> None:
    controller = BatchSizeController(((1, 2, 5), (3, 4, 0)), Budget(3, 6))
    assert controller.budgets(contexts(2), 2) == [Budget(5, 10)] * 2
    assert controller.budgets(contexts(4), 4) == [Budget(0, 0)] * 4
    assert controller.budgets(contexts(5), 5) == [Budget(3, 6)] * 5


def test_a_tree_budget_holds_for_every_batch_size() -> None:
    controller = BatchSizeController(((1, 1, 8),), Budget(4, 6), most_nodes=6)
    assert controller.budgets(contexts(1), 1) == [Budget(8, 6)]
