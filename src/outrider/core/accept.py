"""Acceptance rules: which drafted tokens stay. Pure functions of a draft, the target's laws and noise.

`NoiseMatch` keeps the text of plain decoding; the others keep its distribution. Sources: Leviathan
2211.17192, recursive rejection 2402.14160, block verification 2403.10444, traversal verification 2505.12398.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.core.law import Drawn, DrawnWithoutReplacement, Floats, PointMass
from outrider.core.noise import Noise, Place
from outrider.core.protocols import Laws
from outrider.core.records import Draft, Guarantee, Verdict
from outrider.errors import ScoreError


class NoiseMatch:
    """Sample-and-match: walk down while the token that plain decoding would emit here was guessed.

    The text does not depend on the draft at all. At temperature 0 the law is greedy and noise is not asked: greedy
    matching is this rule.
    """

    guarantee = Guarantee.SAME_TEXT

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        nodes = draft.nodes
        accepted: list[int] = []
        row = 0
        while True:
            try:
                law = laws(row)
            except ScoreError as error:
                return _without_next(accepted, error)
            token = noise.argmax(law, Place(len(accepted), row))
            child = next((node for node in nodes.children[row] if nodes.tokens[node] == token), None)
            if child is None:
                return Verdict(tuple(accepted), token)
            accepted.append(child)
            row = child + 1


class TokenLevel:
    """Leviathan/Chen acceptance, token by token; on a tree, recursive rejection over siblings, top down."""

    guarantee = Guarantee.SAME_DISTRIBUTION

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        accepted: list[int] = []
        row = 0
        while True:
            try:
                target = laws(row).probs
            except ScoreError as error:
                return _without_next(accepted, error)
            for proposal in proposals(draft, row):
                ratio = proposal.ratio(target)
                if noise.accept(ratio, Place(len(accepted), proposal.node + 1)):
                    accepted.append(proposal.node)
                    break
                target = _normalised(proposal.residual(1.0, target), otherwise=target)
            else:
                return Verdict(tuple(accepted), noise.choose(target, Place(len(accepted), row)))
            row = accepted[-1] + 1


class Block:
    """Block verification of a chain: optimal among the rules that see one path (2403.10444)."""

    guarantee = Guarantee.SAME_DISTRIBUTION

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        assert draft.nodes.is_chain, "block verification judges chains"
        chain = [proposal for row in range(len(draft)) for proposal in proposals(draft, row)]
        weights = [1.0]  # P[i]: how likely the first i tokens are under the target, capped along the way
        for row, proposal in enumerate(chain):
            try:
                target = laws(row).probs
            except ScoreError:
                chain = chain[:row]  # judge what leads here; only accepting all of it needs this row's law
                break
            weight = min(1.0, weights[-1] * proposal.ratio(target, cap=np.inf))
            if weight == 0.0:
                break  # no longer prefix can be accepted
            weights.append(weight)
        for length in range(len(weights) - 1, 0, -1):
            keep = weights[length]
            if length < len(chain):
                mass = float(chain[length].residual(keep, laws(length).probs).sum())
                keep = _survival(mass, keep)
            if noise.accept(keep, Place(length - 1, length)):
                return self._stop(length, weights[length], chain, laws, noise)
        return self._stop(0, 1.0, chain, laws, noise)

    def _stop(self, length: int, weight: float, chain: list[Proposal], laws: Laws, noise: Noise) -> Verdict:
        try:
            target = laws(length).probs
        except ScoreError as error:
            return _without_next(range(length), error)
        if length < len(chain):
            target = _normalised(chain[length].residual(weight, target), otherwise=target)
        return Verdict(tuple(range(length)), noise.choose(target, Place(length, length)))


class Traversal:
    """Traversal verification of a tree, leaves first; on a chain it is block verification (2505.12398)."""

    guarantee = Guarantee.SAME_DISTRIBUTION

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        path: list[_Visit] = []  # from the root to the row that is judged
        row, weight = 0, 1.0
        while True:
            try:
                path.append(_Visit(row, weight, laws(row).probs, proposals(draft, row)))
            except ScoreError as error:
                if _is_reached(row, weight, len(path), noise):
                    return _without_next([*_nodes(path), row - 1] if path else (), error)
                path[-1].refuse()
            while (child := path[-1].next_child()) is None:
                last, depth = path[-1], len(path) - 1
                if _is_reached(last.row, last.weight, depth, noise):
                    return Verdict(tuple(_nodes(path)), noise.choose(last.target, Place(depth, last.row)))
                path.pop()
                path[-1].refuse()
            row, weight = child


class _Visit:
    """A row under traversal: what it is worth, and what is left to emit there, after the children refused so far."""

    def __init__(self, row: int, weight: float, target: Floats, children: Iterator[Proposal]) -> None:
        self.row = row
        self.weight = weight
        self.target = target
        self._children = children

    def next_child(self) -> tuple[int, float] | None:
        """The row of the next child that can be accepted, and what it is worth; those that cannot be are refused."""
        for child in self._children:
            self._child = child
            weight = min(1.0, self.weight * child.ratio(self.target, cap=np.inf))
            if weight > 0.0:
                return child.node + 1, weight
            self.refuse()
        return None

    def refuse(self) -> None:
        """Refuses the child that `next_child` named last."""
        rest = self._child.residual(self.weight, self.target)
        self.weight = _survival(float(rest.sum()), self.weight)
        self.target = _normalised(rest, otherwise=self.target)


def _is_reached(row: int, weight: float, depth: int, noise: Noise) -> bool:
    """Whether a row worth `weight` is accepted when none below it is; the root always is."""
    return row == 0 or noise.accept(weight, Place(depth - 1, row))


def _nodes(path: Sequence[_Visit]) -> list[int]:
    return [visit.row - 1 for visit in path[1:]]


@dataclass(frozen=True, eq=False)
class Proposal:
    """One drafted node with the law it was drawn by, given the siblings before it; None is a point mass."""

    node: int
    token: int
    drawn_by: Floats | None  # [vocab]

    def ratio(self, target: Floats, cap: float = 1.0) -> float:
        """target(token) / drawn_by(token), at most `cap`; 0 where the target has no mass."""
        mass = float(target[self.token])
        if self.drawn_by is None or mass == 0.0:
            return mass
        proposed = float(self.drawn_by[self.token])
        return min(cap, mass / proposed) if proposed > 0.0 else cap

    def residual(self, weight: float, target: Floats) -> Floats:
        """(weight * target - drawn_by)+, unnormalised; what is left to emit when this node is refused."""
        rest: Floats = weight * target
        if self.drawn_by is None:
            rest[self.token] = 0.0  # weight * target is at most 1 there
        else:
            rest -= self.drawn_by
            np.maximum(rest, 0.0, out=rest)
        return rest


def proposals(draft: Draft, row: int) -> Iterator[Proposal]:
    """The children of a row in the order in which they were chosen, each with the law it was drawn by."""
    tokens = draft.nodes.tokens
    for group in draft.groups[row]:
        if isinstance(group.law, PointMass):
            yield from (Proposal(node, tokens[node], None) for node in group.nodes)
        elif isinstance(group.law, Drawn):
            yield Proposal(group.nodes[0], tokens[group.nodes[0]], group.law.probs)
        else:
            assert isinstance(group.law, DrawnWithoutReplacement)
            yield from _without_replacement(group.nodes, tokens, group.law.probs)


def _without_replacement(
    nodes: tuple[int, ...], tokens: tuple[int, ...], probs: Floats
) -> Iterator[Proposal]:
    remaining = probs
    for node in nodes:
        yield Proposal(node, tokens[node], remaining)
        remaining = remaining.copy()
        remaining[tokens[node]] = 0.0
        remaining = _normalised(remaining, otherwise=remaining)


def _without_next(accepted: Sequence[int], error: ScoreError) -> Verdict:
    """The verdict where the text leads to a row without a law; raises where that is the first row."""
    if not accepted:
        raise error
    return Verdict(tuple(accepted), None)


def _survival(mass: float, weight: float) -> float:
    """How much a node is still worth after a child was refused: S / (S + 1 - weight)."""
    rest = mass + 1.0 - weight
    return mass / rest if rest > 0.0 else 1.0


def _normalised(weights: Floats, otherwise: Floats) -> Floats:
    """Weights divided by their sum; `otherwise` where only rounding has left no mass."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise
