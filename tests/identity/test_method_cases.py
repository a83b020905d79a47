"""What users of other systems reported of drafters, told of every method: limits, forks, edges, privacy, lists.

Texts are compared with the target's own; drafts with those of a drafter that never saw what might have hurt it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from method_rounds import (
    METHODS,
    Method,
    Watched,
    engine,
    finished,
    head_for,
    plain_tokens,
    request,
    spoiled_at,
)
from spoken import byte_tokenizer

from outrider import LLM, SamplingParams
from outrider.core.law import Floats, PointMass
from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee
from outrider.core.sequence import Sequence as Running
from outrider.drafters.chain import ChainedDrafter
from outrider.errors import ConfigError
from outrider.testing.language import HashedLanguage
from outrider.testing.toy import ToyTarget

VOCAB = 24
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
by_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


def toy(**settings: object) -> ToyTarget:
    return ToyTarget(VOCAB, seed=5, order=2, sharpness=2.5, **settings)  # type: ignore[arg-type]


def budget_of(method: Method, target: ToyTarget) -> Budget:
    config = method.config(target)
    return Budget(config.depth, config.nodes)


# Windows.


@pytest.mark.parametrize(
    "method", [m for m in METHODS if m.modelled not in (None, "self_draft")], ids=lambda m: m.name
)
@pytest.mark.parametrize("length", [20, 30, 31, 32, 50])
def test_past_the_window_of_a_model_or_head_the_text_goes_on(method: Method, length: int) -> None:
    target, one = toy(), request(0, [(3 * i) % VOCAB for i in range(length)], max_tokens=20)
    expected = plain_tokens(toy(), one)
    drafter = method.drafter(target, max_model_len=32)
    watched = Watched(drafter)
    [done], _ = finished(engine(target, watched, Budget(4, 12)), [one])
    assert done.token_ids == expected
    members = drafter.drafters if isinstance(drafter, ChainedDrafter) else (drafter,)
    model = members[-1]
    assert model.limits["draft_context_window"] > 0  # type: ignore[attr-defined]
    if len(members) == 1:
        assert all(not len(draft) for held, draft in watched.seen[0] if held >= 32)
        assert any(len(draft) for draft in watched.drafts(0)) == (length < 32)


@by_method
@pytest.mark.parametrize("left", [1, 2, 5])
def test_a_text_ends_at_the_context_limit(method: Method, left: int) -> None:
    target = toy(max_length=len(PROMPT) + left)
    one = request(0, PROMPT, temperature=0.8)
    drafter = method.drafter(target)
    [done], _ = finished(engine(target, drafter, budget_of(method, target)), [one])
    assert done.token_ids == plain_tokens(toy(max_length=len(PROMPT) + left), one)
    assert len(done.token_ids) == left
    assert done.finish_reason == "length"


# Warm equals cold.


@by_method
def test_a_request_that_forks_a_running_one_drafts_as_if_it_were_alone(method: Method) -> None:
    target = toy()
    budget = budget_of(method, target)
    watched = Watched(method.drafter(target))
    opened = engine(target, watched, budget)
    first = opened.submit(request(0, PROMPT, temperature=0.8, seed=1, max_tokens=24))
    for _ in range(4):
        opened.step()
    assert first.finish_reason is None
    forked = request(1, PROMPT, temperature=0.8, seed=2, max_tokens=16)
    finished(opened, [forked])
    assert target.calls["fork"] == 1
    finished(opened, [request(2, PROMPT[::-1], temperature=0.8, seed=3, max_tokens=12)])
    for number, (prompt, seed, length) in enumerate(
        [(PROMPT, 1, 24), (PROMPT, 2, 16), (PROMPT[::-1], 3, 12)]
    ):
        cold = toy()
        alone = Watched(method.drafter(cold))
        one = request(number, prompt, temperature=0.8, seed=seed, max_tokens=length)
        finished(engine(cold, alone, budget), [one])
        assert alone.drafts(number) == watched.drafts(number), f"request {number}"


# Targets that cannot do everything.


@by_method
def test_a_target_without_trees_gets_chains(method: Method) -> None:
    target = toy(supports_trees=False)
    params = [SamplingParams(temperature=t, seed=3, max_tokens=24, ignore_eos=True) for t in (0.0, 0.8)]
    llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=method.config(target))
    fast = llm.generate([PROMPT] * 2, params)
    slow = llm.with_speculation(None).generate([PROMPT] * 2, params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in slow]
    assert sum(c.stats.num_draft_tokens for c in fast) > 0


class Bare:
    """A target that shows no hidden states and runs no layers on request."""

    def __init__(self, target: ToyTarget) -> None:
        self.vocab_size, self.row_invariant = target.vocab_size, True
        self.max_length, self.supports_trees = None, True
        for name in ("extend", "score", "commit", "rewind", "fork", "release", "cached_length"):
            setattr(self, name, getattr(target, name))


@by_method
def test_a_target_that_shows_nothing_but_logits_serves_what_needs_no_more(method: Method) -> None:
    target = toy()
    bare = Bare(target)
    assert isinstance(bare, TargetModel)
    config = method.config(target)
    if set(config.methods) & {"self_draft", "medusa", "eagle", "eagle3"}:
        with pytest.raises(ConfigError, match="Bare"):
            LLM.from_parts(bare, byte_tokenizer(()), speculative_config=config)
        return
    llm = LLM.from_parts(bare, byte_tokenizer(()), speculative_config=config)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True)
    assert llm.generate(PROMPT, params)[0].token_ids == plain_tokens(
        toy(), request(0, PROMPT, temperature=0.8, seed=3, max_tokens=24)
    )


# Edges of a round.

READERS = (
    "ngram",
    "suffix",
    "draft_model",
    "self_draft",
    "medusa",
    "eagle",
    "suffix, eagle3",
    "ngram, draft_model",
)
STATELESS = [m for m in METHODS if m.name in READERS]
"""Methods whose chains hang on the text alone, however it came about, where they are not cut to what the text kept."""


@dataclasses.dataclass
class Listed:
    """A controller that gives out the budgets of a list in turn."""

    listed: Sequence[Budget]
    given: int = 0

    def budgets(self, contexts: Sequence[Context], load: int) -> list[Budget]:
        self.given += 1
        return [self.listed[(self.given - 1) % len(self.listed)]] * len(contexts)


EDGES = {
    "one token": [Budget(1, 1)],
    "nothing after an accepted round": [Budget(4, 4), Budget(0, 0)],
    "long, none, none, one, long": [Budget(4, 4), Budget(0, 0), Budget(0, 0), Budget(1, 1), Budget(3, 3)],
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("spoilt", ["nothing", "the first", "the last"])
@pytest.mark.parametrize("method", STATELESS, ids=lambda m: m.name)
def test_after_any_edge_a_chain_is_that_of_a_drafter_that_just_read_the_text(
    method: Method, spoilt: str, edge: str
) -> None:
    one = request(0, PROMPT, temperature=0.8, max_tokens=16)
    text = (*PROMPT, *plain_tokens(toy(), one))

    def spoil(context: Context, draft: Draft) -> Draft:
        made.append((len(context.tokens), draft))
        if spoilt == "nothing" or not len(draft):
            return draft
        depth = 1 if spoilt == "the first" else len(draft)
        return spoiled_at(draft, depth, text[len(context.tokens) :], VOCAB)

    made: list[tuple[int, Draft]] = []
    target = toy()
    [done], results = finished(
        engine(target, Watched(method.drafter(target, cut_drafts=False), spoil), Listed(EDGES[edge])), [one]
    )
    assert (*PROMPT, *done.token_ids) == text
    for (length, draft), result in zip(made, results):
        if len(draft) and length > len(PROMPT):
            depth = max(len(draft), 1)
            assert read_anew(method, one, text[:length], Budget(depth, depth)) == draft, length
        assert len(result.emitted) == len(result.accepted) + 1 or length + len(result.emitted) == len(text)


def read_anew(method: Method, one: object, text: Sequence[int], budget: Budget) -> Draft:
    """The draft below this text by a drafter that was shown it as a prompt."""
    target = toy()
    drafter = method.drafter(target, cut_drafts=False)
    running = Running(dataclasses.replace(one, prompt=tuple(text)), max_length=None)  # type: ignore[type-var]
    context = running.context()
    [features] = target.extend([Chunk(0, text[:-1])])
    drafter.ingest(context, features)
    [draft] = drafter.propose([context], [budget], [EMPTY_DRAFT])
    return draft


# No request drafts from another's text.


def halves(tokens: Sequence[int]) -> Floats:  # [vocab]
    """A language whose texts stay in the half of the vocabulary that they began in."""
    logits = HashedLanguage(VOCAB, seed=4, order=1, sharpness=4.0)(tokens).copy()
    half = slice(VOCAB // 2, VOCAB) if tokens[0] < VOCAB // 2 else slice(0, VOCAB // 2)
    logits[half] -= 60.0
    return logits


LOW = request(0, (1, 2, 3, 1, 2, 3), max_tokens=16)
HIGH = request(1, (20, 21, 22, 20, 21, 22), seed=8, temperature=0.8, max_tokens=16)


def drafts_of_high(method: Method, others: Sequence[str], **more: object) -> list[Draft]:
    """The drafts of one request: with another beside it, before it, or neither."""
    target = ToyTarget(VOCAB, language=halves)
    watched = Watched(method.drafter(target, **more))
    opened = engine(target, watched, budget_of(method, target))
    if "before" in others:
        finished(opened, [dataclasses.replace(LOW, request_id=7)])
    finished(opened, [LOW, HIGH] if "beside" in others else [HIGH])
    return watched.drafts(1)


@by_method
def test_no_draft_depends_on_another_request_or_holds_its_tokens(method: Method) -> None:
    alone = drafts_of_high(method, [])
    assert any(len(draft) for draft in alone)
    assert drafts_of_high(method, ["before", "beside"]) == alone
    if method.modelled is None and "self_draft" not in method.name:
        used = {token for draft in alone for token in draft.nodes.tokens}
        assert min(used) >= VOCAB // 2


@pytest.mark.parametrize("shared", [False, True])
def test_only_shared_suffixes_tell_of_another_s_text(shared: bool) -> None:
    target = ToyTarget(VOCAB, language=halves)
    method = Method("suffix", {"method": "suffix"})
    watched = Watched(method.drafter(target, suffix_share_requests=shared))
    opened = engine(target, watched, Budget(8, 8))
    [low], _ = finished(opened, [LOW])
    again = (1, low.token_ids[3])  # one token of the other's output, and nothing that followed
    finished(opened, [request(5, again, max_tokens=1), request(6, again, max_tokens=2)])
    first = watched.drafts(6)[0]
    assert (len(first) > 0) == shared


# Lists of methods.


@pytest.mark.parametrize("method", [m for m in METHODS if ", " in m.name], ids=lambda m: m.name)
@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_in_a_list_the_first_drafts_then_the_next_and_every_node_keeps_its_own_law(
    method: Method, guarantee: Guarantee
) -> None:
    target = toy()
    drafter = method.drafter(target)
    assert isinstance(drafter, ChainedDrafter)
    watched = Watched(drafter)
    some = [request(i, (*PROMPT, *PROMPT[: 4 + i]), guarantee=guarantee, temperature=t, seed=i)
            for i, t in enumerate((0.0, 0.8, 1.2))]  # fmt: skip
    done, results = finished(engine(target, watched, budget_of(method, target)), some)
    if guarantee is Guarantee.SAME_TEXT:
        assert [d.token_ids for d in done] == [plain_tokens(toy(), one) for one in some]
    elif method.modelled:
        laws = {type(groups[0].law) is PointMass for number in (1, 2)
                for draft in watched.drafts(number) for groups in draft.groups if groups}  # fmt: skip
        assert laws == {True, False}, "point masses of the first, drawn nodes of the second"
    for number in range(3):
        for draft in watched.drafts(number):
            assert all(len(groups) <= 1 for groups in draft.groups), "one law per parent"
    assert sum(len(result.draft) for result in results) > 0


# Where a head runs.


DTYPES = ["auto", "float32", "bfloat16", pytest.param("int8", marks=pytest.mark.native)]


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "self_draft"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_in_any_precision_changes_no_text(name: str, dtype: str) -> None:
    target = toy()
    settings = {"method": name, "model": head_for(name, target), "draft_dtype": dtype, "draft_device": "cpu",
                "topk": 2}  # fmt: skip
    llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=settings)
    params = [SamplingParams(temperature=t, seed=3, max_tokens=16, ignore_eos=True) for t in (0.0, 0.8)]
    fast = llm.generate([PROMPT] * 2, params)
    slow = llm.with_speculation(None).generate([PROMPT] * 2, params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in slow]
    assert all(c.stats.num_draft_tokens > 10 for c in fast)


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "self_draft"])
@pytest.mark.parametrize(("settings", "named"), [
    ({"draft_dtype": "float16"}, "float16"), ({"draft_dtype": "int4"}, "int4"), ({"draft_device": "gpu"}, "gpu"),
    ({"draft_device": ""}, "draft_device"), ({"draft_device": "cuda:99"}, "cuda:99"),
    ({"draft_device": "meta"}, "meta"), ({"draft_device": 10**30}, "draft_device"),
])  # fmt: skip
def test_a_place_or_precision_that_no_head_can_have_is_refused_by_name(
    name: str, settings: dict[str, Any], named: str
) -> None:
    target = toy()
    with pytest.raises(ConfigError, match=named):
        LLM.from_parts(target, byte_tokenizer(()), speculative_config={
            "method": name, "model": head_for(name, target), **settings})  # fmt: skip


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "self_draft"])
def test_a_head_with_broken_weights_changes_no_text(name: str) -> None:
    target = toy()
    head = head_for(name, target)
    for value in (float("nan"), float("inf")):
        broken = {key: torch.full_like(tensor, value) for key, tensor in head.tensors.items()}
        for topk in (1, 3):
            settings = {"method": name, "model": dataclasses.replace(head, tensors=broken), "topk": topk}
            llm = LLM.from_parts(target, byte_tokenizer(()), speculative_config=settings)
            params = [SamplingParams(temperature=t, seed=3, max_tokens=20, ignore_eos=True) for t in (0, 0.8)]
            fast = llm.generate([PROMPT] * 2, params)
            slow = llm.with_speculation(None).generate([PROMPT] * 2, params)
            assert [c.token_ids for c in fast] == [c.token_ids for c in slow]


def test_methods_that_read_different_layers_take_turns_on_one_target() -> None:
    target = toy()
    params = [SamplingParams(temperature=t, seed=3, max_tokens=16, ignore_eos=True) for t in (0.0, 0.8)]
    plain = LLM.from_parts(target, byte_tokenizer(()))
    expected = [c.token_ids for c in plain.generate([PROMPT] * 2, params)]
    modelled = [m for m in METHODS if m.modelled]
    cold = {}
    for method in modelled:
        fresh = toy()
        llm = LLM.from_parts(fresh, byte_tokenizer(()), speculative_config=method.config(fresh))
        cold[method.name] = [c.stats for c in llm.generate([PROMPT] * 2, params)]
    warm = [plain.with_speculation(method.config(target)) for method in modelled]
    for _ in range(2):
        for method, llm in zip(modelled, warm):
            done = llm.generate([PROMPT] * 2, params)
            assert [c.token_ids for c in done] == expected
            assert [c.stats for c in done] == cold[method.name], f"{method.name} reads its own columns"
