"""`NodeValues`: the measured chance that a drafted token is kept, by what is known of it before it is scored."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from outrider.core.records import RoundResult


class NodeValues:
    """Per kind of node: of those whose parent was kept, the share that was kept too.

    A *kind* is whatever a drafter knows of a node (its rank among its siblings, how often it was seen, ...); with noise
    shared between draft and target that says more than the draft's own probability (docs/exactness.md). Each kind
    starts at a prior, which counts as `weight` nodes. One per sequence: what one text shows moves no draft of another.
    """

    def __init__(
        self, priors: Mapping[Hashable, float], *, otherwise: float = 0.1, weight: float = 8.0
    ) -> None:
        self._priors, self._otherwise, self._weight = priors, otherwise, weight
        self._kept: dict[Hashable, float] = {}
        self._reached: dict[Hashable, float] = {}
        self._logs: dict[Hashable, float] = {}  # of the chances asked for since they last changed

    def chance(self, kind: Hashable) -> float:
        """The chance that a node of this kind is kept, given that its parent is; strictly between 0 and 1."""
        prior = self._priors.get(kind, self._otherwise) * self._weight
        chance = (prior + self._kept.get(kind, 0.0)) / (self._weight + self._reached.get(kind, 0.0))
        return min(max(chance, 1e-6), 1.0 - 1e-6)

    def log_chances(self, kinds: Sequence[Hashable]) -> list[float]:
        """The logarithms of the chances of some kinds."""
        logs = self._logs
        try:
            return [logs[kind] for kind in kinds]
        except KeyError:
            logs.update((kind, math.log(self.chance(kind))) for kind in kinds if kind not in logs)
            return [logs[kind] for kind in kinds]

    def observe(
        self, result: RoundResult, kinds: Mapping[int, Hashable], goes_on: Hashable | None = None
    ) -> None:
        """Counts what a round showed. `kinds` names nodes of `result.draft`; others are not counted.

        `goes_on`: the kind of rows below which such nodes stood, kept where one of those was.
        """
        if not kinds:
            return
        accepted, children = result.accepted, result.draft.nodes.children
        for row in (0, *(node + 1 for node in accepted)):  # those that the target decided below
            found = [node for node in children[row] if node in kinds]
            for node in found:
                self.count(kinds[node], kept=node in accepted)
            if found and goes_on is not None:
                self.count(goes_on, kept=any(node in accepted for node in found))

    def count(self, kind: Hashable, *, kept: bool) -> None:
        """Counts one node whose parent was kept, or what it would have been."""
        self._logs.pop(kind, None)
        self._reached[kind] = self._reached.get(kind, 0.0) + 1.0
        if kept:
            self._kept[kind] = self._kept.get(kind, 0.0) + 1.0


class GivenChains:
    """How often the chains that a list's earlier methods drafted were kept whole, by their length. One per sequence.

    What hangs below a leaf is worth no more than the leaf.
    """

    _LONGEST = 8  # longer ones are told apart no further
    _PRIOR = 0.7  # per token

    def __init__(self) -> None:
        self._values = NodeValues({length: self._PRIOR**length for length in range(1, self._LONGEST + 1)})

    def chance(self, length: int) -> float:
        """The chance that a chain of this length, given for the round to come, is kept whole; 1 for none."""
        return self._values.chance(min(length, self._LONGEST)) if length else 1.0

    def observe(self, result: RoundResult, length: int) -> None:
        """Counts what became of a chain of this length, none for 0."""
        if length:
            self._values.count(min(length, self._LONGEST), kept=length - 1 in result.accepted)
