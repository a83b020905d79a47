"""`TrainingProgress`: an observer that shows a run on a stream, one live line on a terminal, rare lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from outrider.train.curve import Curve, Evaluation, TrainPoint

_REDRAW = 0.2  # seconds between two drawings of a live line
_LOG_EVERY = 15.0  # seconds between two lines of a log
_RECENT = 30  # steps that the loss, the overlaps and the speed shown are means of


class TrainingProgress:
    """Loss, acceptance by position, tokens/s and time left; a line that stays for every evaluation."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """None is stderr; `clock` tells seconds."""
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._clock = clock
        self._recent: deque[TrainPoint] = deque(maxlen=_RECENT)
        self._steps = self._first = 0
        self._began = self._drawn = clock()

    def doing(self, what: str) -> None:
        """Says it at once; on a terminal only until there is something else to say."""
        self._write(f"\r\x1b[K{what} ..." if self._live else f"{what} ...\n")

    def began(self, steps: int, curve: Curve) -> None:
        self._steps, self._first = steps, len(curve.points)
        self._began = self._clock()
        self._recent.clear()
        if curve.points:
            self.say(f"going on after step {len(curve.points):,} of {steps:,}")

    def stepped(self, point: TrainPoint) -> None:
        self._recent.append(point)
        now = self._clock()
        last = point.step == self._steps
        if now - self._drawn < (_REDRAW if self._live else _LOG_EVERY) and not last:
            return
        self._drawn = now
        line = self._line(point, now)
        self._write(f"\r\x1b[K{line}" if self._live else f"{line}\n")

    def evaluated(self, evaluation: Evaluation) -> None:
        chain = evaluation.chain
        rounds = (
            f", {chain.tokens_per_pass:.2f} tokens per pass with chains of {chain.num_spec_tokens}"
            if chain.num_rounds
            else ""
        )
        self.say(
            f"held out after step {evaluation.step:,} ({evaluation.tokens:,} tokens): "
            f"loss {_shares(evaluation.losses)}, acceptance {_shares(evaluation.overlaps)}, "
            f"right {_shares(evaluation.hits)}{rounds}"
        )

    def saved(self, step: int) -> None:
        """Goes unsaid."""

    def _line(self, point: TrainPoint, now: float) -> str:
        recent = self._recent
        loss = sum(one.loss for one in recent) / len(recent)
        overlaps = [sum(column) / len(recent) for column in zip(*(one.overlaps for one in recent))]
        done = point.step - self._first
        left = (now - self._began) / done * (self._steps - point.step)
        parts = (f"step {point.step:,} of {self._steps:,}", f"loss {loss:.3f}",
                 f"acceptance {_shares(overlaps)}", *self._speed(), f"{duration(left)} left")  # fmt: skip
        return ", ".join(parts)

    def _speed(self) -> Sequence[str]:
        """Tokens trained on per second, once two steps tell."""
        first, last = self._recent[0], self._recent[-1]
        seconds = last.seconds - first.seconds
        return (f"{(last.tokens - first.tokens) / seconds:,.0f} tokens/s",) if seconds > 0 else ()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _shares(values: Sequence[float]) -> str:
    """One number per position."""
    return " ".join(f"{value:.2f}" for value in values)


def duration(seconds: float) -> str:
    """Seconds as people say them: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
