"""Branching noise: runs the code that decides by noise once per outcome, with the outcome's probability.

So a rule, a drafter or a whole round is enumerated exactly, on the very code that runs in production.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from outrider.core.law import Floats, NodeLaw
from outrider.core.noise import Contest, Place

T = TypeVar("T")


class BranchingNoise:
    """One replay: follows `script`, then takes the first possible outcome of every further decision."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = list(script)
        self._answers: dict[tuple[str, Place], object] = {}
        self.trail: list[tuple[int, int]] = []  # (outcome taken, number of outcomes)
        self.probability = 1.0

    def argmax(self, law: NodeLaw, place: Place) -> int:
        return self._once("text", place, lambda: self._token(law))

    def ranked(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        if law.greedy:
            return (law.token(0),) if law.tokens is not None else (int(law.logits.argmax()),)
        return self._once("ranked", place, lambda: self._distinct(law, count))

    def contest(self, law: NodeLaw, count: int, place: Place) -> Contest:
        """The ranks alone: a drafter that looked at leads would be shown none."""
        tokens = self.ranked(law, count, place)
        return Contest(tokens, (math.inf,) * len(tokens))

    def draw(self, law: NodeLaw, count: int, place: Place) -> tuple[int, ...]:
        return self._once("draw", place, lambda: self._distinct(law, count))

    def accept(self, probability: float, place: Place) -> bool:
        chance = min(1.0, max(0.0, probability))
        return self._once("accept", place, lambda: self._branch([chance, 1.0 - chance]) == 0)

    def choose(self, probs: Floats, place: Place) -> int:
        return self._once("choose", place, lambda: self._branch([float(p) for p in probs / probs.sum()]))

    def _once(self, kind: str, place: Place, decide: Callable[[], T]) -> T:
        """Noise is pure: the same question gets the same answer."""
        if (kind, place) not in self._answers:
            self._answers[kind, place] = decide()
        return self._answers[kind, place]  # type: ignore[return-value]

    def _token(self, law: NodeLaw) -> int:
        if law.greedy:
            return law.token(int(law.logits.argmax()))
        return law.token(self._branch([float(p) for p in law.support_probs]))

    def _distinct(self, law: NodeLaw, count: int) -> tuple[int, ...]:
        weights = [float(p) for p in law.support_probs]
        tokens: list[int] = []
        while len(tokens) < count and any(weights):
            total = sum(weights)
            index = self._branch([w / total for w in weights])
            weights[index] = 0.0
            tokens.append(law.token(index))
        return tuple(tokens)

    def _branch(self, probabilities: Sequence[float]) -> int:
        """Takes one of the outcomes that can happen; which one is up to the script."""
        possible = [index for index, p in enumerate(probabilities) if p > 0.0]
        taken = self._script[len(self.trail)] if len(self.trail) < len(self._script) else 0
        self.trail.append((taken, len(possible)))
        self.probability *= probabilities[possible[taken]]
        return possible[taken]


def outcomes(run: Callable[[BranchingNoise], T]) -> Iterator[tuple[float, T]]:
    """Every outcome of `run` with its probability; `run` must decide by its noise alone."""
    script: list[int] = []
    while True:
        noise = BranchingNoise(script)
        value = run(noise)
        yield noise.probability, value
        trail = list(noise.trail)
        while trail and trail[-1][0] + 1 == trail[-1][1]:
            trail.pop()
        if not trail:
            return
        script = [taken for taken, _ in trail[:-1]] + [trail[-1][0] + 1]
