"""A draft model with its own cache: caught up lazily, never out of step, silent beyond its limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee
from outrider.core.sampling import SamplingParams
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget

VOCAB = 24
TARGET = ToyTarget(VOCAB, seed=2, order=3, sharpness=3.0)


def continued(text: Sequence[int], count: int) -> list[int]:
    """The greedy text that the target goes on with."""
    grown = list(text)
    for _ in range(count):
        grown.append(int(TARGET.logits_of(grown).argmax()))
    return grown


FOUR = Budget(4, 4)


def drafted(drafter: ModelDrafter, text: Sequence[int], budget: Budget = FOUR,
            given: Draft = EMPTY_DRAFT, sequence_id: int = 0) -> Draft:  # fmt: skip
    (draft,) = drafter.propose([Context.of(text, sequence_id=sequence_id)], [budget], [given])
    return draft


def make(lm: ToyTarget | None = None, topk: int = 1) -> ModelDrafter:
    return ModelDrafter(lm or TARGET.imitation(0.0), target_vocab_size=VOCAB, topk=topk)


@pytest.mark.parametrize("topk", [1, 2])
def test_five_hundred_tokens_with_rejections_leave_drafts_unchanged(topk: int) -> None:
    """Whatever was kept before, a draft is that of a new cache; a model that is the target is right."""
    lm = TARGET.imitation(0.0)
    drafter, text, number = make(lm, topk), [1, 2, 3], 0
    while len(text) < 500:
        draft = drafted(drafter, text, Budget(4, 4 * topk))
        assert lm.cached_length(0) == len(text) - 1
        assert draft == drafted(make(topk=topk), text, Budget(4, 4 * topk))
        if topk == 1:
            assert draft == Draft.chain(continued(text, 4)[-4:])
        number += 1
        text = continued(text, number % 6)
        if number % 7 == 0 or number % 6 == 0:
            text.append(number % VOCAB)


def test_a_short_backlog_rides_along_and_a_long_one_is_cached_at_once() -> None:
    lm = TARGET.imitation(0.0)
    drafter = make(lm)
    drafted(drafter, continued([1, 2, 3], 2))
    lm.calls.clear()
    drafted(drafter, continued([1, 2, 3], 10))
    assert lm.calls == {"score": 4, "commit": 1, "rows": (8 + 1) + 2 + 3 + 4}
    lm.calls.clear()
    assert drafted(drafter, continued([1, 2, 3], 60)) == Draft.chain(continued([1, 2, 3], 64)[-4:])
    assert lm.calls == {"extend": 1, "score": 4, "rows": 1 + 2 + 3 + 4}


def test_rounds_without_a_draft_cost_the_draft_model_nothing() -> None:
    lm = TARGET.imitation(0.0)
    drafter = make(lm)
    drafted(drafter, [1, 2, 3], Budget(0, 0))
    drafted(drafter, [1, 2, 3], Budget(2, 2), Draft.chain([4, 5]))
    drafted(drafter, [1, 2, 3], Budget(4, 4), Draft.tree([4, 5], [None, None]))
    assert not lm.calls


def test_a_given_chain_is_continued_while_the_backlog_rides_above_it() -> None:
    drafter = make()
    drafted(drafter, [1, 2, 3])
    text = continued([1, 2, 3], 5)
    given = continued(text, 2)[len(text) :]
    assert drafted(drafter, text, Budget(4, 4), Draft.chain(given)).nodes.tokens == tuple(
        continued(text, 4)[-4:]
    )
    assert drafted(drafter, text) == Draft.chain(continued(text, 4)[-4:])


def test_a_batch_grows_in_one_forward_per_level() -> None:
    lm = TARGET.imitation(0.0)
    texts = [[1, 2], [3, 4, 5, 6, 7], [9]]
    contexts = [Context.of(text, sequence_id=i) for i, text in enumerate(texts)]
    drafts = make(lm).propose(contexts, [Budget(3, 3)] * 3, [EMPTY_DRAFT] * 3)
    assert drafts == [Draft.chain(continued(text, 3)[-3:]) for text in texts]
    assert lm.calls["score"] == 3
    assert lm.calls["extend"] == 1


def test_a_shorter_window_may_be_set_than_the_model_has() -> None:
    drafter = ModelDrafter(
        TARGET.imitation(0.0), target_vocab_size=VOCAB, settings=GrowthSettings(max_length=6)
    )
    assert len(drafted(drafter, [1, 2, 3, 4])) == 2
    assert len(drafted(drafter, [1, 2, 3, 4, 5, 6])) == 0
    assert drafter.limits == {"draft_context_window": 1}


def test_past_its_window_it_stops_and_says_so() -> None:
    lm = TARGET.imitation(0.0, max_length=10)
    drafter = make(lm)
    assert len(drafted(drafter, continued([1], 6))) == 3
    assert drafted(drafter, continued([1], 9)) == EMPTY_DRAFT
    assert drafted(drafter, continued([1], 30)) == EMPTY_DRAFT
    assert drafter.limits == {"draft_context_window": 2}
    assert not lm.open_sequences


def test_a_token_beyond_its_vocabulary_stops_it() -> None:
    """Padding rows are never spoken, but a target's own extra token may be."""
    lm = TARGET.imitation(0.0, vocab_size=20)
    drafter = make(lm)
    assert len(drafted(drafter, [1, 2, 19])) == 4
    assert drafted(drafter, [1, 2, 19, 20, 3]) == EMPTY_DRAFT
    assert drafted(drafter, [1, 2, 3], given=Draft.chain([22])) == Draft.chain([22])
    assert drafter.limits == {"draft_vocabulary": 2}
    assert not lm.open_sequences


@pytest.mark.parametrize("size", [VOCAB, VOCAB + 8])
def test_a_padded_draft_vocabulary_changes_no_draft(size: int) -> None:
    wide = make(TARGET.imitation(0.0, vocab_size=size))
    assert drafted(wide, [1, 2, 3]) == Draft.chain(continued([1, 2, 3], 4)[-4:])


def test_a_model_without_trees_drafts_chains() -> None:
    drafter = make(TARGET.imitation(0.0, supports_trees=False), topk=3)
    draft = drafted(drafter, [1, 2, 3], Budget(4, 16))
    assert draft == Draft.chain(continued([1, 2, 3], 4)[-4:])


def test_a_fork_shares_the_cache_and_goes_its_own_way() -> None:
    lm = TARGET.imitation(0.0)
    drafter, text = make(lm), continued([1, 2, 3], 40)
    drafted(drafter, text)
    drafter.fork(0, 1, 30)
    assert lm.cached_length(1) == 30
    other = [*text[:30], 5, 6]
    assert drafted(drafter, other, sequence_id=1) == Draft.chain(continued(other, 4)[-4:])
    assert drafted(drafter, text) == Draft.chain(continued(text, 4)[-4:])
    drafter.fork(0, 2, 20)
    assert drafted(drafter, text[:20], sequence_id=2) == Draft.chain(continued(text[:20], 4)[-4:])
    drafter.fork(77, 3, 5)
    assert drafted(drafter, [1, 2], sequence_id=3) == Draft.chain(continued([1, 2], 4)[-4:])
    for sequence_id in range(5):
        drafter.forget(sequence_id)
    assert not lm.open_sequences


def test_greedy_drafting_ignores_the_noise() -> None:
    drafter = ModelDrafter(
        TARGET.imitation(0.0), target_vocab_size=VOCAB, settings=GrowthSettings(SampleMethod.GREEDY)
    )
    sampling = SamplingParams(temperature=1.5)
    for seed in range(5):
        context = Context.of([1, 2], seed=seed, sampling=sampling, guarantee=Guarantee.SAME_DISTRIBUTION)
        assert drafter.propose([context], [Budget(3, 3)], [EMPTY_DRAFT])[0].nodes.tokens == tuple(
            continued([1, 2], 3)[-3:]
        )


@pytest.mark.parametrize("settings", [{}, {"topk": 3}])
@pytest.mark.parametrize("max_length", [None, 40])
def test_the_contract_is_kept(settings: dict[str, int], max_length: int | None) -> None:
    def make_drafter(target: ToyTarget) -> ModelDrafter:
        lm = target.imitation(0.5, max_length=max_length)
        return ModelDrafter(lm, target_vocab_size=target.vocab_size, **settings)

    check_drafter(make_drafter, lambda: ToyTarget(12, sharpness=4.0))  # type: ignore[arg-type]
