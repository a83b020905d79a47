"""`check_rule`: an acceptance rule against its guarantee, by enumerating every outcome on small vocabularies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, Floats, NodeLaw
from outrider.core.noise import Noise, Place, RoundNoise
from outrider.core.protocols import AcceptanceRule, Laws
from outrider.core.records import Draft, Group, Guarantee, Verdict
from outrider.core.tree import TokenTree
from outrider.testing.branching import outcomes

_VOCAB = 3
_EXACT = 1e-12
_SEEDS = 100

Conditional = Callable[[tuple[int, ...]], Floats]
"""A law over texts: tokens so far -> probabilities [vocab] of the next one."""


def check_rule(rule: AcceptanceRule, *, topk: Sequence[int] = (1, 2)) -> None:
    """Asserts that `rule` is pure and keeps the law of every text (1e-12), and its `guarantee`.

    Drafts are drawn as rules may expect them: `topk` children per node (1: chains; leave 2 out for rules that judge
    chains only), point masses, drawn with and without replacement, both in one node; under laws with zeros,
    one-hot laws, and drafts that equal the target. A `same_text` rule must besides emit plain decoding's tokens
    at every seed. `AssertionError` says which case fails.
    """
    assert rule.guarantee in tuple(Guarantee), f"{rule.guarantee!r} is not a guarantee"
    for case, children in itertools.product(_cases(), topk):
        for draws in _drawers(children):
            what = f"{case.name}, {children} children, {draws.__name__.strip('_').replace('_', ' ')}"
            _keeps_the_law(rule, case, children, draws, what)
    if rule.guarantee is Guarantee.SAME_TEXT:
        for children in topk:
            _keeps_the_text(rule, children)


def law_of_texts(found: Iterable[tuple[float, tuple[int, ...]]], target: Conditional, length: int) -> Floats:
    """The law of the first `length` tokens, [vocab] * length, when a round emits `found` with those probabilities.

    What a round leaves open is filled in from `target`; `law_of_texts([(1.0, ())], target, length)` is the law
    of plain decoding itself.
    """
    total = np.zeros((len(target(())),) * length)
    for probability, emitted in found:
        done = emitted[:length]
        total[done] += probability * _continuation(target, done, length - len(done))
    return total


def _continuation(target: Conditional, done: tuple[int, ...], length: int) -> Floats:
    if length == 0:
        return np.ones(())
    probs = target(done)
    return np.stack([p * _continuation(target, (*done, token), length - 1) for token, p in enumerate(probs)])


@dataclass(frozen=True, eq=False)
class _Case:
    name: str
    target: Conditional
    proposed: Conditional

    @cached_property
    def law(self) -> Callable[[tuple[int, ...]], NodeLaw]:
        """The target's law after a path, built once."""
        return cache(lambda path: NodeLaw.of_probs(self.target(path)))

    def laws(self, draft: Draft) -> Laws:
        return lambda row: self.law(draft.nodes.path_tokens(row - 1 if row else None))


def _cases() -> list[_Case]:
    ordinary, other = _table(1, 1.0), _table(2, 1.0)
    sparse, peaked = _sparse(_table(3, 1.0)), _table(4, 0.2)
    return [
        _Case("different laws", ordinary, other),
        _Case("equal laws", ordinary, ordinary),
        _Case("zeros in the target", sparse, other),
        _Case("zeros in the draft", other, sparse),
        _Case("a one-hot draft", ordinary, lambda path: np.eye(_VOCAB)[len(path) % _VOCAB]),
        _Case("a one-hot target", lambda path: np.eye(_VOCAB)[(len(path) + 1) % _VOCAB], peaked),
    ]


def _table(seed: int, evenness: float) -> Conditional:
    """Random rows, one per path; `evenness` is the parameter of the Dirichlet law they come from."""

    @cache
    def row(path: tuple[int, ...]) -> Floats:
        probs = np.random.default_rng((seed, *path)).dirichlet([evenness] * _VOCAB)
        probs.flags.writeable = False  # a rule that changes what it is given fails here
        return probs

    return row


def _sparse(conditional: Conditional) -> Conditional:
    def row(path: tuple[int, ...]) -> Floats:
        probs: Floats = conditional(path).copy()
        probs[sum(path) % _VOCAB] = 0.0
        probs /= probs.sum()
        return probs

    return row


Drawer = Callable[[Floats, int, Noise, Place], list[tuple[Group, tuple[int, ...]]]]
"""Groups for `count` children of a node, numbered from 0, with their tokens."""


def _drawers(children: int) -> list[Drawer]:
    return [_point_masses, _drawn] if children == 1 else [_point_masses, _drawn, _one_point_mass_then_drawn]


def _point_masses(
    probs: Floats, count: int, noise: Noise, place: Place
) -> list[tuple[Group, tuple[int, ...]]]:
    best = np.argsort(-probs, kind="stable")[:count]
    return [(Group(POINT_MASS, tuple(range(count))), tuple(best.tolist()))]


def _drawn(probs: Floats, count: int, noise: Noise, place: Place) -> list[tuple[Group, tuple[int, ...]]]:
    tokens = noise.draw(NodeLaw.of_probs(probs), count, place)
    law = Drawn(probs) if count == 1 else DrawnWithoutReplacement(probs)
    return [(Group(law, tuple(range(len(tokens)))), tokens)]


def _one_point_mass_then_drawn(probs: Floats, count: int, noise: Noise,
                               place: Place) -> list[tuple[Group, tuple[int, ...]]]:  # fmt: skip
    first = int(probs.argmax())
    rest = probs.copy()
    rest[first] = 0.0
    groups: list[tuple[Group, tuple[int, ...]]] = [(Group(POINT_MASS, (0,)), (first,))]
    if rest.any():
        rest /= rest.sum()
        groups.append((Group(Drawn(rest), (1,)), noise.draw(NodeLaw.of_probs(rest), 1, place)))
    return groups


def _draft(proposed: Conditional, children: int, depth: int, draws: Drawer, noise: Noise) -> Draft:
    """Every node above `depth` gets children; whole levels, in order."""
    paths: list[tuple[int, ...]] = [()]
    parents: list[int | None] = []
    groups: list[tuple[Group, ...]] = []
    for row in itertools.count():
        if row == len(paths):
            break
        path, below = paths[row], []
        if len(path) < depth:
            for group, tokens in draws(proposed(path), children, noise, Place(len(path), row)):
                first = len(paths) - 1
                below.append(Group(group.law, tuple(range(first, first + len(tokens)))))
                paths += [(*path, token) for token in tokens]
                parents += [row - 1 if row else None] * len(tokens)
        groups.append(tuple(below))
    return Draft(TokenTree(tuple(path[-1] for path in paths[1:]), tuple(parents)), tuple(groups))


def _keeps_the_law(rule: AcceptanceRule, case: _Case, children: int, draws: Drawer, what: str) -> None:
    depth = 3 if children == 1 else 2

    def run(noise: Noise) -> tuple[int, ...]:
        draft = _draft(case.proposed, children, depth, draws, noise)
        return _emitted(rule, draft, case.laws(draft), noise, what)

    found = law_of_texts(outcomes(run), case.target, depth)
    wanted = law_of_texts([(1.0, ())], case.target, depth)
    error = float(np.abs(found - wanted).max())
    assert error < _EXACT, f"{what}: the law of the first {depth} tokens is off by {error:.3g}"


def _keeps_the_text(rule: AcceptanceRule, children: int) -> None:
    case = _cases()[0]
    for seed in range(_SEEDS):
        noise = RoundNoise(seed, start=5)
        draft = _draft(case.proposed, children, 3, _point_masses, noise)
        emitted = _emitted(rule, draft, case.laws(draft), noise, f"seed {seed}")
        plain: tuple[int, ...] = ()
        while len(plain) < len(emitted):
            plain += (noise.argmax(case.law(plain), Place(len(plain), 0)),)
        assert emitted == plain, f"seed {seed}: emitted {emitted}, but plain decoding writes {plain}"
        continues = plain in {draft.nodes.path_tokens(node) for node in range(len(draft))}
        assert not continues, f"seed {seed}: stopped after {plain}, though the draft goes on there"


def _emitted(rule: AcceptanceRule, draft: Draft, laws: Laws, noise: Noise, what: str) -> tuple[int, ...]:
    """The tokens of the verdict, which must be a path and the same when asked for again."""
    verdict = rule.judge(draft, laws, noise)
    assert isinstance(verdict, Verdict), f"{what}: judge gave {verdict!r}"
    path = draft.nodes.path(verdict.accepted[-1]) if verdict.accepted else ()
    assert verdict.accepted == path, f"{what}: accepted nodes {verdict.accepted} are not a path"
    assert rule.judge(draft, laws, noise) == verdict, f"{what}: judge is not pure, a second call differs"
    assert verdict.next_token is not None, f"{what}: every row has a law, so a token follows"
    return (*(draft.nodes.tokens[node] for node in path), verdict.next_token)
