"""Long texts with rejections leave a method as right as it was: caches, states and tables do not wear out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from method_rounds import Watched, engine, finished, plain_tokens, request, spoiled_at

from outrider.core.law import Floats
from outrider.core.protocols import Drafter
from outrider.core.records import Budget, Context, Draft
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.self_draft import SelfDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.row_costs import RowCosts
from outrider.testing.language import HashedLanguage
from outrider.testing.scripted_head import ScriptedHead
from outrider.testing.scripted_medusa import ScriptedMedusa
from outrider.testing.toy import ToyTarget

FREE = RowCosts.linear(0.0)
VOCAB = 24
DEPTH = 4


def circle(tokens: Sequence[int]) -> Floats:  # [vocab]
    """A language that counts through 11 tokens, round and round."""
    logits = HashedLanguage(VOCAB, seed=1)(tokens).copy()
    logits[(tokens[-1] + 1) % 11] += 30.0
    return logits


LONG = request(0, (3, 4, 5), temperature=0.8, max_tokens=320)  # more features than may wait for a draft
Perfect = Callable[[ToyTarget, Sequence[int]], Drafter]


def scripted_head(topk: int) -> Perfect:
    return lambda target, text: EagleDrafter(
        ScriptedHead({0: text}, vocab_size=VOCAB, corrupted=0.0), target_vocab_size=VOCAB, topk=topk
    )


def scripted_medusa(topk: int) -> Perfect:
    return lambda target, text: ScriptedMedusa(
        {0: text}, tap=target.num_layers, vocab_size=VOCAB, topk=topk, corrupted=0.0
    )


def twin(topk: int) -> Perfect:
    return lambda target, text: ModelDrafter(target.imitation(0.0), target_vocab_size=VOCAB, topk=topk)


PERFECT: dict[str, tuple[Perfect, int]] = {
    "draft_model": (twin(1), 4),
    "draft_model tree": (twin(2), 8),
    "self_draft": (lambda target, text: SelfDrafter.early_exit(target, 2), 4),
    "medusa": (scripted_medusa(1), 4),
    "medusa tree": (scripted_medusa(2), 30),
    "eagle": (scripted_head(1), 4),
    "eagle tree": (scripted_head(2), 8),
    "ngram, draft_model": (lambda target, text: ChainedDrafter([NgramDrafter(), twin(1)(target, text)]), 4),
    "suffix, eagle": (
        lambda target, text: ChainedDrafter([SuffixDrafter(), scripted_head(1)(target, text)], target.taps),
        4,
    ),
}


@pytest.mark.parametrize("name", PERFECT)
def test_three_hundred_tokens_with_rejections_leave_a_right_draft_right(name: str) -> None:
    build, nodes = PERFECT[name]
    target = ToyTarget(VOCAB, language=circle, noise_scale=0.0)
    text = (*LONG.prompt, *plain_tokens(target, LONG))
    target.tap([1, target.num_layers] if "eagle" not in name else [1])
    spoilt: list[int | None] = []

    def spoil(context: Context, draft: Draft) -> Draft:
        depth = len(spoilt) % 7  # two of seven rounds are left alone
        if not 1 <= depth <= min(DEPTH, max(draft.nodes.depths, default=0)):
            spoilt.append(None)
            return draft
        spoilt.append(depth)
        return spoiled_at(draft, depth, text[len(context.tokens) :], VOCAB)

    opened = engine(target, Watched(build(target, text), spoil), Budget(DEPTH, nodes))
    [done], results = finished(opened, [LONG])
    assert done.token_ids == text[len(LONG.prompt) :]
    start = len(LONG.prompt)
    for result, depth in zip(results, spoilt):
        possible = min(DEPTH, len(text) - start - 1)
        if result.features is None or start > len(LONG.prompt):  # heads may wait for a first feature
            assert len(result.accepted) == (possible if depth is None else depth - 1), start
        start += len(result.emitted)


LOOKUPS: dict[str, Callable[[], Drafter]] = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "suffix tree": lambda: SuffixDrafter(topk=2),
    "recycling": lambda: RecyclingDrafter(topk=3, costs=FREE),
    "lookahead": LookaheadDrafter,
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_three_hundred_tokens_with_rejections_do_not_wear_a_lookup_out(name: str) -> None:
    target = ToyTarget(VOCAB, language=circle)
    text = (*LONG.prompt, *plain_tokens(target, LONG))
    rounds = [0]

    def spoil(context: Context, draft: Draft) -> Draft:
        rounds[0] += 1
        depth = min(2, max(draft.nodes.depths, default=0))
        if rounds[0] % 3 or not depth:
            return draft
        return spoiled_at(draft, depth, text[len(context.tokens) :], VOCAB)

    opened = engine(target, Watched(LOOKUPS[name](), spoil), Budget(DEPTH, 18))
    [done], results = finished(opened, [LONG])
    assert done.token_ids == text[len(LONG.prompt) :]
    accepted = [len(result.accepted) for result in results]
    share = 24  # rounds
    first, last = accepted[share : 2 * share], accepted[-share - 1 : -1]
    assert sum(last) >= 0.9 * sum(first) > share
