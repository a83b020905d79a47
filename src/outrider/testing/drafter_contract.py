"""`check_drafter`: what every drafter must do, watched over many rounds on a target that checks its callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.core.law import DrawnWithoutReplacement, PointMass
from outrider.core.protocols import Chunk, Drafter, TargetModel
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
from outrider.core.sequence import Sequence as Running
from outrider.drafters.chain import extends

_NOTHING = Budget(0, 0)
_BUDGETS = (Budget(1, 1), Budget(4, 4), Budget(5, 3), Budget(2, 9), Budget(4, 16))
_SETTINGS = (
    (SamplingParams(temperature=0.0, max_tokens=10_000), Guarantee.SAME_TEXT),
    (SamplingParams(temperature=0.9, top_k=9, max_tokens=10_000), Guarantee.SAME_TEXT),
    (SamplingParams(temperature=0.9, top_k=9, max_tokens=10_000), Guarantee.SAME_DISTRIBUTION),
)


def check_drafter(
    make_drafter: Callable[[TargetModel], Drafter], make_target: Callable[[], TargetModel]
) -> None:
    """Asserts the contract of `Drafter`; `AssertionError` says what differs.

    Drafts keep to their budgets, hold what was given to them, name tokens of the target, and carry laws that
    their tokens can come from. The same rounds give the same drafts: again, in a batch, after rounds without a
    draft, in a fork, and under an id that was forgotten. Whether drafts help is not asked.

    `make_target` opens a new target with room for 120 tokens, such as `lambda: ToyTarget(12, sharpness=4.0)`;
    `make_drafter` a drafter for it. Three settings are run: greedy, and sampled under both guarantees.
    """
    for sampling, guarantee in _SETTINGS:
        setting = _Setting(make_drafter, make_target, sampling, guarantee)
        _drafts_are_well_formed(setting)
        _given_drafts_are_kept(setting)
        _an_empty_budget_adds_nothing(setting)
        _the_same_rounds_give_the_same_drafts(setting)
        _neighbours_do_not_matter(setting)
        _idle_rounds_do_not_matter(setting)
        _forks_draft_alike_and_apart(setting)
        _a_forgotten_id_starts_anew(setting)


@dataclass(frozen=True)
class _Setting:
    make_drafter: Callable[[TargetModel], Drafter]
    make_target: Callable[[], TargetModel]
    sampling: SamplingParams
    guarantee: Guarantee

    def stage(self) -> _Stage:
        target = self.make_target()
        return _Stage(self, target, self.make_drafter(target))


@dataclass
class _Stage:
    """A target, a drafter, and the sequences between them."""

    setting: _Setting
    target: TargetModel
    drafter: Drafter
    running: dict[int, Running] = field(default_factory=dict)

    def open(self, sequence_id: int, prompt: Sequence[int]) -> None:
        """Prefills a prompt as an engine does: in chunks, each shown to the drafter."""
        sequence = self._admitted(sequence_id, prompt)
        middle = len(prompt) // 2
        for chunk in (prompt[:middle], prompt[middle:-1]):
            [features] = self.target.extend([Chunk(sequence_id, chunk)])
            self.drafter.ingest(sequence.context(), features)

    def fork(self, parent_id: int, sequence_id: int) -> None:
        """Opens a sequence with the whole text of another as its prompt."""
        text = tuple(self.running[parent_id].context().tokens)
        self._admitted(sequence_id, text)
        self.target.fork(parent_id, sequence_id, len(text) - 1)
        self.drafter.fork(parent_id, sequence_id, len(text) - 1)

    def close(self, sequence_id: int) -> None:
        del self.running[sequence_id]
        self.target.release(sequence_id)
        self.drafter.forget(sequence_id)

    def propose(self, ids: Sequence[int], budget: Budget, given: Draft = EMPTY_DRAFT) -> list[Draft]:
        contexts = [self.running[i].context() for i in ids]
        drafts = self.drafter.propose(contexts, [budget] * len(ids), [given] * len(ids))
        assert len(drafts) == len(ids), f"{len(drafts)} drafts for {len(ids)} contexts"
        for context, draft in zip(contexts, drafts):
            _check(draft, given, budget, context, self.target.vocab_size)
        return drafts

    def round(self, ids: Sequence[int], budget: Budget) -> list[Draft]:
        """One whole round; the drafts it was made with."""
        drafts = self.propose(ids, budget)
        contexts = [self.running[i].context() for i in ids]
        scores = self.target.score(contexts, drafts)
        results = [self._judged(*job) for job in zip(contexts, drafts, scores)]
        self.target.commit(results)
        self.drafter.observe(results)
        return drafts

    def _judged(self, context: Context, draft: Draft, scores: Scores) -> RoundResult:
        sequence = self.running[context.sequence_id]
        rule = RuleBook().rule_for(context, draft)
        verdict = rule.judge(draft, sequence.laws(draft, scores), context.noise)
        return sequence.append(draft, verdict, scores)

    def _admitted(self, sequence_id: int, prompt: Sequence[int]) -> Running:
        setting = self.setting
        request = Request(sequence_id, tuple(prompt), setting.sampling, 7, setting.guarantee)
        sequence = self.running[sequence_id] = Running(request, max_length=self.target.max_length)
        return sequence


def _prompt(vocab_size: int, which: int) -> list[int]:
    """A text that repeats itself a little, so that lookups have something to find."""
    rng = np.random.default_rng(which)
    once = [int(token) for token in rng.integers(0, min(vocab_size, 256), 9 + which)]
    return [*once, *once[: 6 + which % 3]]


def _check(draft: Draft, given: Draft, budget: Budget, context: Context, vocab_size: int) -> None:
    """A draft within its budget that holds the given one, with laws its tokens can come from."""
    assert extends(draft, given), f"the given draft {given.nodes} is not kept in {draft.nodes}"
    if len(draft) == len(given):
        return
    depth = max(draft.nodes.depths, default=0)
    assert depth <= budget.depth, f"a node at depth {depth} on a budget of {budget}"
    assert len(draft) <= budget.nodes, f"{len(draft)} nodes on a budget of {budget}"
    strange = [token for token in draft.nodes.tokens if not 0 <= token < vocab_size]
    assert not strange, f"drafted tokens {strange} are beyond the vocabulary of {vocab_size}"
    for groups, old in zip(draft.groups, (*given.groups, *[()] * len(draft))):
        for group in groups[len(old) :]:
            _check_law(group, draft, context, vocab_size)


def _check_law(group: Group, draft: Draft, context: Context, vocab_size: int) -> None:
    law = group.law
    assert group.nodes, "a group without nodes"
    if isinstance(law, PointMass):
        return
    probs = law.probs
    assert probs.dtype == np.float64, f"laws are float64, not {probs.dtype}"
    assert probs.shape == (vocab_size,), f"a law over {probs.shape[0]} tokens of {vocab_size}"
    assert (probs >= 0).all(), "a law with a negative or NaN probability"
    assert abs(probs.sum() - 1.0) < 1e-9, f"a law that sums to {probs.sum()}"
    tokens = [draft.nodes.tokens[node] for node in group.nodes]
    assert (probs[tokens] > 0).all(), f"tokens {tokens} cannot come from the law they claim"
    assert len(tokens) == 1 or isinstance(law, DrawnWithoutReplacement), "several tokens of one draw"
    assert not context.sampling.greedy, "at temperature 0 the text has no law to draw from: use point masses"


def _drafts_are_well_formed(setting: _Setting) -> None:
    stage = setting.stage()
    stage.open(0, _prompt(stage.target.vocab_size, 0))
    for _ in range(3):
        for budget in _BUDGETS:
            stage.propose([0], budget)
            stage.round([0], budget)


def _given_drafts_are_kept(setting: _Setting) -> None:
    stage = setting.stage()
    prompt = _prompt(stage.target.vocab_size, 1)
    stage.open(0, prompt)
    a, b = prompt[0], next(token for token in prompt if token != prompt[0])
    tree = Draft.tree([a, b, a], [None, None, 1])
    for given in (Draft.chain([a]), Draft.chain([a, b, a]), tree):
        for budget in (Budget(3, 3), Budget(4, 5), Budget(6, 12)):
            stage.propose([0], budget, given)
    stage.round([0], Budget(4, 4))


def _an_empty_budget_adds_nothing(setting: _Setting) -> None:
    stage = setting.stage()
    stage.open(0, _prompt(stage.target.vocab_size, 2))
    for given in (EMPTY_DRAFT, Draft.chain([0, 1])):
        [draft] = stage.propose([0], _NOTHING, given)
        assert len(draft) == len(given), f"{len(draft) - len(given)} nodes drafted on an empty budget"
    stage.round([0], _NOTHING)


def _story(stage: _Stage, ids: Sequence[int]) -> list[list[Draft]]:
    return [stage.round(ids, budget) for budget in (*_BUDGETS, *_BUDGETS)]


def _the_same_rounds_give_the_same_drafts(setting: _Setting) -> None:
    stories = []
    for _ in range(2):
        stage = setting.stage()
        stage.open(0, _prompt(stage.target.vocab_size, 3))
        stories.append(_story(stage, [0]))
    _assert_alike(stories[0], stories[1], "two runs of the same rounds")


def _neighbours_do_not_matter(setting: _Setting) -> None:
    batch, solo = setting.stage(), setting.stage()
    for sequence_id in (0, 1, 2):
        batch.open(sequence_id, _prompt(batch.target.vocab_size, sequence_id))
    solo.open(1, _prompt(solo.target.vocab_size, 1))
    for budget in _BUDGETS:
        together, alone = batch.round([2, 1, 0], budget), solo.round([1], budget)
        _assert_alike([together[1:2]], [alone], "a sequence in a batch and alone")


def _idle_rounds_do_not_matter(setting: _Setting) -> None:
    """After rounds without a draft a drafter drafts, and a batch that left it out does not confuse it."""
    stage = setting.stage()
    stage.open(0, _prompt(stage.target.vocab_size, 4))
    stage.open(1, _prompt(stage.target.vocab_size, 5))
    stage.round([0, 1], Budget(4, 4))
    for _ in range(20):
        stage.round([0], _NOTHING)
    for _ in range(3):
        stage.round([0, 1], Budget(4, 4))


def _forks_draft_alike_and_apart(setting: _Setting) -> None:
    stage, alone = setting.stage(), setting.stage()
    for each in (stage, alone):
        each.open(0, _prompt(each.target.vocab_size, 6))
        each.round([0], Budget(3, 3))
    stage.fork(0, 1)
    stage.round([1], Budget(4, 4))
    stage.round([1], Budget(4, 4))
    _assert_alike(_story(stage, [0]), _story(alone, [0]), "the parent of a fork and a sequence never forked")
    stage.close(0)
    _story(stage, [1])


def _a_forgotten_id_starts_anew(setting: _Setting) -> None:
    stage, fresh = setting.stage(), setting.stage()
    stage.drafter.forget(99)
    stage.open(0, _prompt(stage.target.vocab_size, 7))
    _story(stage, [0])
    stage.close(0)
    for each in (stage, fresh):
        each.open(0, _prompt(each.target.vocab_size, 8))
    _assert_alike(_story(stage, [0]), _story(fresh, [0]), "a forgotten id used again and a new drafter")


def _assert_alike(found: Sequence[Sequence[Draft]], wanted: Sequence[Sequence[Draft]], what: str) -> None:
    for number, (left, right) in enumerate(zip(found, wanted)):
        for one, other in zip(left, right):
            assert _alike(one, other), (
                f"{what}: drafts of round {number} differ, {one.nodes} and {other.nodes}"
            )


def _alike(one: Draft, other: Draft) -> bool:
    if one.nodes != other.nodes:
        return False
    pairs = [(a, b) for left, right in zip(one.groups, other.groups) for a, b in zip(left, right)]
    return all(a.nodes == b.nodes and _same_law(a, b) for a, b in pairs)


def _same_law(one: Group, other: Group) -> bool:
    if type(one.law) is not type(other.law):
        return False
    if isinstance(one.law, PointMass) or isinstance(other.law, PointMass):
        return True
    return np.array_equal(one.law.probs, other.law.probs)
