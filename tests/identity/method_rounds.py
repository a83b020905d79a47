"""Every draft method as a user's settings give it, on a toy target, with each round's draft kept to be looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.config import SpeculativeConfig
from outrider.core.law import PointMass
from outrider.core.protocols import Drafter, TappedTarget
from outrider.core.records import Budget, Context, Draft, Guarantee, Request, RoundResult
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.core.sequence import Sequence as Running
from outrider.core.tree import TokenTree
from outrider.drafters.registry import build_drafter
from outrider.drafters.setup import DrafterSetup
from outrider.engine.controller import Controller, FixedController
from outrider.engine.engine import Engine, Parts
from outrider.models.eagle_shapes import fresh_head
from outrider.models.exit_head import untrained_exit
from outrider.models.heads import EagleConfig, ExitConfig, Head, MedusaConfig
from outrider.models.medusa_head import untrained_head
from outrider.pairing import load_head
from outrider.testing.tiny_head import tiny_arch
from outrider.testing.toy import ToyTarget

POSITIONS = 96  # of the heads here


def head_for(name: str, target: TappedTarget) -> Head:
    """An untrained head of a method, of the target's sizes."""
    hidden, vocab = target.hidden_size, target.vocab_size
    if name == "medusa":
        return untrained_head(MedusaConfig(4, 1, hidden, vocab, vocab), target.token_weights())
    if name == "self_draft":
        return untrained_exit(ExitConfig(2, hidden, hidden, vocab, vocab), target.token_weights())
    taps = (0, 1, target.num_layers) if name == "eagle3" else None
    config = EagleConfig(name == "eagle3", tiny_arch(target, POSITIONS), hidden, vocab, taps=taps)
    return fresh_head(config, seed=3)


@dataclass(frozen=True)
class Method:
    """A method by its settings; `model` is what its model or head must be given as, if it has one."""

    name: str
    settings: Mapping[str, Any]
    modelled: str | None = None

    def config(self, target: ToyTarget, **more: Any) -> SpeculativeConfig:
        """The settings with the model they need: an imitation of the target, or a head that fits it."""
        given = {**self.settings, **more}
        if self.modelled is not None:
            given["check_draft"] = False  # what a check measures of such drafts is told elsewhere
        if self.modelled == "draft_model":
            given["model"] = target.imitation(0.3)
        elif self.modelled is not None:
            given["model"] = head_for(self.modelled, target)
        return SpeculativeConfig.of(given)

    def drafter(self, target: ToyTarget, **more: Any) -> Drafter:
        """As the registry builds it, on a target that is tapped where it reads."""
        config = self.config(target, **more)
        drafter = build_drafter(DrafterSetup(config, target, lambda: config.model, lambda: load_head(config)))
        target.tap(drafter.taps)
        return drafter


METHODS = (
    Method("ngram", {"method": "ngram"}),
    Method("suffix", {"method": "suffix"}),
    Method("suffix tree", {"method": "suffix", "topk": 3}),
    Method("recycling", {"method": "recycling"}),
    Method("lookahead", {"method": "lookahead"}),
    Method("draft_model", {"method": "draft_model"}, "draft_model"),
    Method("draft_model tree", {"method": "draft_model", "topk": 3}, "draft_model"),
    Method("self_draft", {"method": "self_draft", "assistant_early_exit": 3}),
    Method("self_draft tree", {"method": "self_draft", "skip_layers": [1], "topk": 2}),
    Method("exit head", {"method": "self_draft"}, "self_draft"),
    Method("exit head tree", {"method": "self_draft", "topk": 3}, "self_draft"),
    Method("medusa", {"method": "medusa"}, "medusa"),
    Method("medusa tree", {"method": "medusa", "topk": 3}, "medusa"),
    Method("eagle", {"method": "eagle"}, "eagle"),
    Method("eagle tree", {"method": "eagle", "topk": 3}, "eagle"),
    Method("eagle3", {"method": "eagle3"}, "eagle3"),
    Method("eagle3 tree", {"method": "eagle3", "topk": 3}, "eagle3"),
    Method("suffix, recycling", {"method": ["suffix", "recycling"]}),
    Method("ngram, draft_model", {"method": ["ngram", "draft_model"], "num_speculative_tokens": 4}, "draft_model"),
    Method("ngram, medusa", {"method": ["ngram", "medusa"], "num_speculative_tokens": 4}, "medusa"),
    Method("ngram, eagle", {"method": ["ngram", "eagle"], "num_speculative_tokens": 4}, "eagle"),
    Method("suffix, eagle3", {"method": ["suffix", "eagle3"], "num_speculative_tokens": 4}, "eagle3"),
)  # fmt: skip

Spoil = Callable[[Context, Draft], Draft]


@dataclass
class Watched:
    """A drafter whose drafts are kept by request, after `spoil` had its way with them."""

    drafter: Drafter
    spoil: Spoil = field(default=lambda context, draft: draft)
    seen: dict[int, list[tuple[int, Draft]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.taps = self.drafter.taps
        self.ingest, self.observe = self.drafter.ingest, self.drafter.observe
        self.fork, self.forget = self.drafter.fork, self.drafter.forget

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        made = [
            self.spoil(context, draft)
            for context, draft in zip(contexts, self.drafter.propose(contexts, budgets, drafts))
        ]
        for context, draft in zip(contexts, made):
            self.seen[context.sequence_id].append((len(context.tokens), draft))
        return made

    def drafts(self, sequence_id: int) -> list[Draft]:
        return [draft for _, draft in self.seen[sequence_id]]


def engine(target: ToyTarget, drafter: Drafter, controller: Controller | Budget) -> Engine:
    if isinstance(controller, Budget):
        controller = FixedController(controller)
    return Engine(Parts(target, drafter, RuleBook(), controller))


def request(number: int, prompt: Sequence[int], *, guarantee: Guarantee = Guarantee.SAME_TEXT, seed: int = 5,
            **sampling: Any) -> Request:  # fmt: skip
    given = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **sampling}
    return Request(number, tuple(prompt), SamplingParams(**given), seed, guarantee)


def finished(opened: Engine, requests: Sequence[Request]) -> tuple[list[Running], list[RoundResult]]:
    """The requests written to their ends, and the results of all rounds."""
    running = [opened.submit(one) for one in requests]
    results: list[RoundResult] = []
    while opened.unfinished:
        results += opened.step()
    return running, results


def plain_tokens(target: ToyTarget, one: Request) -> tuple[int, ...]:
    """What the target writes without drafts."""
    from outrider.drafters.none import NoDrafter

    [done], _ = finished(engine(target, NoDrafter(), Budget(0, 0)), [one])
    return done.token_ids


def spoiled_at(draft: Draft, depth: int, right: Sequence[int], vocab_size: int) -> Draft:
    """The point-mass draft with the node at `depth` on the text's path turned into a token that is wrong there."""
    nodes, above = draft.nodes, 0
    for level in range(1, depth + 1):
        node = next((n for n in nodes.children[above] if nodes.tokens[n] == right[level - 1]), None)
        if node is None:
            return draft
        above = node + 1
    siblings = {
        nodes.tokens[n] for n in nodes.children[0 if nodes.parents[node] is None else nodes.parents[node] + 1]
    }
    wrong = next(token for token in range(vocab_size) if token not in siblings)
    tokens = (*nodes.tokens[:node], wrong, *nodes.tokens[node + 1 :])
    assert all(isinstance(group.law, PointMass) for groups in draft.groups for group in groups)
    return Draft(TokenTree(tokens, nodes.parents), draft.groups)
