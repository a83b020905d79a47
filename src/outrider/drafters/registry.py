"""Drafter factories by method name. The whole extension surface: the entry-point group `outrider.drafters`.

An entry point's name is the method; its object is called with a `DrafterSetup` and returns a `Drafter`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

from outrider.config import BUILT_IN_METHODS, FUTURE_METHODS, SpeculativeConfig
from outrider.core.protocols import Drafter, LayeredTarget, TargetModel
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.growth import SampleMethod
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.self_draft import SelfDrafter
from outrider.errors import ConfigError, nearest
from outrider.models.heads import Head

ENTRY_POINT_GROUP = "outrider.drafters"


@dataclass(frozen=True)
class DrafterSetup:
    """What a factory may use. `load_draft` loads the configured draft model, checked against the target; `load_head`
    reads the configured draft head."""

    config: SpeculativeConfig
    target: TargetModel
    load_draft: Callable[[], TargetModel]
    load_head: Callable[[], Head]


def build_drafter(setup: DrafterSetup) -> Drafter:
    """The drafter of the configured method, or of the list of methods. Raises `ConfigError`."""
    members = [_factory(name)(setup) for name in setup.config.methods]
    return members[0] if len(members) == 1 else ChainedDrafter(members)


def check_methods(config: SpeculativeConfig) -> None:
    """Raises `ConfigError` on a method that nobody provides, before anything costly is loaded."""
    for name in config.methods:
        _factory(name)


def _factory(name: str) -> Callable[[DrafterSetup], Drafter]:
    built_in: dict[str, Callable[[DrafterSetup], Drafter]] = {
        "none": lambda setup: NoDrafter(),
        "ngram": _ngram,
        "draft_model": _draft_model,
        "self_draft": _self_draft,
    }
    if name in built_in:
        return built_in[name]
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = [*BUILT_IN_METHODS, *found]
        hint = nearest(name, [*known, *FUTURE_METHODS])
        raise ConfigError(f"unknown method {name!r}{hint or '; available: ' + ', '.join(known)}")
    factory: Callable[[DrafterSetup], Drafter] = found[name].load()
    return factory


def _ngram(setup: DrafterSetup) -> Drafter:
    low = setup.config.prompt_lookup_min or 2
    return NgramDrafter(low, setup.config.prompt_lookup_max or max(5, low))


def _draft_model(setup: DrafterSetup) -> Drafter:
    return ModelDrafter(
        setup.load_draft(),
        target_vocab_size=setup.target.vocab_size,
        topk=setup.config.children("draft_model"),
        sample_method=_sample_method(setup),
        max_length=setup.config.max_model_len,
    )


def _self_draft(setup: DrafterSetup) -> Drafter:
    target, config = setup.target, setup.config
    if not isinstance(target, LayeredTarget):
        raise ConfigError(
            f"self_draft cannot run layers of a {type(target).__name__}; load with target='torch'"
        )
    if config.skip_layers is not None:
        return SelfDrafter.skip(
            target, config.skip_layers, topk=config.children("self_draft"), sample_method=_sample_method(setup)
        )
    assert config.assistant_early_exit is not None, "checked by SpeculativeConfig"
    return SelfDrafter.early_exit(
        target, config.assistant_early_exit, topk=config.children("self_draft"), sample_method=_sample_method(setup)
    )


def _sample_method(setup: DrafterSetup) -> SampleMethod:
    return SampleMethod(setup.config.draft_sample_method or "probabilistic")
