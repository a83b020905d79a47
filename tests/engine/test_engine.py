"""The engine: admission, prefill, forks, aborts; nothing of one request touches another."""

from __future__ import annotations

import pytest

from outrider.core.records import Budget, FinishReason, Guarantee, Request
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters.lookup import NgramDrafter
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.testing.scripted import ScriptedDrafter
from outrider.testing.toy import ToyTarget


def engine_of(target: ToyTarget, *, max_batch: int = 4) -> Engine:
    parts = Parts(target, NgramDrafter(1, 3), RuleBook(), FixedController(Budget(4, 4)), 4)
    return Engine(parts, max_batch=max_batch)


def request(number: int, prompt: tuple[int, ...] = (1, 2, 3), **fields: object) -> Request:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **fields})  # type: ignore[arg-type]
    return Request(number, prompt, sampling, seed=number, guarantee=Guarantee.SAME_TEXT)


def test_more_requests_than_fit_are_served_in_turn_and_freed() -> None:
    target = ToyTarget(16)
    engine = engine_of(target, max_batch=2)
    sequences = [engine.submit(request(i, (i, i + 1))) for i in range(5)]
    run_to_end(engine, sequences)
    assert [s.finish_reason for s in sequences] == [FinishReason.LENGTH] * 5
    assert engine.unfinished == 0
    assert all(target.cached_length(i) == 0 for i in range(5))


def test_choices_of_one_prompt_share_its_prefill() -> None:
    target = ToyTarget(16)
    engine = engine_of(target)
    prompt = (1, 2, 3, 4)
    run_to_end(engine, [engine.submit(request(i, prompt, temperature=1.0)) for i in range(3)])
    assert target.calls["extend"] == 1
    assert target.calls["fork"] == 2


def test_an_abort_leaves_the_others_as_they_were() -> None:
    alone = engine_of(ToyTarget(16))
    expected = alone.submit(request(1))
    run_to_end(alone, [expected])
    target = ToyTarget(16)
    engine = engine_of(target)
    kept, aborted = engine.submit(request(1)), engine.submit(request(2, (4, 5)))
    engine.step()
    engine.abort(aborted)
    run_to_end(engine, [kept])
    assert aborted.finish_reason is FinishReason.ABORT
    assert aborted.token_ids
    assert kept.token_ids == expected.token_ids
    assert target.cached_length(2) == 0


def test_a_request_aborted_while_it_waits_never_runs() -> None:
    engine = engine_of(ToyTarget(16), max_batch=1)
    first, waiting = engine.submit(request(1)), engine.submit(request(2))
    engine.step()
    engine.abort(waiting)
    run_to_end(engine, [first])
    assert waiting.token_ids == ()
    assert engine.unfinished == 0


def test_an_interruption_aborts_the_callers_requests_and_the_engine_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = ToyTarget(16)
    engine = engine_of(target)
    sequence = engine.submit(request(1))
    engine.step()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target, "score", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_to_end(engine, [sequence])
    assert sequence.finish_reason is FinishReason.ABORT
    assert sequence.token_ids
    again = engine.submit(request(2))
    run_to_end(engine, [again])
    assert again.finish_reason is FinishReason.LENGTH


def test_a_broken_row_fails_its_request_alone() -> None:
    nan = float("nan")
    target = ToyTarget.from_table({(): (0.2, 0.5, 0.3), (2, 0): (nan, nan, nan)})
    engine = engine_of(target)
    good, bad = engine.submit(request(1, (0, 1))), engine.submit(request(2, (2, 0)))
    run_to_end(engine, [good, bad])
    assert good.finish_reason is FinishReason.LENGTH
    assert bad.finish_reason is FinishReason.ABORT
    assert bad.token_ids == ()
    assert "NaN" in (bad.error or "")
    assert target.cached_length(2) == 0


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_row_without_a_law_is_only_missed_by_a_text_that_needs_it(guarantee: Guarantee, depth: int) -> None:
    """After the end of a text nothing is asked; before it, what plain decoding had written stays."""
    nan = float("nan")
    sure = {1: (0, 0, 1, 0), 2: (0, 0, 0, 1)}  # 1 is followed by 2, 2 by 3, and after 3 the model is broken
    table = {(): (0.25,) * 4, **{(t,): row for t, row in sure.items()}, (3,): (nan,) * 4}
    for stop_ids, reason in (((3,), FinishReason.STOP), ((), FinishReason.ABORT)):
        target = ToyTarget.from_table(table)
        drafter = ScriptedDrafter({1: (1, 2, 3, 0, 0, 0)}, vocab_size=4)
        parts = Parts(target, drafter, RuleBook(), FixedController(Budget(depth, depth)), depth)
        engine = Engine(parts)
        sampling = SamplingParams(temperature=1.0, max_tokens=9, stop_token_ids=stop_ids)
        sequence = engine.submit(Request(1, (1,), sampling, seed=1, guarantee=guarantee))
        run_to_end(engine, [sequence])
        assert sequence.token_ids == (2, 3)
        assert sequence.finish_reason is reason
        assert (sequence.error is None) == (reason is FinishReason.STOP)
