"""What a run shows of itself."""

from __future__ import annotations

import io

import pytest

from outrider.core.completion import SpeculationStats
from outrider.train.curve import Curve, Evaluation, TrainPoint
from outrider.train.progress import TrainingProgress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds told by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def point(step: int) -> TrainPoint:
    return TrainPoint(step, 2.0 / step, (0.5, 0.25), 1e-3, 1000 * step, 2.0 * step)


def run(stream: io.StringIO, first: int, seconds: float) -> str:
    clock = Clock()
    progress = TrainingProgress(stream, clock)
    progress.began(10, Curve(tuple(point(step) for step in range(1, first))))
    for step in range(first, 11):
        clock.now += seconds
        progress.stepped(point(step))
        progress.saved(step)
    return stream.getvalue()


def test_a_log_has_a_line_now_and_then_and_one_at_the_end() -> None:
    lines = run(io.StringIO(), 1, 4.0).splitlines()
    assert [line.split(",")[0] for line in lines] == ["step 4 of 10", "step 8 of 10", "step 10 of 10"]
    assert lines[0] == ("step 4 of 10, loss 1.042, acceptance 0.50 0.25, 500 tokens/s, 24 s left")
    assert lines[-1].endswith("500 tokens/s, 0 s left")


def test_a_terminal_has_one_line_that_is_drawn_again() -> None:
    shown = run(Terminal(), 1, 4.0)
    assert "\n" not in shown
    assert len(shown.split("\r\x1b[K")) == 11


def test_time_left_is_told_from_this_calls_steps_alone() -> None:
    lines = run(io.StringIO(), 5, 20.0).splitlines()
    assert lines[0] == "going on after step 4 of 10"
    assert lines[1].startswith("step 5 of 10")
    assert lines[1].endswith("2 min left")  # five steps of 20 s
    assert "tokens/s" not in lines[1], "one step tells no speed"


def test_what_takes_a_while_is_told_when_it_begins_and_makes_way_on_a_terminal() -> None:
    for stream, shown in (
        (io.StringIO(), "judging 8 texts ...\nfound\n"),
        (Terminal(), "\r\x1b[Kjudging 8 texts ...\r\x1b[Kfound\n"),
    ):
        progress = TrainingProgress(stream, Clock())
        progress.doing("judging 8 texts")
        progress.say("found")
        assert stream.getvalue() == shown


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_an_evaluation_stays_in_view(stream: io.StringIO) -> None:
    chain = SpeculationStats(num_rounds=4, num_emitted_tokens=9, num_spec_tokens=2)
    evaluation = Evaluation(3, (1.5, 2.0), (0.6, 0.4), (0.7, 0.5), chain, tokens=4000)
    TrainingProgress(stream, Clock()).evaluated(evaluation)
    assert stream.getvalue().removeprefix("\r\x1b[K") == (
        "held out after step 3 (4,000 tokens): loss 1.50 2.00, acceptance 0.60 0.40, right 0.70 0.50, "
        "2.25 tokens per pass with chains of 2\n"
    )


def test_durations_read_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (0.4, 89, 90, 3000, 12_000)] == [
        "0 s", "89 s", "2 min", "50 min", "3 h 20 min",
    ]  # fmt: skip
