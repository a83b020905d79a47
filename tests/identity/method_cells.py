"""Cells of every draft method on the real model, built from the settings that a user would give.

Heads are fresh, so almost always wrong; beside them stand scripted ones, right at 70 % of the places, so that drafts
are kept as well, and the trained drafts that come with the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from model_cells import BATCH, NAME, PENALTIES, Cell, Model, Run, Scope, Suite, Texts, own_chats
from native_cells import PRECISIONS, questions, suite_files

from outrider.compiled.library import chosen_isa
from outrider.config import SpeculativeConfig
from outrider.core.protocols import Drafter, LayeredTarget, TappedTarget
from outrider.core.records import Budget
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.registry import build_drafter
from outrider.drafters.setup import DrafterSetup
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_shapes import fresh_head
from outrider.models.exit_head import untrained_exit
from outrider.models.heads import EagleConfig, ExitConfig, Head, MedusaConfig
from outrider.models.load import load, resolve
from outrider.models.medusa_head import untrained_head
from outrider.models.native_library import library
from outrider.models.shipped import PLACE
from outrider.pairing import load_draft, load_head
from outrider.testing.divergence import Layout
from outrider.testing.scripted_exit import scripted_exit
from outrider.testing.scripted_head import ScriptedHead
from outrider.testing.scripted_medusa import ScriptedMedusa
from outrider.text import load_tokenizer

SCOPE = Scope(prompts=40, tokens=160)
SHARES: Mapping[str, float] = {"T=0": 1.0, "T=0.8": 1.0, PENALTIES: 0.15}
"""The share of the prompts that each method answers at a setting."""
ALONE = 0.1  # of the prompts; the others are answered in batches
DRAFT_VOCAB = 4096
_HEAD_DIM = 64

# A chain of four tokens right at 70 % of the places keeps two or more in 0.49 of the rounds on average over all seeds,
# a tree in more. The smallest run has some 50 rounds, whose share scatters by 0.07.
_CHAIN_BAR, _TREE_BAR = 0.25, 0.4
# Trained drafts keep two tokens in 0.04 (penalties) to 0.2 of the rounds; at none they would show nothing.
_SHIPPED_BAR = 0.02

HeadMaker = Callable[[TappedTarget], Head]


def load_model(target: str) -> Model:
    """The torch or the hf target in float32, and the same weights in bfloat16 as its draft model."""
    source = resolve(NAME)
    found = load(source, target=target, dtype="float32")
    return Model(found, load(source, dtype="bfloat16"), load_tokenizer(source), own_chats())


@dataclass(frozen=True)
class Method:
    """A method and its forms, such as chains and trees, which divide the first `share` of the prompts among them."""

    forms: tuple[Cell, ...]
    share: float = 1.0

    def runs(self, setting: str, share: float) -> Iterator[Run]:
        """All forms at one setting, over the first `share` of the method's prompts: some alone, most in batches."""
        each = share * self.share / len(self.forms)
        for index, cell in enumerate(self.forms):
            first, last = index * each, (index + 1) * each
            middle = first + ALONE * each
            yield Run(cell, setting, 1, first, middle)
            yield Run(cell, setting, BATCH, middle, last)


def eagle_head(target: TappedTarget) -> Head:
    """A fresh EAGLE-1 head."""
    return fresh_head(EagleConfig(False, _arch(target), target.hidden_size, target.vocab_size), seed=1)


def eagle3_head(target: TappedTarget) -> Head:
    """A fresh EAGLE-3 head that speaks of the first tokens of the vocabulary."""
    config = EagleConfig(True, _arch(target), target.hidden_size, DRAFT_VOCAB)
    return fresh_head(config, seed=2, token_map=torch.arange(DRAFT_VOCAB))


def medusa_heads(target: TappedTarget) -> Head:
    """Heads as training starts from: each says what the target's own head says."""
    config = MedusaConfig(4, 1, target.hidden_size, target.vocab_size, DRAFT_VOCAB)
    return untrained_head(config, target.token_weights(), torch.arange(DRAFT_VOCAB))


def exit_head(target: TappedTarget) -> Head:
    """As training starts from, speaking of the first tokens of the vocabulary: what the layers say as they are."""
    hidden = target.hidden_size
    config = ExitConfig(_EXIT, hidden, hidden, target.vocab_size, DRAFT_VOCAB)
    return untrained_exit(config, target.token_weights(), torch.arange(DRAFT_VOCAB))


def method_suites(scope: Scope) -> list[Suite]:
    """One suite per precision of the compiled decoder; fewer prompts than asked for where no folder gives them."""
    own = own_chats()
    chats = (*own, *questions(SCOPE.prompts - len(own)))
    scope = replace(scope, prompts=min(scope.prompts, len(chats)))
    isa = chosen_isa(library().instruction_sets())
    return [
        Suite(f"methods, native {precision} ({isa})", partial(precision.load, chats), scope, method_runs(scope),
              suite_files())
        for precision in PRECISIONS[:2]
    ]  # fmt: skip


def method_runs(scope: Scope) -> tuple[Run, ...]:
    """Every method at every setting, without the runs that so few prompts leave nothing for."""
    runs = (
        run
        for (setting, share), method in itertools.product(SHARES.items(), METHODS)
        for run in method.runs(setting, share)
    )
    return tuple(run for run in runs if len(range(scope.prompts)[run.part(scope.prompts)]))


def cells() -> tuple[Cell, ...]:
    """All forms of all methods."""
    return tuple(cell for method in METHODS for cell in method.forms)


def layouts(batch: int) -> tuple[Layout, ...]:
    """How the rows of these cells lie."""
    return tuple(dict.fromkeys(cell.layout(size) for cell in cells() for size in (1, batch)))


def _cell(name: str, head: HeadMaker | None = None, bar: float = 0.0, **settings: Any) -> Cell:
    """A cell of the drafter that these settings give."""

    def build(model: Model, texts: Texts) -> Drafter:
        config = _config(settings, None if head is None else head(_tapped(model)))
        setup = DrafterSetup(config, model.target, lambda: model.draft, lambda: load_head(config))
        return _tapping(model, build_drafter(setup))

    shape = _config(settings, None)
    cell = Cell(name, build, shape.depth, -(-shape.nodes // shape.depth) - 1, bar)
    assert cell.budget == Budget(shape.depth, shape.nodes), "whole levels"
    return cell


def _shipped(name: str, draft: str, bar: float, **settings: Any) -> Cell:
    """A cell of a draft that comes with the package."""
    folder = str(PLACE / NAME / draft)
    config = SpeculativeConfig.of({"method": draft, **settings, "model": folder, "check_draft": False})

    def build(model: Model, texts: Texts) -> Drafter:
        setup = DrafterSetup(
            config,
            model.target,
            lambda: load_draft(config, model.tokenizer, model.target, None),
            lambda: load_head(config),
        )
        return _tapping(model, build_drafter(setup))

    cell = Cell(name, build, config.depth, -(-config.nodes // config.depth) - 1, bar)
    assert cell.budget == Budget(config.depth, config.nodes), "whole levels"
    return cell


def shipped_methods() -> tuple[Method, ...]:
    """The trained drafts there are, as chains and trees that are never cut, and behind a method that needs no model."""
    found = []
    for draft in ("eagle3", "medusa", "draft_model"):
        if (PLACE / NAME / draft).is_dir():
            chain = _shipped(f"shipped {draft} chain", draft, _SHIPPED_BAR, cut_drafts=False)
            tree = _shipped(f"shipped {draft} tree", draft, _SHIPPED_BAR, topk=2, cut_drafts=False)
            behind = _shipped(f"suffix, shipped {draft}", draft, _SHIPPED_BAR, method=["suffix", draft],
                              num_speculative_tokens=4)  # fmt: skip
            found.append(Method((chain, tree, behind)))
    return tuple(found)


def _config(settings: Mapping[str, Any], head: Head | None) -> SpeculativeConfig:
    methods = settings["method"] if isinstance(settings["method"], list) else [settings["method"]]
    own = "assistant_early_exit" in settings or "skip_layers" in settings
    needing = {"draft_model", "medusa", "eagle", "eagle3", *(() if own else ("self_draft",))} & set(methods)
    return SpeculativeConfig.of({**settings, **({"model": head or NAME} if needing else {})})


def _scripted_eagle(topk: int) -> Callable[[Model, Texts], Drafter]:
    def build(model: Model, texts: Texts) -> Drafter:
        size = model.target.vocab_size
        return _tapping(
            model, EagleDrafter(ScriptedHead(texts, vocab_size=size), target_vocab_size=size, topk=topk)
        )

    return build


def _scripted_exit(topk: int) -> Callable[[Model, Texts], Drafter]:
    def build(model: Model, texts: Texts) -> Drafter:
        assert isinstance(model.target, LayeredTarget), "every real target is"
        return scripted_exit(model.target, texts, layers=_EXIT, topk=topk)

    return build


def _scripted_medusa(topk: int) -> Callable[[Model, Texts], Drafter]:
    def build(model: Model, texts: Texts) -> Drafter:
        last, size = _tapped(model).num_layers, model.target.vocab_size
        return _tapping(model, ScriptedMedusa(texts, tap=last, vocab_size=size, topk=topk))

    return build


def _tapped(model: Model) -> TappedTarget:
    assert isinstance(model.target, TappedTarget), "every real target is"
    return model.target


def _tapping(model: Model, drafter: Drafter) -> Drafter:
    """The drafter, handed its own columns of what the target is tapped at; earlier cells may have left more."""
    if not drafter.taps:
        return drafter
    target = _tapped(model)
    target.tap(drafter.taps)
    return ChainedDrafter([drafter], columns=target.taps)


def _arch(target: TappedTarget) -> Arch:
    hidden = target.hidden_size
    return Arch("llama", 1, hidden, 2 * hidden, hidden // _HEAD_DIM, 1, _HEAD_DIM, target.vocab_size, 1e-5, 10000.0,
                RopeScaling(), False, False, False, False, False, 2048)  # fmt: skip


_EXIT = 6  # layers
_SKIPPED = (12, 14, 16, 18, 20)
# Most of what these draft is rejected, and costs time: few tokens, and not left alone for it.
_SHORT = {"num_speculative_tokens": 2, "cut_drafts": False}

METHODS = (
    Method((_cell("ngram", method="ngram"),)),
    Method((_cell("suffix chain", method="suffix"),
            _cell("suffix shared", method="suffix", suffix_share_requests=True),
            _cell("suffix tree", method="suffix", topk=2))),
    Method((_cell("recycling", method="recycling"),)),
    Method((_cell("lookahead", method="lookahead"),
            _cell("lookahead, small window", method="lookahead", max_window_size=3, max_verification_set_size=3))),
    Method((_cell("suffix, recycling", method=["suffix", "recycling"]),
            _cell("ngram, eagle3", eagle3_head, method=["ngram", "eagle3"], num_speculative_tokens=4))),
    Method((_cell("self_draft", bar=0.2, method="self_draft", skip_layers=_SKIPPED, **_SHORT),
            _cell("exit head chain", exit_head, method="self_draft", **_SHORT),
            _cell("exit head tree", exit_head, method="self_draft", topk=2, **_SHORT))),
    Method((_cell("draft_model chain", bar=0.5, method="draft_model", cut_drafts=False),
            _cell("draft_model tree", bar=0.5, method="draft_model", topk=2, cut_drafts=False))),
    Method((_cell("medusa chain", medusa_heads, method="medusa", **_SHORT),
            _cell("medusa tree", medusa_heads, method="medusa", topk=2, **_SHORT))),
    Method((_cell("eagle chain", eagle_head, method="eagle", **_SHORT),
            _cell("eagle tree", eagle_head, method="eagle", topk=2, **_SHORT))),
    Method((_cell("eagle3 chain, bfloat16", eagle3_head, method="eagle3", draft_dtype="bfloat16", **_SHORT),
            _cell("eagle3 tree", eagle3_head, method="eagle3", topk=2, **_SHORT))),
    Method((Cell("scripted medusa chain", _scripted_medusa(1), bar=_CHAIN_BAR),
            Cell("scripted medusa tree", _scripted_medusa(2), siblings=1, bar=_TREE_BAR)), share=0.3),
    Method((Cell("scripted eagle chain", _scripted_eagle(1), bar=_CHAIN_BAR),
            Cell("scripted eagle tree", _scripted_eagle(2), siblings=1, bar=_TREE_BAR)), share=0.3),
    Method((Cell("scripted exit head chain", _scripted_exit(1), bar=_CHAIN_BAR),
            Cell("scripted exit head tree", _scripted_exit(2), siblings=1, bar=_TREE_BAR)), share=0.3),
    *shipped_methods(),
)  # fmt: skip
