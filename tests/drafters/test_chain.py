"""Lists of methods: each adds where the ones before it stopped, and sees the features it asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, RoundResult, Scores
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.errors import ConfigError
from outrider.testing.contract import check_drafter
from outrider.testing.scripted import ScriptedDrafter
from outrider.testing.toy import ToyTarget

TEXT = [1, 2, 3, 4, 5, 6, 7, 8]


class Recording(NoDrafter):
    """Notes what it is asked and shown; `answer` replaces any draft it is given."""

    def __init__(self, taps: tuple[int, ...] = (), answer: Draft | None = None) -> None:
        self.taps = taps
        self.asked: list[int] = []
        self.shown: list[torch.Tensor | None] = []
        self.forked: list[tuple[int, int, int]] = []
        self.forgotten: list[int] = []
        self._answer = answer

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        self.shown.append(features)

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        self.asked += [context.sequence_id for context in contexts]
        return [self._answer or draft for draft in drafts]

    def observe(self, results: Sequence[RoundResult]) -> None:
        self.shown += [result.features for result in results]
        self.shown += [result.scores.features for result in results]

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        self.forked.append((parent_id, sequence_id, length))

    def forget(self, sequence_id: int) -> None:
        self.forgotten.append(sequence_id)


def scripted(text: Sequence[int]) -> ScriptedDrafter:
    return ScriptedDrafter({0: text}, vocab_size=9)


def drafted(drafters: Sequence[NoDrafter | ScriptedDrafter | Recording], budget: Budget) -> Draft:
    (draft,) = ChainedDrafter(drafters).propose([Context.of(TEXT[:2])], [budget], [EMPTY_DRAFT])
    return draft


def test_the_first_method_drafts_and_the_next_extends_its_leaf() -> None:
    short, other = scripted(TEXT[:4]), scripted([0] * 8)
    assert drafted([short, other], Budget(5, 5)).nodes.tokens == (3, 4, 0, 0, 0)


def test_the_next_method_drafts_where_the_first_is_silent() -> None:
    assert drafted([NoDrafter(), scripted(TEXT)], Budget(3, 3)) == Draft.chain([3, 4, 5])


def test_a_method_is_asked_only_about_drafts_with_room() -> None:
    second = Recording()
    chain = ChainedDrafter([ScriptedDrafter({0: TEXT, 1: TEXT[:3]}, vocab_size=9), second])
    contexts = [Context.of(TEXT[:2], sequence_id=i) for i in range(3)]
    budgets = [Budget(3, 9), Budget(3, 9), Budget(0, 0)]
    chain.propose(contexts, budgets, [EMPTY_DRAFT] * 3)
    assert second.asked == [1]


def test_a_method_that_replaces_a_draft_is_caught() -> None:
    with pytest.raises(AssertionError, match="Recording keeps what was drafted"):
        drafted([scripted(TEXT[:4]), Recording(answer=Draft.chain([0, 0, 0]))], Budget(5, 5))


def test_taps_are_united_and_each_method_sees_its_own() -> None:
    members = [Recording((7, 2)), Recording(), Recording((2, 4))]
    chain = ChainedDrafter(members)
    assert chain.taps == (2, 4, 7)
    features = torch.arange(2 * 3 * 5).reshape(2, 3, 5).float()
    chain.ingest(Context.of(TEXT), features)
    scores = Scores(torch.zeros(2, 9), features)
    chain.observe([RoundResult(0, (1,), (), EMPTY_DRAFT, scores, features=features[:1])])
    for member, taps in ((members[0], [2, 0]), (members[2], [0, 1])):
        for shown, whole in zip(member.shown, (features, features[:1], features)):
            assert shown is not None
            assert torch.equal(shown, whole[:, taps])
    assert members[1].shown == [None, None, None]


def test_every_method_hears_of_forks_and_of_finished_sequences() -> None:
    members = [Recording(), Recording()]
    chain = ChainedDrafter(members)
    chain.fork(0, 1, 5)
    chain.forget(1)
    assert all(member.forked == [(0, 1, 5)] and member.forgotten == [1] for member in members)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        ChainedDrafter([])


def test_the_contract_is_kept() -> None:
    def make_drafter(target: ToyTarget) -> ChainedDrafter:
        draft_model = ModelDrafter(target.imitation(0.5), target_vocab_size=target.vocab_size, topk=2)
        return ChainedDrafter([NgramDrafter(2, 3), draft_model])

    check_drafter(make_drafter, lambda: ToyTarget(12, sharpness=4.0))  # type: ignore[arg-type]
