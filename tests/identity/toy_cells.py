"""Cells of the toy identity suites: requests of many settings, drafters of many kinds, and their engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from outrider.core.completion import SpeculationStats as Stats
from outrider.core.noise import uniform
from outrider.core.protocols import Drafter
from outrider.core.records import Budget, Guarantee, Request
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.core.sequence import Sequence as Running
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.medusa import MedusaDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.self_draft import SelfDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.suffix_corpus import SuffixCorpus
from outrider.engine.controller import Controller, FixedController
from outrider.engine.engine import Engine, Parts, run_to_end
from outrider.models.row_costs import RowCosts
from outrider.testing.oracle import OracleText, oracle_text
from outrider.testing.scripted import ScriptedDrafter
from outrider.testing.scripted_exit import scripted_exit
from outrider.testing.scripted_head import ScriptedHead
from outrider.testing.scripted_medusa import ScriptedMedusa, random_medusa
from outrider.testing.tiny_head import tiny_eagle, tiny_eagle3
from outrider.testing.toy import ToyTarget

FREE = RowCosts.linear(0.0)
VOCAB = 24
EOS = 7
MAX_TOKENS = 24
BAD_WORDS = ((3,), (11, 5), (2, 19))


def toy_target(**settings: object) -> ToyTarget:
    """The target of these suites; every call opens a new one that speaks the same language."""
    return ToyTarget(VOCAB, seed=5, order=2, sharpness=2.5, **settings)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Job:
    """One request of the suites and what plain decoding writes for it."""

    name: str
    request: Request

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and expected output: what a scripted drafter reads from."""
        return (*self.request.prompt, *self.expected.token_ids)

    @cached_property
    def expected(self) -> OracleText:
        request = self.request
        return oracle_text(toy_target().logits_of, request.prompt, request.sampling, request.seed,
                           eos_token_ids=request.eos_token_ids, max_length=None,
                           bad_word_ids=request.bad_word_ids)  # fmt: skip


def settings() -> dict[str, SamplingParams]:
    """Every sampling feature that works on token ids, alone and together."""

    def of(**given: object) -> SamplingParams:
        return SamplingParams(**{"max_tokens": MAX_TOKENS, "ignore_eos": True, **given})  # type: ignore[arg-type]

    return {
        "greedy": of(temperature=0),
        "greedy to EOS": of(temperature=0, ignore_eos=False),
        "sampled": of(temperature=0.8),
        "sampled to EOS": of(temperature=0.8, ignore_eos=False),
        "hot": of(temperature=1.6),
        "top_p": of(temperature=0.8, top_p=0.9),
        "top_k and min_p": of(temperature=1.1, top_k=6, min_p=0.05),
        "penalties": of(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
        "greedy penalties": of(temperature=0, repetition_penalty=1.2, frequency_penalty=0.5),
        "no_repeat_ngram": of(temperature=0, no_repeat_ngram_size=3),
        "logit_bias": of(temperature=0.9, logit_bias={4: 1.5, 9: -100.0, 20: 3.0}),
        "min_tokens": of(temperature=0.8, ignore_eos=False, min_tokens=15, stop_token_ids=(1, 2)),
        "stop ids": of(temperature=0.8, stop_token_ids=(4, 9, 15)),
        "bad words": of(temperature=0.8),
        "all": of(temperature=0.9, top_p=0.95, top_k=12, repetition_penalty=1.1, frequency_penalty=0.2,
                  logit_bias={2: 1.0}, no_repeat_ngram_size=4, min_tokens=10, ignore_eos=False),
    }  # fmt: skip


@cache
def jobs(guarantee: Guarantee = Guarantee.SAME_TEXT) -> tuple[Job, ...]:
    """One job per setting; prompts of 1 to 9 tokens, and one that is prefilled in two chunks."""
    listed = []
    for index, (name, sampling) in enumerate(settings().items()):
        length = 530 if name == "top_p" else 1 + index % 9
        prompt = tuple(int(u * VOCAB) for u in uniform(index, length, np.arange(length), 0))
        words = BAD_WORDS if name in ("bad words", "all") else ()
        listed.append(
            Job(name, Request(index, prompt, sampling, 1000 + index, guarantee, frozenset({EOS}), words))
        )
    return tuple(listed)


Factory = Callable[[ToyTarget, Sequence[Job]], Drafter]


@dataclass(frozen=True)
class Method:
    """A way to draft: how to build it, how many nodes per level, and whether most of its guesses are right."""

    name: str
    build: Factory
    width: int = 1
    good: bool = False

    def budget(self, depth: int) -> Budget:
        return Budget(depth, depth * self.width)


def _model(noise: float, topk: int) -> Factory:
    return lambda target, jobs: ModelDrafter(target.imitation(noise), target_vocab_size=VOCAB, topk=topk)


def _random_model(topk: int) -> Factory:
    return lambda target, jobs: ModelDrafter(ToyTarget(VOCAB, seed=77), target_vocab_size=VOCAB, topk=topk)


def _scripted(corrupted: float, width: int) -> Factory:
    return lambda target, jobs: ScriptedDrafter(
        {job.request.request_id: job.text for job in jobs}, vocab_size=VOCAB, corrupted=corrupted, width=width
    )


def _eagle(topk: int) -> Factory:
    return lambda target, jobs: EagleDrafter(tiny_eagle(target), target_vocab_size=VOCAB, topk=topk)


def _eagle3(topk: int) -> Factory:
    return lambda target, jobs: EagleDrafter(
        tiny_eagle3(target, draft_vocab=17), target_vocab_size=VOCAB, topk=topk
    )


def _scripted_head(topk: int) -> Factory:
    def build(target: ToyTarget, jobs: Sequence[Job]) -> Drafter:
        head = ScriptedHead(
            {job.request.request_id: job.text for job in jobs}, vocab_size=VOCAB, corrupted=0.3
        )
        target.tap(head.taps)
        return EagleDrafter(head, target_vocab_size=VOCAB, topk=topk)

    return build


def _scripted_medusa(topk: int) -> Factory:
    def build(target: ToyTarget, jobs: Sequence[Job]) -> Drafter:
        target.tap([target.num_layers])
        texts = {job.request.request_id: job.text for job in jobs}
        return ScriptedMedusa(texts, tap=target.num_layers, vocab_size=VOCAB, heads=8, topk=topk)

    return build


def _scripted_exit(topk: int) -> Factory:
    return lambda target, jobs: scripted_exit(
        target, {job.request.request_id: job.text for job in jobs}, layers=2, topk=topk
    )


def _random_medusa(target: ToyTarget, jobs: Sequence[Job]) -> Drafter:
    target.tap([target.num_layers])
    heads = random_medusa(target, heads=8)
    return MedusaDrafter(heads, tap=target.num_layers, target_vocab_size=VOCAB, topk=3)


METHODS = (
    Method("none", lambda target, jobs: NoDrafter()),
    Method("ngram", lambda target, jobs: NgramDrafter()),
    Method("suffix", lambda target, jobs: SuffixDrafter(costs=FREE, min_token_prob=0.02)),
    Method("suffix, tree", lambda target, jobs: SuffixDrafter(costs=FREE, min_token_prob=0.02, topk=3), width=3),
    Method("suffix, shared", lambda target, jobs: SuffixDrafter(
        costs=FREE, min_token_prob=0.02, shared=SuffixCorpus())),
    Method("recycling", lambda target, jobs: RecyclingDrafter(topk=1, costs=FREE)),
    Method("recycling, tree", lambda target, jobs: RecyclingDrafter(costs=FREE), width=3),
    Method("lookahead", lambda target, jobs: LookaheadDrafter(), width=4),
    Method("lookahead, chain", lambda target, jobs: LookaheadDrafter(window=0, ngram=6)),
    Method("ngram, then recycling", lambda target, jobs: ChainedDrafter(
        [NgramDrafter(), RecyclingDrafter(costs=FREE)]), width=3),
    Method("draft = target, chain", _model(0.0, 1), good=True),
    Method("draft = target, tree", _model(0.0, 3), width=3, good=True),
    Method("imitation, chain", _model(0.3, 1), good=True),
    Method("imitation, tree", _model(0.6, 2), width=2, good=True),
    Method("random model, chain", _random_model(1)),
    Method("random model, tree", _random_model(4), width=4),
    Method("early exit", lambda target, jobs: SelfDrafter.early_exit(target, 3)),
    Method("skipped layer, tree", lambda target, jobs: SelfDrafter.skip(target, [1], topk=2), width=3),
    Method("scripted, all right", _scripted(0.0, 1), good=True),
    Method("scripted, 30 % wrong", _scripted(0.3, 1)),
    Method("scripted, all wrong", _scripted(1.0, 1)),
    Method("scripted tree, all right", _scripted(0.0, 3), width=3, good=True),
    Method("scripted tree, 30 % wrong", _scripted(0.3, 3), width=3),
    Method("scripted tree, all wrong", _scripted(1.0, 3), width=3),
    Method("medusa, 30 % wrong", _scripted_medusa(1)),
    Method("medusa tree, 30 % wrong", _scripted_medusa(2), width=5, good=True),
    Method("medusa tree, random heads", _random_medusa, width=8),
    Method("exit head, 30 % wrong", _scripted_exit(1)),
    Method("exit head tree, 30 % wrong", _scripted_exit(2), width=3, good=True),
    Method("ngram, then medusa", lambda target, jobs: ChainedDrafter(
        [NgramDrafter(), _scripted_medusa(1)(target, jobs)], target.taps)),
    Method("ngram, then imitation", lambda target, jobs: ChainedDrafter(
        [NgramDrafter(), _model(0.3, 1)(target, jobs)]), good=True),
    Method("imitation, then suffix", lambda target, jobs: ChainedDrafter(
        [_model(0.3, 1)(target, jobs), SuffixDrafter(costs=FREE, min_token_prob=0.02)]), good=True),
    Method("imitation, then ngram", lambda target, jobs: ChainedDrafter(
        [_model(0.3, 1)(target, jobs), NgramDrafter()]), good=True),
    Method("eagle, chain", _eagle(1)),
    Method("eagle, tree", _eagle(3), width=3),
    Method("eagle3, chain", _eagle3(1)),
    Method("eagle3, tree", _eagle3(3), width=3),
    Method("head 30 % wrong, chain", _scripted_head(1)),
    Method("head 30 % wrong, tree", _scripted_head(3), width=3, good=True),
    Method("ngram, then eagle3", lambda target, jobs: ChainedDrafter(
        [NgramDrafter(), _eagle3(1)(target, jobs)], target.taps)),
)  # fmt: skip


def write(method: Method, jobs: Sequence[Job], controller: Controller | int, *, max_batch: int = 16,
          target: ToyTarget | None = None, rules: RuleBook | None = None) -> list[Running]:  # fmt: skip
    """Runs the jobs through the engine to their ends, in the given order; an integer is a fixed draft length."""
    target = target or toy_target()
    if isinstance(controller, int):
        controller = FixedController(method.budget(controller))
    parts = Parts(target, method.build(target, jobs), rules or RuleBook(), controller)
    engine = Engine(parts, max_batch=max_batch)
    running = [engine.submit(job.request) for job in jobs]
    run_to_end(engine, running)
    assert target.open_sequences == (), "every cache is freed"
    return running


def assert_texts(jobs: Sequence[Job], running: Sequence[Running]) -> None:
    """Every text is the oracle's, token for token, and ends for the same reason."""
    for job, done in zip(jobs, running):
        assert done.error is None, job.name
        assert done.finish_reason is not None
        assert OracleText(done.token_ids, done.finish_reason.value) == job.expected, job.name


def share_of_long_rounds(stats: Sequence[Stats]) -> float:
    """The share of all rounds in which two or more drafted tokens were kept."""
    return sum(sum(s.acceptance_histogram[2:]) for s in stats) / sum(s.num_rounds for s in stats)
