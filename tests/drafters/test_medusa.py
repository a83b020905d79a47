"""Medusa drafts: the right state, the right head per depth, trees that learn, silence where nothing is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.core.law import DrawnWithoutReplacement, PointMass
from outrider.core.noise import Place
from outrider.core.protocols import Chunk
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee, Request, RoundResult, Scores
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.drafters.medusa import Heads, MedusaDrafter
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts
from outrider.errors import ConfigError
from outrider.models.medusa_head import MedusaHeads
from outrider.models.row_costs import DraftCosts, RowCosts
from outrider.testing.contract import check_drafter
from outrider.testing.oracle import oracle_text
from outrider.testing.scripted_medusa import ScriptedMedusa, random_medusa
from outrider.testing.toy import ToyTarget

VOCAB = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
HOT = SamplingParams(temperature=1.0)
FOUR = Budget(4, 4)


def tapped_target(vocab_size: int = VOCAB) -> ToyTarget:
    target = ToyTarget(vocab_size, seed=2, order=3, sharpness=4.0)
    target.tap([target.num_layers])
    return target


def plain(target: ToyTarget, prompt: Sequence[int]) -> tuple[int, ...]:
    """The greedy text of 60 tokens."""
    return oracle_text(
        target.logits_of, prompt, GREEDY, 0, eos_token_ids=frozenset(), max_length=None
    ).token_ids


class Rows:
    """Heads that say the same of every state."""

    row_invariant = True

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self.rows, self.count = torch.tensor(rows, dtype=torch.float64), len(rows)
        self.token_map: torch.Tensor | None = None

    def __call__(self, states: torch.Tensor, count: int) -> torch.Tensor:
        return self.rows[None, :count].expand(len(states), -1, -1)


def random_rows(heads: int = 4, vocab_size: int = VOCAB) -> Rows:
    return Rows(np.random.default_rng(1).standard_normal((heads, vocab_size)).tolist())


def drafter_of(heads: Heads, topk: int = 1, **settings: object) -> MedusaDrafter:
    how = GrowthSettings(**settings)  # type: ignore[arg-type]
    return MedusaDrafter(heads, tap=4, target_vocab_size=VOCAB, topk=topk, settings=how)


def drafted(
    drafter: MedusaDrafter, place: Context, budget: Budget = FOUR, given: Draft = EMPTY_DRAFT
) -> Draft:
    """A draft behind a context whose certain tokens were just ingested."""
    drafter.forget(place.sequence_id)
    drafter.ingest(place, torch.zeros(len(place.tokens) - 1, 1, 16))
    [draft] = drafter.propose([place], [budget], [given])
    return draft


class Watched:
    """Heads that keep what they are asked about, and believe in the text whose next position `at` gives."""

    row_invariant = False

    def __init__(self, module: MedusaHeads, text: Sequence[int], spoiled: int) -> None:
        self.count, self.at = module.count, len(text)
        self.asked: list[tuple[int, torch.Tensor]] = []
        self.token_map = module.token_map
        self._module, self._text, self._spoiled = module, text, spoiled

    def __call__(self, states: torch.Tensor, count: int) -> torch.Tensor:
        self.asked.append((self.at, self._module(states, count)))
        rows = torch.zeros(1, count, VOCAB, dtype=torch.float64)
        for head in range(count):
            place = self.at + head
            token = self._text[place] if place % self._spoiled else (self._text[place] + 1) % VOCAB
            rows[0, head, token] = 9.0
        return rows


class Scheduled:
    """The next budget of a list, round by round."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._left = list(budgets)

    def budgets(self, contexts: Sequence[Context], load: int) -> list[Budget]:
        return [self._left.pop(0)] * len(contexts)


@pytest.mark.parametrize("topk", [1, 3])
def test_rounds_of_all_kinds_leave_the_rows_of_a_text_read_at_once(topk: int) -> None:
    """Accepted, refused, branching and missing drafts: each row is that of the state a new target gives."""
    target, prompt, depths = tapped_target(), (3, 1, 4, 1, 5), (4, 2, 0, 0, 4, 1, 4, 0, 3, 4)
    text = (*prompt, *plain(target, prompt))
    module = random_medusa(target)
    heads = Watched(module, text, spoiled=7)
    controller = Scheduled([Budget(depth, depth * topk) for depth in depths])
    engine = Engine(Parts(target, drafter_of(heads, topk=topk), RuleBook(), controller))
    running = engine.submit(Request(0, prompt, GREEDY, 0, Guarantee.SAME_TEXT))
    kept = []
    for _ in depths:
        heads.at = len(prompt) + len(running.token_ids)
        [result] = engine.step()
        kept.append(len(result.accepted))
    assert running.token_ids == text[len(prompt) : len(prompt) + len(running.token_ids)]
    assert max(kept) == 4
    assert any(count < depth for count, depth in zip(kept, depths))
    assert len(heads.asked) == 7
    for at, rows in heads.asked:
        [features] = tapped_target().extend([Chunk(9, text[: at - 1])])
        assert features is not None
        assert torch.equal(rows, module(features[-1:, 0], rows.shape[1]))


@pytest.mark.parametrize("topk", [1, 3])
def test_the_contract_is_kept(topk: int) -> None:
    def make(target: ToyTarget) -> MedusaDrafter:
        target.tap([target.num_layers])
        heads = random_medusa(target, heads=5)
        return MedusaDrafter(heads, tap=target.num_layers, target_vocab_size=target.vocab_size, topk=topk)

    check_drafter(make, lambda: ToyTarget(12, sharpness=4.0))  # type: ignore[arg-type]


def rounds_of(corrupted: float, topk: int, budget: Budget) -> list[RoundResult]:
    """A greedy text of 60 tokens, written with scripted heads."""
    target, prompt = tapped_target(), (3, 1, 4, 1, 5)
    expected = plain(target, prompt)
    drafter = ScriptedMedusa(
        {0: (*prompt, *expected)}, tap=4, vocab_size=VOCAB, topk=topk, corrupted=corrupted
    )
    engine = Engine(Parts(target, drafter, RuleBook(), FixedController(budget)))
    running = engine.submit(Request(0, prompt, GREEDY, 0, Guarantee.SAME_TEXT))
    results = []
    while engine.unfinished:
        results += engine.step()
    assert running.token_ids == expected
    return results


def test_heads_that_are_right_are_kept_whole() -> None:
    assert [len(result.emitted) for result in rounds_of(0.0, 1, Budget(4, 4))] == [5] * 12
    assert [len(result.emitted) for result in rounds_of(0.0, 3, Budget(4, 12))] == [5] * 12


def test_a_tree_learns_which_ranks_are_kept() -> None:
    """The right token is always second: the tree turns to second children, of second children in turn."""
    kept = [len(result.accepted) for result in rounds_of(1.0, 2, Budget(4, 8))]
    assert kept[0] < 2
    assert kept[-6:-1] == [3] * 5  # the last round has no room for more


def test_a_tree_is_worth_more_than_a_chain_of_its_depth() -> None:
    chain, tree = rounds_of(0.3, 1, Budget(4, 4)), rounds_of(0.3, 2, Budget(4, 10))
    assert len(tree) < len(chain)


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_a_draft_holds_what_is_worth_its_rows(guarantee: Guarantee) -> None:
    place = Context.of([1, 2, 3], sampling=SamplingParams(temperature=1.0), guarantee=guarantee)

    def size(per_row: float) -> int:
        costs = DraftCosts(RowCosts.linear(per_row), 0.1)
        return len(drafted(drafter_of(random_rows(), topk=2, costs=costs), place, Budget(4, 8)))

    assert size(0.0) == 8
    assert 0 < size(0.2) < 8
    assert size(9.0) == 0


@pytest.mark.parametrize("sampling", [HOT, SamplingParams(temperature=0.6, top_k=4, frequency_penalty=1.0)])
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_children_come_from_the_request_s_law_at_the_row_of_their_depth(
    sampling: SamplingParams, guarantee: Guarantee
) -> None:
    heads = random_rows()
    place = Context.of([1, 2, 3], seed=5, sampling=sampling, guarantee=guarantee)
    draft = drafted(drafter_of(heads, topk=3), place, Budget(4, 12))
    assert len(draft) == 12
    assert not draft.nodes.is_chain
    assert max(draft.nodes.depths) > 1
    choose = place.noise.ranked if guarantee is Guarantee.SAME_TEXT else place.noise.draw
    for row, groups in enumerate(draft.groups):
        for group in groups:
            depth = draft.nodes.depths[row - 1] if row else 0
            law = place.law.node(heads.rows[depth], draft.nodes.path_tokens(row - 1 if row else None))
            tokens = tuple(draft.nodes.tokens[node] for node in group.nodes)
            assert tokens == choose(law, len(tokens), Place(depth, row))
            if guarantee is Guarantee.SAME_TEXT:
                assert isinstance(group.law, PointMass)
            else:
                assert not isinstance(group.law, PointMass)
                np.testing.assert_array_equal(group.law.probs, law.probs)
                assert len(tokens) == 1 or isinstance(group.law, DrawnWithoutReplacement)


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), HOT])
def test_greedy_drafts_are_the_most_probable_tokens_of_each_depth(
    sampling: SamplingParams, guarantee: Guarantee
) -> None:
    heads = random_rows()
    drafter = drafter_of(heads, topk=3, sample_method=SampleMethod.GREEDY)
    draft = drafted(drafter, Context.of([1, 2], sampling=sampling, guarantee=guarantee), Budget(4, 12))
    for row, below in enumerate(draft.nodes.children):
        if not below:
            continue
        best = np.argsort(-heads.rows[draft.nodes.depths[row - 1] if row else 0].numpy())
        assert [draft.nodes.tokens[node] for node in below] == best[: len(below)].tolist()


def test_at_temperature_zero_the_first_child_obeys_the_processors() -> None:
    worst = int(random_rows().rows[0].argmin())
    biased = SamplingParams(temperature=0.0, logit_bias={worst: 50.0})
    draft = drafted(drafter_of(random_rows(), topk=3), Context.of([1, 2], sampling=biased), Budget(1, 3))
    assert draft.nodes.tokens[0] == worst
    assert len(draft) == 3


def test_a_given_chain_is_continued_by_the_heads_below_it_and_a_tree_is_left_alone() -> None:
    heads = random_rows()
    drafter, place = drafter_of(heads), Context.of([1, 2])
    best = [int(row.argmax()) for row in heads.rows]
    assert drafted(drafter, place, Budget(8, 8)) == Draft.chain(best)
    assert drafted(drafter, place, Budget(8, 8), Draft.chain([7, 7])) == Draft.chain([7, 7, *best[2:]])
    full, tree = Draft.chain([7] * 4), Draft.tree([1, 2], [None, None])
    assert drafted(drafter, place, Budget(8, 8), full) is full
    assert drafted(drafter, place, Budget(8, 8), tree) is tree
    assert drafted(drafter, place, Budget(2, 9), Draft.chain([7, 7])) == Draft.chain([7, 7])


def test_what_a_given_chain_promises_counts() -> None:
    """Below a chain that was never kept nothing is worth a row."""
    costs, given = DraftCosts(RowCosts.linear(0.1), 0.0), Draft.chain([7])
    drafter, text = drafter_of(random_rows(), costs=costs), [1, 2, 3]
    drafter.ingest(Context.of(text), torch.zeros(len(text) - 1, 1, 16))
    lengths = []
    for _ in range(40):
        [draft] = drafter.propose([Context.of(text)], [FOUR], [given])
        lengths.append(len(draft))
        scores, features = Scores(torch.zeros(1 + len(draft), VOCAB)), torch.zeros(1, 1, 16)
        drafter.observe([RoundResult(0, (0,), (), draft, scores, features=features)])
        text.append(0)
    assert lengths[0] > 1
    assert lengths[-1] == 1


def test_rounds_in_which_it_is_not_asked_tell_nothing_of_given_chains() -> None:
    costs, given = DraftCosts(RowCosts.linear(0.1), 0.0), Draft.chain([7])
    drafter, text = drafter_of(random_rows(), costs=costs), [1, 2, 3]
    drafter.ingest(Context.of(text), torch.zeros(len(text) - 1, 1, 16))
    lengths = []
    for asked in (True, *[False] * 40, True):
        draft = Draft.chain([7] * 4)  # the method before it fills the budget
        if asked:
            [draft] = drafter.propose([Context.of(text)], [FOUR], [given])
            lengths.append(len(draft))
        scores, features = Scores(torch.zeros(1 + len(draft), VOCAB)), torch.zeros(1, 1, 16)
        drafter.observe([RoundResult(0, (0,), (), draft, scores, features=features)])
        text.append(0)
    assert lengths[0] == lengths[1] > 1


@pytest.mark.parametrize("size", [VOCAB - 4, VOCAB + 4])
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_rows_of_another_width_are_padded_or_cut(size: int, guarantee: Guarantee) -> None:
    drafter = drafter_of(random_rows(vocab_size=size), topk=3)
    for seed in range(20):
        place = Context.of([1, 2], seed=seed, sampling=HOT, guarantee=guarantee)
        assert max(drafted(drafter, place, Budget(3, 9)).nodes.tokens) < min(size, VOCAB)


@pytest.mark.parametrize("sample_method", list(SampleMethod))
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), HOT])
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_tokens_outside_the_draft_vocabulary_are_never_drafted(
    sampling: SamplingParams, guarantee: Guarantee, sample_method: SampleMethod
) -> None:
    rows = random_rows().rows
    rows[:, [token for token in range(VOCAB) if token not in (5, 9)]] = -math.inf
    place = Context.of([1, 2], sampling=sampling, guarantee=guarantee)
    drafter = drafter_of(Rows(rows.tolist()), topk=4, sample_method=sample_method)
    assert set(drafted(drafter, place, Budget(3, 12)).nodes.tokens) == {5, 9}


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), HOT])
def test_a_row_without_a_law_ends_the_draft(sampling: SamplingParams) -> None:
    rows = random_rows().rows
    rows[2, 3] = math.nan
    draft = drafted(drafter_of(Rows(rows.tolist())), Context.of([1, 2], sampling=sampling))
    assert len(draft) == 2


def test_behind_a_prompt_of_one_token_it_waits_for_the_first_round() -> None:
    target = tapped_target()
    drafter = drafter_of(random_rows())
    engine = Engine(Parts(target, drafter, RuleBook(), FixedController(Budget(3, 3))))
    engine.submit(Request(0, (5,), GREEDY, 0, Guarantee.SAME_TEXT))
    assert [len(engine.step()[0].draft) for _ in range(3)] == [0, 3, 3]


def observed(drafter: MedusaDrafter, token: int, sequence_id: int = 0) -> None:
    """A round without a draft that emitted a token."""
    features = torch.zeros(1, 1, 16)
    drafter.observe(
        [
            RoundResult(
                sequence_id, (token,), (), EMPTY_DRAFT, Scores(torch.zeros(1, VOCAB)), features=features
            )
        ]
    )


def test_a_fork_drafts_at_once_where_the_state_is_kept_and_a_round_later_elsewhere() -> None:
    drafter = drafter_of(random_rows())
    drafter.ingest(Context.of([1, 2, 3, 4]), torch.zeros(3, 1, 16))
    observed(drafter, 5)
    observed(drafter, 6)
    for length, drafts in ((3, True), (5, True), (4, False), (2, False)):
        drafter.fork(0, 1, length)
        text = [1, 2, 3, 4, 5, 6, 7][: length + 1]
        [draft] = drafter.propose([Context.of(text, sequence_id=1)], [Budget(2, 2)], [EMPTY_DRAFT])
        assert (len(draft) == 2) == drafts, length
        observed(drafter, 8, sequence_id=1)
        [draft] = drafter.propose([Context.of([*text, 8], sequence_id=1)], [Budget(2, 2)], [EMPTY_DRAFT])
        assert len(draft) == 2
        drafter.forget(1)
    drafter.fork(77, 3, 1)
    assert drafter.propose([Context.of([1, 2], sequence_id=3)], [Budget(2, 2)], [EMPTY_DRAFT]) == [
        EMPTY_DRAFT
    ]


def test_past_its_limit_it_is_silent_and_says_so() -> None:
    drafter = drafter_of(random_rows(), max_length=6)
    assert len(drafted(drafter, Context.of([1] * 4))) == 2
    assert len(drafted(drafter, Context.of([1] * 6))) == 0
    assert drafter.limits == {"draft_context_window": 1}


def test_the_budget_is_that_of_this_round_alone() -> None:
    drafter = drafter_of(random_rows(), topk=4)
    for nodes in (1, 3, 7, 16):
        draft = drafted(drafter, Context.of([1, 2]), Budget(3, nodes))
        assert len(draft) == nodes
        assert max(draft.nodes.depths) <= 3


def test_a_tree_without_children_is_refused() -> None:
    with pytest.raises(ConfigError, match="topk must be at least 1"):
        drafter_of(random_rows(), topk=0)


def test_sequences_do_not_teach_each_other() -> None:
    """Chances measured in one text move no draft of another."""
    target, prompt = tapped_target(), (3, 1, 4, 1, 5)
    expected = plain(target, prompt)
    texts = {0: (*prompt, *expected), 1: (*prompt, *expected)}
    drafter = ScriptedMedusa(texts, tap=4, vocab_size=VOCAB, topk=2, corrupted=1.0)
    engine = Engine(Parts(target, drafter, RuleBook(), FixedController(Budget(4, 6))))
    first = Request(0, prompt, GREEDY, 0, Guarantee.SAME_TEXT)
    drafts = []
    for request in (first, replace(first, request_id=1)):
        engine.submit(request)
        drafts.append([])
        while engine.unfinished:
            drafts[-1] += [result.draft for result in engine.step()]
    assert drafts[0] == drafts[1]
