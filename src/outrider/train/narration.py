"""`Narration`: a whole run told on a stream, from what it will cost to what the draft came to."""

from __future__ import annotations

from typing import TextIO

from outrider.core.completion import SpeculationStats
from outrider.train.curve import Curve, Evaluation, TrainPoint
from outrider.train.estimate import Estimate
from outrider.train.live import Live
from outrider.train.plan import Plan
from outrider.train.progress import TrainingProgress, duration


class Narration:
    """Fulfils `JobObserver`; the loop's own part is told by `TrainingProgress`."""

    def __init__(self, stream: TextIO) -> None:
        self._training = TrainingProgress(stream)

    def estimated(self, found: Estimate) -> None:
        for line in found.lines():
            self._training.say(line)

    def answered(self, texts: int, tokens: int, seconds: float) -> None:
        self._training.say(f"answered {texts} prompts, {tokens:,} tokens, {duration(seconds)}")

    def planned(self, plan: Plan) -> None:
        self._training.say(f"training {plan.steps} steps on {plan.texts} answers")

    def doing(self, what: str) -> None:
        self._training.doing(what)

    def began(self, steps: int, curve: Curve) -> None:
        self._training.began(steps, curve)

    def stepped(self, point: TrainPoint) -> None:
        self._training.stepped(point)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._training.evaluated(evaluation)

    def saved(self, step: int) -> None:
        self._training.saved(step)

    def proven(self, live: Live, offline: SpeculationStats) -> None:
        self._training.say(
            f"live on held-out prompts: {live.stats.tokens_per_pass:.2f} tokens per pass "
            f"({offline.tokens_per_pass:.2f} counted offline)"
        )
