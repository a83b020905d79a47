"""A draft head's drafter: features in step with tokens, caught up lazily, silent where it cannot read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outrider.core.completion import SpeculationStats
from outrider.core.law import PointMass
from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee, Request, RoundResult
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.models.eagle_head import EagleHead
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_cache import CachedHead
from outrider.testing.contract import check_drafter
from outrider.testing.scripted_head import ScriptedHead
from outrider.testing.tiny_head import tiny_eagle, tiny_eagle3
from outrider.testing.toy import ToyTarget

VOCAB = 24
TARGET = ToyTarget(VOCAB, seed=2, order=3, sharpness=3.0)
FOUR = Budget(4, 4)


def continued(text: Sequence[int], count: int) -> list[int]:
    """The greedy text that the target goes on with."""
    grown = list(text)
    for _ in range(count):
        grown.append(int(TARGET.logits_of(grown).argmax()))
    return grown


def ingested(drafter: EagleDrafter, text: Sequence[int], sequence_id: int = 0, chunk: int = 512) -> Context:
    """Shows the drafter the features of a whole prompt, as an engine does."""
    context, features = Context.of(text, sequence_id=sequence_id), features_of(text[:-1], drafter.taps)
    for start in range(0, max(1, len(features)), chunk):
        drafter.ingest(context, features[start : start + chunk])
    return context


def features_of(text: Sequence[int], taps: Sequence[int]) -> torch.Tensor:
    [features] = ToyTarget(VOCAB, seed=2, order=3, taps=taps).extend([Chunk(0, text)])
    assert features is not None
    return features


def result(text: Sequence[int], taps: Sequence[int], accepted: int = 0, sequence_id: int = 0) -> RoundResult:
    """A round that ended with `text`, of whose tokens the last but one and `accepted - 1` before it were drafted."""
    emitted = tuple(text[len(text) - accepted - 1 :])
    features = features_of(text[:-1], taps)[-accepted - 1 :]
    draft = Draft.chain(emitted[:accepted])
    scores = None
    return RoundResult(sequence_id, emitted, tuple(range(accepted)), draft, scores, None, features)  # type: ignore[arg-type]


def drafted(drafter: EagleDrafter, text: Sequence[int], budget: Budget = FOUR,
            given: Draft = EMPTY_DRAFT, sequence_id: int = 0, temperature: float = 0.0) -> Draft:  # fmt: skip
    context = Context.of(text, sequence_id=sequence_id, sampling=SamplingParams(temperature=temperature))
    (draft,) = drafter.propose([context], [budget], [given])
    return draft


def laws(drafter: EagleDrafter, text: Sequence[int], sequence_id: int = 0) -> list[float]:
    """The laws that the drafted tokens were drawn by, one after another."""
    context = Context.of(text, sequence_id=sequence_id, sampling=SamplingParams(temperature=1.0),
                         guarantee=Guarantee.SAME_DISTRIBUTION)  # fmt: skip
    [draft] = drafter.propose([context], [Budget(3, 6)], [EMPTY_DRAFT])
    drawn = [group.law for groups in draft.groups for group in groups]
    assert len(drawn) >= 3
    return [float(p) for law in drawn if not isinstance(law, PointMass) for p in law.probs]


def scripted(text: Sequence[int], **settings: object) -> tuple[EagleDrafter, ScriptedHead]:
    head = ScriptedHead({0: text, 1: text}, vocab_size=VOCAB, corrupted=0.0, **settings)  # type: ignore[arg-type]
    return EagleDrafter(head, target_vocab_size=VOCAB), head


TEXT = continued([1, 2, 3], 700)


@pytest.mark.parametrize(("build", "topk"), [(tiny_eagle, 1), (tiny_eagle3, 3)])
def test_it_keeps_the_contract(build: type, topk: int) -> None:
    def make(target: TargetModel) -> EagleDrafter:
        return EagleDrafter(build(target), target_vocab_size=target.vocab_size, topk=topk)

    check_drafter(make, lambda: ToyTarget(12, sharpness=4.0))


@pytest.mark.parametrize("topk", [1, 2])
def test_many_rounds_with_rejections_leave_drafts_unchanged(topk: int) -> None:
    """Whatever was kept before, a draft is that of a drafter that has read the text at once: one that goes by the
    head's own probabilities, as greedy drafts do with noise, and not by what was kept."""
    module = tiny_eagle3(ToyTarget(VOCAB), draft_vocab=17).head

    def make() -> EagleDrafter:
        return EagleDrafter(CachedHead(module), target_vocab_size=VOCAB, topk=topk,
                            settings=GrowthSettings(SampleMethod.GREEDY))  # fmt: skip

    drafter, text, number = make(), [1, 2, 3], 0
    ingested(drafter, text)
    while len(text) < 180:
        if number % 3 or number % 12 == 0:
            draft, fresh = drafted(drafter, text, Budget(4, 4 * topk), temperature=1.0), make()
            ingested(fresh, text)
            assert len(draft) == 4 * topk
            assert draft == drafted(fresh, text, Budget(4, 4 * topk), temperature=1.0)
        number += 1
        accepted = number % 5
        text = [*continued(text, accepted), number % VOCAB]
        drafter.observe([result(text, drafter.taps, accepted)])
    assert not drafter.limits


def test_a_head_that_is_right_is_kept_and_each_node_is_guessed_once() -> None:
    drafter, head = scripted(TEXT)
    ingested(drafter, TEXT[:9])
    assert drafted(drafter, TEXT[:9]) == Draft.chain(TEXT[9:13])
    assert head.calls == {"extend": 1, "pending_rows": 1, "guess": 3}
    assert drafted(drafter, TEXT[:9]) == Draft.chain(TEXT[9:13]), "asked twice in a round"


def test_a_given_chain_is_continued_and_a_given_tree_left_alone() -> None:
    drafter, head = scripted(TEXT)
    ingested(drafter, TEXT[:9])
    given = Draft.chain(TEXT[9:11])
    assert drafted(drafter, TEXT[:9], FOUR, given) == Draft.chain(TEXT[9:13])
    head.calls.clear()
    tree = Draft.tree([4, 5], [None, None])
    assert drafted(drafter, TEXT[:9], FOUR, tree) is tree
    assert drafted(drafter, TEXT[:9], Budget(2, 2), given) is given
    assert not head.calls


def test_rounds_without_a_draft_cost_the_head_nothing_until_many_features_wait() -> None:
    drafter, head = scripted(TEXT)
    ingested(drafter, TEXT[:9])
    for end in range(10, 250):
        drafted(drafter, TEXT[: end - 1], Budget(0, 0))
        drafter.observe([result(TEXT[:end], drafter.taps)])
    assert not head.calls
    for end in range(250, 300):
        drafter.observe([result(TEXT[:end], drafter.taps)])
    assert head.calls == {"extend": 1}
    assert drafted(drafter, TEXT[:299]) == Draft.chain(TEXT[299:303])


def test_a_long_prompt_is_taken_in_as_it_comes() -> None:
    drafter, head = scripted(TEXT)
    ingested(drafter, TEXT[:600], chunk=150)
    assert head.calls == {"extend": 2}
    assert drafted(drafter, TEXT[:600]) == Draft.chain(TEXT[600:604])


def test_a_batch_grows_in_one_forward_per_level() -> None:
    head = ScriptedHead(dict.fromkeys(range(3), TEXT), vocab_size=VOCAB, corrupted=0.0)
    drafter = EagleDrafter(head, target_vocab_size=VOCAB)
    contexts = [ingested(drafter, TEXT[: 4 + i], i) for i in range(3)]
    drafts = drafter.propose(contexts, [Budget(3, 3)] * 3, [EMPTY_DRAFT] * 3)
    assert drafts == [Draft.chain(TEXT[4 + i : 7 + i]) for i in range(3)]
    assert head.calls == {"extend": 1, "pending_rows": 1, "guess": 2}


def test_a_text_of_one_token_has_no_feature_yet() -> None:
    drafter, _ = scripted(TEXT)
    ingested(drafter, TEXT[:1])
    assert drafted(drafter, TEXT[:1]) == EMPTY_DRAFT
    assert drafter.limits == {"draft_features": 1}
    drafter.observe([result(TEXT[:2], drafter.taps)])
    assert drafted(drafter, TEXT[:2]) == Draft.chain(TEXT[2:6])


def test_a_text_whose_features_were_not_shown_is_not_drafted_for() -> None:
    drafter, head = scripted(TEXT)
    assert drafted(drafter, TEXT[:9]) == EMPTY_DRAFT
    drafter.observe([result(TEXT[:10], drafter.taps)])
    assert drafted(drafter, TEXT[:10]) == EMPTY_DRAFT
    drafter.fork(0, 1, 5)
    assert drafted(drafter, TEXT[:6], sequence_id=1) == EMPTY_DRAFT
    assert drafter.limits == {"draft_features": 3}
    assert not head.calls


@pytest.mark.parametrize("asked_first", [False, True])
@pytest.mark.parametrize("length", [0, 1, 5, 8, 9, 10])
def test_a_fork_at_any_length_drafts_as_a_new_sequence(length: int, asked_first: bool) -> None:
    """The last shared feature meets the fork's own next token, also where the parent made an entry of it."""

    def make() -> EagleDrafter:
        return EagleDrafter(tiny_eagle3(ToyTarget(VOCAB)), target_vocab_size=VOCAB, topk=2)

    drafter, fresh = make(), make()
    ingested(drafter, TEXT[:9])
    if asked_first:
        drafted(drafter, TEXT[:9])
    drafter.observe([result(TEXT[:11], drafter.taps, 1)])
    if asked_first:
        drafted(drafter, TEXT[:11])
    drafter.fork(0, 1, length)
    text = [*TEXT[:length], 20, 21, 22]
    features = features_of(text[:-1], drafter.taps)
    drafter.ingest(Context.of(text, sequence_id=1), features[length:])
    ingested(fresh, text, 1)
    assert laws(drafter, text, 1) == pytest.approx(laws(fresh, text, 1), abs=1e-6)
    ingested(fresh, TEXT[:11])
    assert laws(drafter, TEXT[:11]) == pytest.approx(laws(fresh, TEXT[:11]), abs=1e-6)


def test_a_fork_whose_context_was_not_seen_yet_reads_it_when_asked() -> None:
    drafter, _ = scripted(TEXT)
    ingested(drafter, TEXT[:9])
    drafter.fork(0, 1, 8)
    drafter.observe([result(TEXT[:10], drafter.taps, sequence_id=1)])
    assert drafted(drafter, TEXT[:10], sequence_id=1) == Draft.chain(TEXT[10:14])
    drafter.fork(0, 2, 8)
    for end in range(10, 300):
        drafter.observe([result(TEXT[:end], drafter.taps, sequence_id=2)])
    assert drafted(drafter, TEXT[:299], sequence_id=2) == EMPTY_DRAFT, "what waits is bounded"
    assert drafter.limits == {"draft_features": 1}


def test_past_its_positions_it_stops_and_says_so() -> None:
    drafter, head = scripted(TEXT, max_length=12)
    ingested(drafter, TEXT[:9])
    assert drafted(drafter, TEXT[:9]) == Draft.chain(TEXT[9:12])
    assert drafted(drafter, TEXT[:9], FOUR, Draft.chain(TEXT[9:12])) == Draft.chain(TEXT[9:12])
    drafter.observe([result(TEXT[:13], drafter.taps, 3)])
    assert drafted(drafter, TEXT[:13]) == EMPTY_DRAFT
    drafter.observe([result(TEXT[:14], drafter.taps)])
    assert drafted(drafter, TEXT[:14]) == EMPTY_DRAFT
    ingested(drafter, TEXT[:300], 1, chunk=64)
    assert drafted(drafter, TEXT[:300], sequence_id=1) == EMPTY_DRAFT
    assert drafter.limits == {"draft_context_window": 4}
    assert not head.open_sequences


def test_a_shorter_window_may_be_set_than_the_head_has() -> None:
    head = ScriptedHead({0: TEXT}, vocab_size=VOCAB, corrupted=0.0)
    drafter = EagleDrafter(head, target_vocab_size=VOCAB, settings=GrowthSettings(max_length=6))
    ingested(drafter, TEXT[:4])
    assert drafted(drafter, TEXT[:4]) == Draft.chain(TEXT[4:6])


def test_a_token_beyond_its_vocabulary_stops_it() -> None:
    text = [1, 2, VOCAB - 1, 3]
    head = ScriptedHead({0: [1, 2, 3, 3, 3, 3]}, vocab_size=VOCAB - 1)
    drafter = EagleDrafter(head, target_vocab_size=VOCAB)
    ingested(drafter, text[:2])
    given = Draft.chain([VOCAB - 1])
    assert drafted(drafter, text[:2], FOUR, given) is given
    assert len(drafted(drafter, text[:2])) == 4
    drafter.observe([result(text[:4], drafter.taps, 1)])
    assert drafted(drafter, text[:4]) == EMPTY_DRAFT
    assert drafter.limits == {"draft_vocabulary": 2}
    assert not head.open_sequences


def test_a_head_keeps_its_own_precision() -> None:
    """Placement is the head's own: features are converted as they come, and the text is the target's."""
    target = ToyTarget(VOCAB, seed=2, order=3, sharpness=3.0)
    files = fresh_head(tiny_eagle3(target).head.config, seed=3)
    module = EagleHead(files, target.token_weights(), num_layers=4, dtype=torch.bfloat16)
    drafter = EagleDrafter(CachedHead(module), target_vocab_size=VOCAB, topk=2)
    engine = Engine(Parts(target, drafter, RuleBook(), FixedController(Budget(3, 6))))
    sampling = SamplingParams(temperature=0.0, max_tokens=30)
    done = engine.submit(Request(0, tuple(TEXT[:5]), sampling, 0, Guarantee.SAME_TEXT))
    run_to_end(engine, [done])
    assert list(done.token_ids) == TEXT[5:35]
    assert done.stats.num_spec_steps > 0


@pytest.mark.parametrize(("topk", "share"), [(1, 0.7), (3, 0.85)])
def test_a_head_that_is_right_seven_times_in_ten_is_accepted_as_often(topk: int, share: float) -> None:
    """In a tree more often: where the right token does not come first it comes second half of the time."""
    prompt, sampling = TEXT[:20], SamplingParams(temperature=0.0, max_tokens=300)
    head = ScriptedHead({0: TEXT, 1: TEXT}, vocab_size=VOCAB, corrupted=0.3, taps=(3,))
    target = ToyTarget(VOCAB, seed=2, order=3, sharpness=3.0, taps=head.taps)
    eagle = EagleDrafter(head, target_vocab_size=VOCAB, topk=topk)
    engine = Engine(Parts(target, eagle, RuleBook(), FixedController(Budget(1, topk))))
    running = [
        engine.submit(Request(number, tuple(prompt), sampling, 0, Guarantee.SAME_TEXT)) for number in range(2)
    ]
    run_to_end(engine, running)
    assert all(list(done.token_ids) == TEXT[20:320] for done in running)
    stats = SpeculationStats.total([done.stats for done in running])
    assert stats.num_accepted_draft_tokens / stats.num_spec_steps == pytest.approx(share, abs=0.06)
    assert not head.open_sequences
    assert not eagle.limits
