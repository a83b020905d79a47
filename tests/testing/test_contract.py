"""The shipped contracts pass what is right, and each kind of mistake fails the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.core.accept import Block, NoiseMatch, TokenLevel, Traversal
from outrider.core.law import Drawn
from outrider.core.noise import Noise, Place
from outrider.core.protocols import AcceptanceRule, Chunk, Drafter, Laws, TargetModel
from outrider.core.records import Budget, Context, Draft, Guarantee, RoundResult, Scores, Verdict
from outrider.drafters.lookup import NgramDrafter
from outrider.testing.contract import check_drafter, check_rule, check_target
from outrider.testing.scripted import ScriptedDrafter
from outrider.testing.toy import ToyTarget

VOCAB = 12


def toy() -> ToyTarget:
    return ToyTarget(VOCAB, sharpness=4.0)


@pytest.mark.parametrize(
    "make_target",
    [
        lambda: ToyTarget(50, order=4, taps=(1,)),
        lambda: ToyTarget(50, order=30, supports_trees=False, max_length=24),
        lambda: ToyTarget(50, order=3, dtype=torch.float32),
    ],
)
def test_toy_targets_keep_the_contract(make_target: Callable[[], TargetModel]) -> None:
    check_target(make_target)


class KeepsEveryNode(ToyTarget):
    def commit(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            self._cached[result.sequence_id] += [
                self._scored[result.sequence_id][0],
                *result.draft.nodes.tokens,
            ]


class KeepsNodesByNumber(ToyTarget):
    """Takes the first nodes for the accepted ones."""

    def commit(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            nodes = result.draft.nodes.tokens[: len(result.kept)]
            self._cached[result.sequence_id] += [self._scored[result.sequence_id][0], *nodes]


class ReadsTreesAsChains(ToyTarget):
    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        return super().score(contexts, [Draft.chain(draft.nodes.tokens) for draft in drafts])


class SharesForks(ToyTarget):
    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        super().fork(parent_id, sequence_id, length)
        self._cached[parent_id] = self._cached[sequence_id]


class RewindsTooFar(ToyTarget):
    def rewind(self, sequence_id: int, length: int) -> None:
        super().rewind(sequence_id, length - 1)


class NeverReleases(ToyTarget):
    def release(self, sequence_id: int) -> None:
        pass


class ChangesWithWidth(ToyTarget):
    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        wobble = 1e-9 * max(len(draft) for draft in drafts)
        found = super().score(contexts, drafts)
        return [Scores(scores.logits + wobble, scores.features) for scores in found]


class WithinTolerance(ChangesWithWidth):
    row_invariant = False


class LosesChunks(ToyTarget):
    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        for chunk in chunks:
            self._cached.pop(chunk.sequence_id, None)
        return super().extend(chunks)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (KeepsEveryNode, "cached_length is"),
        (KeepsNodesByNumber, "cached|commit"),
        (ReadsTreesAsChains, "of a tree and its path"),
        (SharesForks, "cached"),
        (RewindsTooFar, "cached_length is"),
        (NeverReleases, "still caches"),
        (ChangesWithWidth, "row-invariant"),
        (LosesChunks, "cached_length is"),
    ],
)
def test_a_broken_target_is_caught(broken: type[ToyTarget], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_target(lambda: broken(VOCAB, order=30))


def test_a_target_that_is_not_row_invariant_is_held_to_its_tolerance() -> None:
    check_target(lambda: WithinTolerance(VOCAB), tolerance=1e-7)
    with pytest.raises(AssertionError, match="more than 1e-09"):
        check_target(lambda: WithinTolerance(VOCAB), tolerance=1e-9)


class Overspends(NgramDrafter):
    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return super().propose(contexts, [Budget(b.depth + 1, b.nodes + 1) for b in budgets], drafts)


class Replaces(NgramDrafter):
    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return super().propose(contexts, budgets, [Draft.chain(()) for _ in drafts])


class NeverForgets(NgramDrafter):
    def forget(self, sequence_id: int) -> None:
        pass


class DependsOnNeighbours(NgramDrafter):
    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        caps = [Budget(min(b.depth, 4 - len(contexts)), b.nodes) for b in budgets]
        return super().propose(contexts, caps, drafts)


class Unsteady(NgramDrafter):
    """Drafts by a clock of its own."""

    ticks = iter(range(10**6))

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [
            Draft.chain([next(self.ticks) * 7 // 3 % VOCAB]) if b.depth and not len(d) else d
            for b, d in zip(budgets, drafts)
        ]


class Claims(NgramDrafter):
    """Copies tokens but says that they were drawn from a law that it never sampled."""

    def __init__(self, probs: Sequence[float]) -> None:
        super().__init__(1, 3)
        self._law = Drawn(np.array(probs))

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        grown = super().propose(contexts, budgets, drafts)
        return [
            draft if len(given) else Draft.chain(draft.nodes.tokens, [self._law] * len(draft))
            for draft, given in zip(grown, drafts)
        ]


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (lambda target: Overspends(1, 3), "on a budget of"),
        (lambda target: Replaces(1, 3), "is not kept"),
        (lambda target: NeverForgets(1, 3), "forgotten id|copied|differ"),
        (lambda target: DependsOnNeighbours(1, 3), "in a batch and alone"),
        (lambda target: Unsteady(1, 3), "two runs of the same rounds"),
        (lambda target: Claims([1.0] * VOCAB), "sums to 12"),
        (lambda target: Claims([1 / 3] * 3), "a law over 3 tokens"),
        (lambda target: Claims([1 / VOCAB] * VOCAB), "at temperature 0"),
        (
            lambda target: ScriptedDrafter(lambda c: [VOCAB] * 200, vocab_size=VOCAB + 1),
            "beyond the vocabulary",
        ),
    ],
)
def test_a_broken_drafter_is_caught(broken: Callable[[TargetModel], Drafter], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_drafter(broken, toy)


@pytest.mark.parametrize(
    ("rule", "topk"), [(NoiseMatch(), [1]), (TokenLevel(), [1]), (Block(), [1]), (Traversal(), [1, 2])]
)
def test_the_rules_keep_their_contract(rule: AcceptanceRule, topk: list[int]) -> None:
    check_rule(rule, topk=topk)


class AcceptsAll:
    guarantee = Guarantee.SAME_DISTRIBUTION

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        path = draft.nodes.path(draft.nodes.leaves[0]) if len(draft) else ()
        return Verdict(path, noise.choose(laws(path[-1] + 1 if path else 0).probs, Place(len(path), 0)))


class ForgetsTheResidual(TokenLevel):
    """Resamples from the target's law instead of what is left of it."""

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        verdict = super().judge(draft, laws, noise)
        row = verdict.accepted[-1] + 1 if verdict.accepted else 0
        return replace(
            verdict, next_token=noise.choose(laws(row).probs, Place(len(verdict.accepted), 99 + row))
        )


class PromisesTheText(TokenLevel):
    guarantee = Guarantee.SAME_TEXT


class ChangesItsMind(TokenLevel):
    calls = 0

    def judge(self, draft: Draft, laws: Laws, noise: Noise) -> Verdict:
        self.calls += 1
        return replace(super().judge(draft, laws, noise), next_token=self.calls % 3)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (AcceptsAll(), "is off by"),
        (ForgetsTheResidual(), "is off by"),
        (PromisesTheText(), "plain decoding writes"),
        (ChangesItsMind(), "not pure"),
    ],
)
def test_a_broken_rule_is_caught(broken: AcceptanceRule, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_rule(broken, topk=[1])
