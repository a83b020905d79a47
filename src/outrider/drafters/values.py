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

    def observe(self, result: RoundResult, kinds: Mapping[int, Hashable]) -> None:
        """Counts what a round showed. `kinds` names nodes of `result.draft`; others are not counted."""
        for row in self._reached_rows(result):
            for node in result.draft.nodes.children[row]:
                if node in kinds:
                    self.count(kinds[node], kept=node in result.accepted)

    def count(self, kind: Hashable, *, kept: bool) -> None:
        """Counts one node whose parent was kept, or what it would have been."""
        self._logs.pop(kind, None)
        self._reached[kind] = self._reached.get(kind, 0.0) + 1.0
        if kept:
            self._kept[kind] = self._kept.get(kind, 0.0) + 1.0

    @staticmethod
    def _reached_rows(result: RoundResult) -> Sequence[int]:
        """Rows that the target decided below: the pending token and every kept node."""
        return [0, *(node + 1 for node in result.accepted)]


class GivenChains:
    """How often the chains that a list's earlier methods drafted were kept whole, by their length. One per sequence.

    What hangs below a leaf is worth no more than the leaf.
    """

    _LONGEST = 8  # longer ones are told apart no further
    _PRIOR = 0.7  # per token

    def __init__(self) -> None:
        self._values = NodeValues({length: self._PRIOR**length for length in range(1, self._LONGEST + 1)})
        self._length = 0

    def chance(self, length: int) -> float:
        """The chance that a chain of this length, given for the round to come, is kept whole; 1 for none."""
        self._length = length
        return self._values.chance(min(length, self._LONGEST)) if length else 1.0

    def observe(self, result: RoundResult) -> None:
        """Counts what became of the chain last asked about."""
        if self._length:
            self._values.count(min(self._length, self._LONGEST), kept=self._length - 1 in result.accepted)
        self._length = 0
