"""The learning curve: what every step and every evaluation of a run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.core.completion import SpeculationStats


@dataclass(frozen=True)
class TrainPoint:
    """What one step came to."""

    step: int  # steps done, this one included
    loss: float
    overlaps: tuple[float, ...]  # by position: mean 1 - TV against the target's law at temperature 1
    rate: float  # the learning rate it took
    tokens: int  # tokens of answers trained on so far, every repetition counted
    seconds: float = field(compare=False)  # spent on the run so far, earlier calls included


@dataclass(frozen=True)
class Evaluation:
    """What the draft came to on held-out texts, position by position of its guesses."""

    step: int  # steps done before
    losses: tuple[float, ...]
    overlaps: tuple[float, ...]  # mean 1 - TV against the target's law at temperature 1
    hits: tuple[float, ...]  # share of likeliest guesses that are the text's token
    chain: SpeculationStats  # rounds of the texts of temperature 0, played back with the longest chain
    tokens: int = 0  # tokens of answers trained on before
    seconds: float = field(default=0.0, compare=False)  # spent on the run so far, this evaluation included


@dataclass(frozen=True)
class Curve:
    """A run so far."""

    points: tuple[TrainPoint, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()

    def plain(self) -> dict[str, Any]:
        """In terms of JSON; `Curve.of` reads it back."""
        return asdict(self)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Curve:
        """The curve that `plain` came from."""
        points = tuple(TrainPoint(**_tupled(point)) for point in plain["points"])
        evaluations = tuple(
            Evaluation(**{**_tupled(one), "chain": SpeculationStats(**_tupled(one["chain"]))})
            for one in plain["evaluations"]
        )
        return Curve(points, evaluations)


def _tupled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
