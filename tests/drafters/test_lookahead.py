"""Lookahead: the tree it drafts, the n-grams it finds, and the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.core.noise import Place
from outrider.core.protocols import Chunk
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee, Request, RoundResult
from outrider.core.round import run_round
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.core.sequence import Sequence as Running
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.ngram_pool import NgramPool
from outrider.errors import ConfigError
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget

VOCAB = 12
ROOMY = Budget(16, 64)
GREEDY = SamplingParams(temperature=0.0, max_tokens=200)


def drafted(drafter: LookaheadDrafter, text: Sequence[int], budget: Budget = ROOMY,
            given: Draft = EMPTY_DRAFT) -> Draft:  # fmt: skip
    [draft] = drafter.propose([Context.of(text)], [budget], [given])
    return draft


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """Every drafted path from the pending token to a leaf."""
    return {draft.nodes.path_tokens(leaf) for leaf in draft.nodes.leaves}


def rounds(drafter: LookaheadDrafter, target: ToyTarget, prompt: Sequence[int], count: int,
           sampling: SamplingParams = GREEDY, budget: Budget = ROOMY) -> list[RoundResult]:  # fmt: skip
    """The first rounds of a text."""
    request = Request(0, tuple(prompt), sampling, 3, Guarantee.SAME_TEXT)
    sequence, made = Running(request, max_length=None), []
    target.extend([Chunk(0, prompt[:-1])])
    for _ in range(count):
        made += run_round(target, drafter, RuleBook(), [sequence], [sequence.budget(budget)])
    return made


def test_the_pool_keeps_the_most_recent_continuations() -> None:
    pool = NgramPool(2, 2)
    pool.read([1, 2, 3, 1, 4, 5, 1, 2, 3])
    assert list(pool.after(1)) == [(2, 3), (4, 5)]
    pool.add(1, (6, 7))
    assert list(pool.after(1)) == [(6, 7), (2, 3)]
    assert list(pool.after(5)) == [(1, 2)]
    assert list(pool.after(9)) == []


def test_the_pool_reads_a_growing_text_once() -> None:
    text, grown, at_once = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5], NgramPool(2, 4), NgramPool(2, 4)
    for length in range(1, len(text) + 1):
        grown.read(text[:length])
        grown.read(text[:length])
    at_once.read(text)
    assert all(grown.after(token) == at_once.after(token) for token in range(6))


def test_candidates_are_the_pool_s_and_hang_below_the_pending_token() -> None:
    text = [1, 2, 3, 1, 4, 5, 1, 6, 7, 1]
    draft = drafted(LookaheadDrafter(window=1, ngram=3, candidates=2), text)
    assert {(6, 7), (4, 5)} <= {path[:2] for path in paths(draft)}
    assert not any(path[0] == 2 for path in paths(draft))


def test_a_window_is_a_spine_with_a_chain_of_levels_below_each_of_its_tokens() -> None:
    drafter, target = LookaheadDrafter(window=3, ngram=4, candidates=1), ToyTarget(VOCAB, sharpness=4.0)
    last = rounds(drafter, target, [1, 2, 3, 4, 5, 6, 7, 8], 6)[-1]
    depths = sorted(last.draft.nodes.depths[leaf] for leaf in last.draft.nodes.leaves)
    assert max(depths) == 3 + 4 - 2  # the last column's last level
    assert len(last.draft) <= (4 - 1) * (3 + 1)


def test_the_newest_level_is_what_the_target_says_after_each_column() -> None:
    """Replays a round by hand: the ends' best tokens complete the n-grams of the next round's candidates."""
    drafter, target = LookaheadDrafter(window=4, ngram=2, candidates=3), ToyTarget(VOCAB, sharpness=4.0)
    made = rounds(drafter, target, [1, 2, 3, 4, 5], 3)
    text = [1, 2, 3, 4, 5, *(token for result in made for token in result.emitted)]
    spine = [node for node in range(len(made[-1].draft)) if len(made[-1].draft.nodes.path(node)) == 4][-1]
    path = made[-1].draft.nodes.path_tokens(spine)
    before = text[: len(text) - len(made[-1].emitted)]
    answers = [
        int(target.logits_of([*before, *path[: end + 1]]).argmax()) for end in range(4)
    ]  # what follows each spine token
    pool = drafter._states[0].pool
    for token, answer in zip(path, answers):
        assert (answer,) in pool.after(token)


def test_under_noise_a_guess_is_the_token_that_the_text_would_hold() -> None:
    sampling = SamplingParams(temperature=1.0, max_tokens=200)
    drafter, target = LookaheadDrafter(window=2, ngram=3, candidates=1), ToyTarget(VOCAB, sharpness=2.0)
    rounds(drafter, target, [1, 2, 3, 4, 5], 1, sampling)
    text, column = [1, 2, 3, 4, 5], drafter._states[0].window._columns[0]
    context = Context.of(text, seed=3, sampling=sampling)
    law = context.law.node(target.logits_of([*text, column[0]]), ())
    assert column[1] == context.noise.argmax(law, Place(1, 1))


def test_a_text_that_repeats_itself_is_guessed() -> None:
    cycle = {(token,): [float(other == (token + 1) % 5) for other in range(5)] for token in range(5)}
    target = ToyTarget.from_table({(): [0.2] * 5, **cycle})
    made = rounds(LookaheadDrafter(), target, [0, 1, 2, 3, 4, 0, 1], 8)
    assert all(len(result.accepted) >= 2 for result in made)


def test_equal_nodes_are_one_and_budgets_keep_candidates_first() -> None:
    drafter = LookaheadDrafter(window=3, ngram=3, candidates=2)
    text = [1, 2, 3, 1, 4, 5, 1]
    assert paths(drafted(drafter, text, Budget(8, 4))) == {(2, 3), (4, 5)}
    assert paths(drafted(drafter, text, Budget(8, 3))) == {(4, 5), (2,)}
    assert paths(drafted(drafter, text, Budget(1, 9))) >= {(4,), (2,)}
    assert len(drafted(drafter, text, Budget(0, 0))) == 0


def test_below_a_given_chain_candidates_hang_alone_and_a_given_tree_is_left_alone() -> None:
    drafter, text = LookaheadDrafter(window=3, ngram=3, candidates=4), [1, 2, 3, 4, 1, 2, 5, 6]
    given = Draft.chain([9, 2])
    draft = drafted(drafter, text, ROOMY, given)
    assert paths(draft) == {(9, 2, 5, 6), (9, 2, 3, 4)}
    tree = Draft.tree([1, 2], [None, None])
    assert drafted(drafter, text, ROOMY, tree) is tree


def test_without_a_window_the_best_candidate_is_a_chain() -> None:
    drafter = LookaheadDrafter(window=0)
    assert drafted(drafter, [1, 2, 3, 1, 4, 5, 1]).nodes.tokens == (4, 5)
    assert drafted(drafter, [1, 2, 3, 1, 4, 5, 8]) == EMPTY_DRAFT


def test_a_row_without_numbers_ends_the_window_there() -> None:
    table = {(): [0.25] * 4, (3,): [float("nan")] * 4}
    drafter, target = LookaheadDrafter(window=3, ngram=2), ToyTarget.from_table(table)
    rounds(drafter, target, [3, 3, 3, 0], 1)
    assert drafter._states[0].window._columns == []
    assert paths(drafted(drafter, [3, 3, 3, 0, 0]))  # and the next round has one again


def test_sequences_share_nothing() -> None:
    drafter = LookaheadDrafter(window=0)
    drafted(drafter, [1, 2, 3, 1])
    drafter.fork(0, 1, 3)
    [draft] = drafter.propose([Context.of([1], sequence_id=1)], [ROOMY], [EMPTY_DRAFT])
    assert draft == EMPTY_DRAFT
    drafter.forget(0)
    drafter.forget(99)
    assert drafted(drafter, [1]) == EMPTY_DRAFT


def test_a_fork_drafts_what_a_cold_start_on_its_text_would() -> None:
    drafter, target = LookaheadDrafter(), ToyTarget(VOCAB, sharpness=4.0)
    prompt = [1, 2, 3, 4, 1, 2]
    made = rounds(drafter, target, prompt, 5)
    text = [*prompt, *(token for result in made for token in result.emitted)]
    drafter.fork(0, 1, len(text) - 1)
    [warm] = drafter.propose([Context.of(text, sequence_id=1)], [ROOMY], [EMPTY_DRAFT])
    assert warm == drafted(LookaheadDrafter(), text)


@pytest.mark.parametrize("settings", [{"window": -1}, {"ngram": 1}, {"candidates": 0}])
def test_sizes_that_guess_nothing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        LookaheadDrafter(**settings)


@pytest.mark.parametrize(
    "drafter",
    [
        LookaheadDrafter,
        lambda: LookaheadDrafter(window=2, ngram=5, candidates=1),
        lambda: LookaheadDrafter(window=4, ngram=2, candidates=2),
        lambda: LookaheadDrafter(window=0),
    ],
)
def test_the_contract_is_kept(drafter: type[LookaheadDrafter]) -> None:
    check_drafter(lambda target: drafter(), lambda: ToyTarget(VOCAB, sharpness=4.0))


def test_targets_without_trees_get_chains() -> None:
    check_drafter(
        lambda target: LookaheadDrafter(window=0),
        lambda: ToyTarget(VOCAB, sharpness=4.0, supports_trees=False),
    )
