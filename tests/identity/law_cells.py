"""Cells of the law suites: tiny languages, drafters of many kinds, and the law of whole generations."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from changing import ChangingController
from scipy import stats

from outrider.core.law import Floats
from outrider.core.protocols import Drafter
from outrider.core.records import Budget, Guarantee, Request
from outrider.core.rules import RejectionMethod, RuleBook
from outrider.core.sampling import SamplingParams
from outrider.core.target_law import TargetLaw
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.medusa import MedusaDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.self_draft import SelfDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.models.eagle_head import EagleHead
from outrider.models.exit_head import ExitHead, exit_shapes
from outrider.models.head_cache import CachedHead
from outrider.models.heads import ExitConfig, Head
from outrider.models.row_costs import RowCosts
from outrider.testing.rule_contract import law_of_texts
from outrider.testing.scripted_medusa import random_medusa
from outrider.testing.tiny_head import tiny_eagle3
from outrider.testing.toy import ToyTarget

FREE = RowCosts.linear(0.0)
VOCAB = 3
PROMPT = (0, 1, 2, 0, 1, 1)
TEMPERATURE = 0.9
PLAIN = SamplingParams(temperature=TEMPERATURE)

Tokens = tuple[int, ...]
Law = Mapping[Tokens, float]


def tiny_target() -> ToyTarget:
    """A target of three tokens; every call opens a new one that speaks the same language."""
    return ToyTarget(VOCAB, seed=3, order=2, sharpness=1.0)


def plain_law(length: int, sampling: SamplingParams | None = None) -> dict[Tokens, float]:
    """The law of the first `length` tokens that plain decoding draws after the prompt, enumerated."""
    target = tiny_target()

    def probs(path: Sequence[int]) -> Floats:
        logits = target.logits_of([*PROMPT, *path])
        if sampling is not None:
            return TargetLaw(sampling, prompt=PROMPT).node(logits, path).probs
        weights: Floats = np.exp(logits / TEMPERATURE)
        return weights / weights.sum()

    law = law_of_texts([(1.0, ())], probs, length)
    return {tokens: float(chance) for tokens, chance in np.ndenumerate(law)}


CHAIN, TREE = Budget(3, 3), Budget(2, 4)


@dataclass(frozen=True)
class Cell:
    """A way to draft and to judge; `method` None is what the rule book takes by itself."""

    name: str
    build: Callable[[ToyTarget], Drafter]
    budget: Budget = CHAIN
    method: RejectionMethod | None = None
    guarantee: Guarantee = Guarantee.SAME_DISTRIBUTION
    changing: bool = False
    sampling: SamplingParams = PLAIN

    def parts(self) -> Parts:
        """A new target, drafter and controller of this cell."""
        target = tiny_target()
        controller = ChangingController(self.budget) if self.changing else FixedController(self.budget)
        return Parts(target, self.build(target), RuleBook(self.method), controller)

    def request(self, number: int, seed: int, length: int) -> Request:
        sampling = replace(self.sampling, max_tokens=length)
        return Request(number, PROMPT, sampling, seed, self.guarantee)


def model(
    topk: int = 1, sample_method: SampleMethod = SampleMethod.PROBABILISTIC
) -> Callable[[ToyTarget], Drafter]:
    """A draft model that speaks much like the target, yet is often refused."""
    return lambda target: ModelDrafter(
        target.imitation(1.0), target_vocab_size=VOCAB, topk=topk, settings=GrowthSettings(sample_method)
    )


def short_sighted_model(target: ToyTarget) -> Drafter:
    """A draft model whose window ends two tokens after the prompt: what follows is left to others."""
    draft = target.imitation(1.0, max_length=len(PROMPT) + 2)
    return ModelDrafter(draft, target_vocab_size=VOCAB)


def ngram(target: ToyTarget) -> Drafter:
    return NgramDrafter(1, 3)


@cache
def eagle_module() -> EagleHead:
    """One head for all targets of these suites, which speak the same language."""
    return tiny_eagle3(tiny_target()).head


def eagle(topk: int = 1) -> Callable[[ToyTarget], Drafter]:
    def build(target: ToyTarget) -> Drafter:
        target.tap(eagle_module().taps)
        return EagleDrafter(CachedHead(eagle_module()), target_vocab_size=VOCAB, topk=topk)

    return build


def suffix(topk: int = 1) -> Callable[[ToyTarget], Drafter]:
    """Suffix drafts that stop at nothing."""
    return lambda target: SuffixDrafter(min_token_prob=0.0, max_spec_factor=4.0, topk=topk, costs=FREE)


def recycling(topk: int) -> Callable[[ToyTarget], Drafter]:
    """Recycled successors, drafted whatever they cost."""
    return lambda target: RecyclingDrafter(topk=topk, costs=FREE)


def lookahead(target: ToyTarget) -> Drafter:
    return LookaheadDrafter(window=2, ngram=2, candidates=1)


def medusa(topk: int = 1) -> Callable[[ToyTarget], Drafter]:
    """Random heads on the target's last hidden state."""

    def build(target: ToyTarget) -> Drafter:
        target.tap([target.num_layers])
        heads = random_medusa(target, heads=3)
        return MedusaDrafter(heads, tap=target.num_layers, target_vocab_size=VOCAB, topk=topk)

    return build


def exit_head(topk: int = 1) -> Callable[[ToyTarget], Drafter]:
    """A random head behind two of the target's layers."""

    def build(target: ToyTarget) -> Drafter:
        config = ExitConfig(2, target.hidden_size, target.hidden_size, VOCAB, VOCAB)
        made = torch.Generator().manual_seed(7)
        tensors = {
            name: torch.randn(shape, generator=made, dtype=torch.float64) * target.hidden_size**-0.5
            for name, shape in exit_shapes(config).items()
        }
        head = ExitHead(Head(config, tensors), target.token_weights(), dtype=torch.float64)
        return SelfDrafter.early_exit(target, 2, exit_head=head, topk=topk)

    return build


STANDARD, BLOCK, TRAVERSAL = RejectionMethod.STANDARD, RejectionMethod.BLOCK, RejectionMethod.TRAVERSAL

CELLS = (
    Cell("same text, chain", model(), guarantee=Guarantee.SAME_TEXT),
    Cell("same text, tree", model(2), TREE, guarantee=Guarantee.SAME_TEXT),
    Cell("chain, block", model(), method=BLOCK),
    Cell("chain, standard", model(), method=STANDARD),
    Cell("chain, traversal", model(), method=TRAVERSAL),
    Cell("tree, traversal", model(2), TREE, method=TRAVERSAL),
    Cell("tree, standard", model(2), TREE, method=STANDARD),
    Cell("ngram, block", ngram),
    Cell("ngram, standard", ngram, method=STANDARD),
    Cell("suffix, block", suffix(), method=BLOCK),
    Cell("suffix, standard", suffix(), method=STANDARD),
    Cell("suffix tree", suffix(2), TREE),
    Cell("recycling, block", recycling(1), method=BLOCK),
    Cell("recycling tree", recycling(2), TREE),
    Cell("lookahead", lookahead, TREE),
    Cell("lookahead, standard", lookahead, TREE, method=STANDARD),
    Cell(
        "model, then suffix", lambda target: ChainedDrafter([short_sighted_model(target), suffix()(target)])
    ),
    Cell("greedy tree", model(2, SampleMethod.GREEDY), TREE),
    Cell("changing length, block", model(), changing=True),
    Cell("changing length, tree", model(2), Budget(3, 5), changing=True),
    Cell("same text, changing length", model(), guarantee=Guarantee.SAME_TEXT, changing=True),
    Cell("ngram, then model", lambda target: ChainedDrafter([NgramDrafter(3, 4), model()(target)])),
    Cell("model, then ngram", lambda target: ChainedDrafter([short_sighted_model(target), ngram(target)])),
    Cell("medusa, chain", medusa()),
    Cell("medusa, tree", medusa(2), TREE),
    Cell("medusa, tree, standard", medusa(2), TREE, method=STANDARD),
    Cell("same text, medusa tree", medusa(2), TREE, guarantee=Guarantee.SAME_TEXT),
    Cell("self-drafting tree", lambda target: SelfDrafter.early_exit(target, 2, topk=2), TREE),
    Cell("exit head chain", exit_head()),
    Cell("exit head tree", exit_head(2), TREE),
    Cell("same text, exit head tree", exit_head(2), TREE, guarantee=Guarantee.SAME_TEXT),
    Cell("eagle chain, block", eagle()),
    Cell("eagle tree, traversal", eagle(2), TREE),
    Cell("eagle, changing length", eagle(), changing=True),
    Cell("same text, recycling tree", recycling(2), TREE, guarantee=Guarantee.SAME_TEXT),
    Cell("same text, lookahead", lookahead, TREE, guarantee=Guarantee.SAME_TEXT),
    Cell(
        "ngram, then medusa",
        lambda target: ChainedDrafter([NgramDrafter(3, 4), medusa()(target)], target.taps),
    ),
    Cell(
        "suffix, then eagle", lambda target: ChainedDrafter([suffix()(target), eagle()(target)], target.taps)
    ),
    Cell("self-drafting chain", lambda target: SelfDrafter.early_exit(target, 2)),
    Cell("same text, eagle tree", eagle(2), TREE, guarantee=Guarantee.SAME_TEXT),
)


def written(cell: Cell, seeds: Iterable[int], length: int) -> Counter[Tokens]:
    """How often the real engine with the real noise writes each text of `length` tokens, over the seeds."""
    engine, numbers = Engine(cell.parts(), max_batch=64), itertools.count()
    running = [engine.submit(cell.request(next(numbers), seed, length)) for seed in seeds]
    run_to_end(engine, running)
    return Counter(done.token_ids for done in running)


def surprise(counts: Mapping[Tokens, int], law: Law) -> float:
    """The p-value of the counts under the law: chi-square tests of all prefix lengths, Bonferroni-corrected.

    Outcomes expected fewer than five times are pooled. Short prefixes find a bias of single tokens, long ones
    a dependence between tokens.
    """
    length = len(next(iter(law)))
    return min(
        1.0, length * min(_chi_square(_prefixes(counts, n), _prefixes(law, n)) for n in range(1, length + 1))
    )


def _prefixes(weights: Mapping[Tokens, float], length: int) -> dict[Tokens, float]:
    sums: dict[Tokens, float] = {}
    for tokens, weight in weights.items():
        sums[tokens[:length]] = sums.get(tokens[:length], 0.0) + weight
    return sums


def _chi_square(counts: Mapping[Tokens, float], law: Law) -> float:
    assert counts.keys() <= law.keys(), "nothing impossible was written"
    total = sum(counts.values())
    expected = np.array([total * law[t] for t in law])
    observed = np.array([counts.get(t, 0.0) for t in law])
    rare = expected < 5.0
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    return float(stats.chisquare(observed, expected * (observed.sum() / expected.sum())).pvalue)
