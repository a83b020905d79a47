"""Speculation leaves every text unchanged: token for token the oracle's, in float64, with no tie at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from changing import ChangingController
from toy_cells import METHODS, Job, Method, assert_texts, jobs, share_of_long_rounds, toy_target, write

from outrider.core.records import Guarantee
from outrider.core.rules import RuleBook
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts

by_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


def check_alone(method: Method, first: int, step: int) -> None:
    for index, job in list(enumerate(jobs()))[first::step]:
        assert_texts([job], write(method, [job], 1 + index % 8))


@by_method
def test_a_request_alone_writes_its_plain_text(method: Method) -> None:
    check_alone(method, METHODS.index(method) % 4, 4)


@pytest.mark.full
@by_method
def test_a_request_of_any_setting_alone_writes_its_plain_text(method: Method) -> None:
    check_alone(method, 0, 1)


@by_method
def test_requests_of_mixed_settings_in_one_batch_write_their_plain_texts(method: Method) -> None:
    running = write(method, jobs(), 4)
    assert_texts(jobs(), running)
    if method.good:
        assert share_of_long_rounds([done.stats for done in running]) >= 0.5


def third_of(method: Method, turn: int) -> tuple[Job, ...]:
    """Every third setting; methods that follow each other in the list have different ones."""
    return jobs()[(METHODS.index(method) + turn) % 3 :: 3]


@by_method
def test_the_order_and_the_size_of_the_batch_change_nothing(method: Method) -> None:
    backwards = third_of(method, 0)[::-1]
    assert_texts(backwards, write(method, backwards, 3, max_batch=3))


@by_method
def test_a_draft_length_that_changes_every_round_changes_nothing(method: Method) -> None:
    some = third_of(method, 1)
    assert_texts(some, write(method, some, ChangingController(method.budget(8)), max_batch=6))


@by_method
def test_a_request_may_switch_speculation_off_or_cap_it_for_itself_alone(method: Method) -> None:
    asked = [{}, {"off": True}, {"n_max": 2}, {"n_max": 0}]
    free = next(job for job in jobs() if job.name == "greedy")
    repeating = (1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3)  # something to look up
    some = [
        Job(str(number), replace(free.request, request_id=number, prompt=repeating, sampling=replace(
            free.request.sampling, speculative=settings)))
        for number, settings in enumerate(asked)
    ]  # fmt: skip
    target = toy_target()
    parts = Parts(target, method.build(target, some), RuleBook(), FixedController(method.budget(5)))
    engine, depths = Engine(parts), [0] * len(some)
    running = [engine.submit(job.request) for job in some]
    while engine.unfinished:
        for result in engine.step():
            depths[result.sequence_id] = max(depths[result.sequence_id], *result.draft.nodes.depths, 0)
    assert_texts(some, running)
    assert [done.stats.num_draft_tokens for done in (running[1], running[3])] == [0, 0]
    assert depths[2] == min(2, depths[0])
    assert depths[0] == 0 if method.name == "none" else 2 < depths[0] <= 5


@pytest.mark.parametrize("depth", range(1, 9))
def test_every_draft_length_gives_the_same_texts(depth: int) -> None:
    some = [job for job in jobs() if job.name in ("greedy", "sampled", "all")]
    for method in METHODS[depth % 5 :: 5]:
        assert_texts(some, write(method, some, depth))


@by_method
def test_greedy_requests_write_their_plain_text_under_same_distribution(method: Method) -> None:
    greedy = [job for job in jobs(Guarantee.SAME_DISTRIBUTION) if job.request.sampling.greedy]
    assert len(greedy) == 4
    assert_texts(greedy, write(method, greedy, 4))


def test_a_draft_that_equals_the_target_is_kept_whole() -> None:
    twin = next(m for m in METHODS if m.name == "draft = target, chain")
    for job, done in zip(jobs(), write(twin, jobs(), 4)):
        assert done.stats.num_rounds == -(-len(job.expected.token_ids) // 5), (
            "every round but the last emits K + 1"
        )


def test_a_wrong_draft_costs_rounds_and_nothing_else() -> None:
    wrong = next(m for m in METHODS if m.name == "scripted, all wrong")
    for job, done in zip(jobs(), write(wrong, jobs(), 4)):
        assert done.stats.num_accepted_draft_tokens == 0
        assert done.stats.num_rounds == len(job.expected.token_ids)
