"""Suffix drafts: what they copy, how far they go, and whose text they read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from outrider.core.law import Drawn
from outrider.core.records import (
    EMPTY_DRAFT,
    Budget,
    Context,
    Draft,
    Group,
    Guarantee,
    Request,
    RoundResult,
    Scores,
)
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.suffix_automaton import BYTES_PER_TOKEN
from outrider.drafters.suffix_corpus import SuffixCorpus
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.errors import ConfigError
from outrider.models.row_costs import RowCosts
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget

FREE = RowCosts.linear(0.0)
PASSAGE = list(range(100, 140))


def drafted(drafter: SuffixDrafter, text: Sequence[int], budget: Budget | int, given: Draft = EMPTY_DRAFT,
            sequence_id: int = 0) -> Draft:  # fmt: skip
    budget = Budget(budget, budget) if isinstance(budget, int) else budget
    (draft,) = drafter.propose([Context.of(text, sequence_id=sequence_id)], [budget], [given])
    return draft


def writes(drafter: SuffixDrafter, text: Sequence[int], sequence_id: int) -> None:
    """A request that writes the text and ends."""
    drafted(drafter, [1], 4, sequence_id=sequence_id)
    scores = Scores(np.zeros((1, 1)))  # type: ignore[arg-type]
    for token in text:
        drafter.observe([RoundResult(sequence_id, (token,), (), EMPTY_DRAFT, scores)])
    drafter.forget(sequence_id)


def test_a_long_match_is_copied_as_far_as_the_budget_goes() -> None:
    assert drafted(SuffixDrafter(), PASSAGE + PASSAGE[:12], 8).nodes.tokens == tuple(PASSAGE[12:20])


def test_a_draft_is_longer_after_a_longer_match() -> None:
    lengths = [len(drafted(SuffixDrafter(), PASSAGE + PASSAGE[:n], 30)) for n in (1, 3, 5, 12)]
    assert lengths == sorted(set(lengths)), lengths


def test_the_factor_scales_a_draft_with_its_match() -> None:
    lengths = [
        len(
            drafted(
                SuffixDrafter(max_spec_factor=factor, min_token_prob=0.0, costs=FREE),
                PASSAGE + PASSAGE[:8],
                30,
            )
        )
        for factor in (0.0, 0.25, 0.5, 1.0)
    ]
    assert [length - lengths[0] for length in lengths] == [0, 2, 4, 8]


def test_dear_rows_shorten_a_draft() -> None:
    text = PASSAGE + PASSAGE[:8]
    lengths = [
        len(drafted(SuffixDrafter(costs=RowCosts.linear(cost)), text, 30)) for cost in (0.0, 0.04, 0.3, 2.0)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2]
    assert lengths[-1] == 0


def test_the_text_may_go_round_in_circles() -> None:
    assert drafted(SuffixDrafter(), [5, *[1, 2, 3] * 5], 7).nodes.tokens == (1, 2, 3, 1, 2, 3, 1)


def test_nothing_is_drafted_without_a_match() -> None:
    assert drafted(SuffixDrafter(), PASSAGE, 4) is EMPTY_DRAFT
    assert drafted(SuffixDrafter(), [1], 4) is EMPTY_DRAFT


def test_the_more_frequent_follower_wins_and_of_equals_the_latest() -> None:
    often = [1, 2, 3, 7, 1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3]
    assert drafted(SuffixDrafter(), often, 1).nodes.tokens == (7,)
    equal = [1, 2, 3, 7, 9, 1, 2, 3, 8, 1, 2, 3]
    assert drafted(SuffixDrafter(), equal, 1).nodes.tokens == (8,)


def test_drafting_stops_under_the_probability_floor() -> None:
    rng = random.Random(5)
    text = [rng.randrange(6) for _ in range(300)]
    lengths = [len(drafted(SuffixDrafter(min_token_prob=floor), text, 20)) for floor in (0.0, 0.1, 0.5, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[1] > lengths[3] == 0


def test_a_given_chain_is_continued_as_if_it_were_text_and_leaves_no_trace() -> None:
    drafter, fresh = SuffixDrafter(), SuffixDrafter()
    text = [*PASSAGE, 7, 8]
    draft = drafted(drafter, text, 12, Draft.chain(PASSAGE[3:8]))
    assert draft.nodes.tokens == (*PASSAGE[3:8], *PASSAGE[8 : 8 + len(draft) - 5])
    assert len(draft) > 7
    text = text + PASSAGE[30:34]
    assert drafted(drafter, text, 8) == drafted(fresh, text, 8) != EMPTY_DRAFT


def test_a_given_chain_keeps_its_laws() -> None:
    law = Drawn(np.eye(200)[PASSAGE[4]])
    draft = drafted(SuffixDrafter(), PASSAGE + PASSAGE[:4], 4, Draft.chain([PASSAGE[4]], [law]))
    assert draft.nodes.tokens == tuple(PASSAGE[4:8])
    assert draft.groups[0] == (Group(law, (0,)),)


def test_a_given_tree_and_a_spent_budget_are_left_alone() -> None:
    tree, text = Draft.tree([0, 1], [None, None]), PASSAGE + PASSAGE[:9]
    assert drafted(SuffixDrafter(), text, 4, tree) is tree
    assert drafted(SuffixDrafter(), text, 0) is EMPTY_DRAFT
    assert len(drafted(SuffixDrafter(), text, Budget(8, 3))) == 3


FORKED = [1, 2, 3, 4, 5, 9, 1, 2, 3, 6, 7, 9, 1, 2, 3]


def test_a_tree_holds_the_chain_and_the_other_ways_to_go_on() -> None:
    tree = drafted(SuffixDrafter(topk=2, min_token_prob=0.02, costs=FREE), FORKED, Budget(3, 9))
    chain = drafted(SuffixDrafter(), FORKED, 3)
    paths = {tree.nodes.path_tokens(leaf) for leaf in tree.nodes.leaves}
    assert chain.nodes.tokens in paths
    assert {(4, 5), (6, 7)} <= {path[:2] for path in paths}
    assert all(len(below) <= 2 for below in tree.nodes.children)
    assert max(tree.nodes.depths) <= 3


def test_the_nodes_of_a_small_tree_are_the_likeliest_of_a_large_one() -> None:
    rng = random.Random(8)
    text = [rng.randrange(5) for _ in range(400)]
    large = drafted(SuffixDrafter(topk=3, min_token_prob=0.01), text, Budget(6, 40))
    small = drafted(SuffixDrafter(topk=3, min_token_prob=0.01), text, Budget(6, 8))
    assert len(large) > len(small) == 8
    assert large.nodes.tokens[:8] == small.nodes.tokens


def test_without_room_to_branch_topk_drafts_a_chain() -> None:
    assert drafted(SuffixDrafter(topk=4), FORKED, 3).nodes.is_chain


def test_no_request_drafts_from_the_text_of_another() -> None:
    drafter, fresh = SuffixDrafter(), SuffixDrafter()
    drafted(drafter, PASSAGE * 2, 8, sequence_id=0)
    assert drafted(drafter, PASSAGE[:9], 8, sequence_id=1) is EMPTY_DRAFT
    writes(drafter, PASSAGE, 0)
    assert drafted(drafter, PASSAGE[:9], 8, sequence_id=1) is EMPTY_DRAFT
    text = PASSAGE[5:] + PASSAGE[:5] + PASSAGE[5:9]
    assert drafted(drafter, text, 8, sequence_id=2) == drafted(fresh, text, 8, sequence_id=2)


def test_shared_outputs_are_drafted_from_once_their_request_has_ended() -> None:
    drafter = SuffixDrafter(shared=SuffixCorpus())
    drafted(drafter, PASSAGE * 2, 8, sequence_id=0)
    assert drafted(drafter, PASSAGE[:9], 8, sequence_id=1) is EMPTY_DRAFT, "prompts are not shared"
    writes(drafter, PASSAGE, 2)
    assert drafted(drafter, PASSAGE[:9], 8, sequence_id=1).nodes.tokens == tuple(PASSAGE[9:17])
    below = drafted(drafter, [1, 2], 8, Draft.chain(PASSAGE[:5]), sequence_id=3)
    assert below.nodes.tokens[:8] == tuple(PASSAGE[:8])


def test_of_own_and_shared_text_the_draft_with_more_expected_tokens_wins() -> None:
    drafter = SuffixDrafter(shared=SuffixCorpus())
    writes(drafter, [8, 3, 200, 201, 202], 1)
    own = [*PASSAGE, 8, 3, *PASSAGE[:6], 3]
    assert drafted(drafter, own, 4).nodes.tokens[0] == PASSAGE[0], "a match of one token in both"
    assert drafted(drafter, [*own[:-2], 8, 3], 4, sequence_id=2).nodes.tokens[0] in (PASSAGE[0], 200)
    writes(drafter, [*PASSAGE[10:16], 300, 301], 4)
    assert drafted(drafter, [PASSAGE[15], 7, *PASSAGE[10:16]], 4, sequence_id=5).nodes.tokens[:2] == (
        300,
        301,
    )


def test_shared_outputs_go_oldest_first() -> None:
    drafter = SuffixDrafter(shared=SuffixCorpus(most_texts=2))
    for n in range(5):
        writes(drafter, range(1000 * n, 1000 * n + 20), n + 1)
    known = [
        n for n in range(5) if len(drafted(drafter, range(1000 * n, 1000 * n + 5), 4, sequence_id=10 + n))
    ]
    assert known == [3, 4]


def test_memory_grows_with_open_requests_alone_and_within_its_bound() -> None:
    drafter = SuffixDrafter()
    assert drafter.memory_bytes == 0
    for sequence_id in range(3):
        drafted(drafter, PASSAGE * 5, 4, sequence_id=sequence_id)
        held = drafter.memory_bytes
        assert 0 < held <= (sequence_id + 1) * 5 * len(PASSAGE) * BYTES_PER_TOKEN
    for sequence_id in (0, 1, 2, 99):
        drafter.forget(sequence_id)
    assert drafter.memory_bytes == 0


def test_texts_are_those_of_plain_decoding_while_outputs_are_shared() -> None:
    """Many requests in turn through one engine: what is shared changes drafts, never texts."""
    target = ToyTarget(12, seed=2, order=2, sharpness=3.0)
    sampling = SamplingParams(temperature=0.7, max_tokens=40, ignore_eos=True)
    requests = [Request(n, (n % 5, 3, n % 2), sampling, 50 + n % 4, Guarantee.SAME_TEXT) for n in range(24)]
    texts, kept = [], []
    for drafter in (SuffixDrafter(), SuffixDrafter(shared=SuffixCorpus(most_texts=6))):
        parts = Parts(target, drafter, RuleBook(), FixedController(Budget(6, 6)))
        engine = Engine(parts, max_batch=3)
        running = [engine.submit(request) for request in requests]
        run_to_end(engine, running)
        texts.append([sequence.token_ids for sequence in running])
        kept.append(sum(sequence.stats.num_accepted_draft_tokens for sequence in running))
    assert texts[0] == texts[1]
    assert kept[1] > kept[0]


@pytest.mark.parametrize(("settings", "named"), [
    ({"max_tree_depth": 0}, "max_tree_depth"), ({"max_spec_factor": -1.0}, "max_spec_factor"),
    ({"min_token_prob": 1.5}, "min_token_prob"), ({"topk": 0}, "topk"),
])  # fmt: skip
def test_an_impossible_setting_is_refused_by_name(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SuffixDrafter(**settings)  # type: ignore[arg-type]


def test_a_corpus_of_no_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_cached_requests must be at least 1"):
        SuffixCorpus(most_texts=0)


@pytest.mark.parametrize("topk", [1, 3])
def test_the_contract_is_kept(topk: int) -> None:
    check_drafter(lambda target: SuffixDrafter(topk=topk), lambda: ToyTarget(12, sharpness=4.0))


@pytest.mark.parametrize("longest", [1, 2])
def test_the_contract_is_kept_by_short_matches(longest: int) -> None:
    check_drafter(
        lambda target: SuffixDrafter(max_tree_depth=longest, max_spec_factor=4.0, min_token_prob=0.0),
        lambda: ToyTarget(12, sharpness=4.0),
    )
