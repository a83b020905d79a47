"""Drafter factories by method name. The whole extension surface: the entry-point group `outrider.drafters`.

An entry point's name is the method; its object is called with a `DrafterSetup` and returns a `Drafter`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from outrider.config import AUTO, BUILT_IN_METHODS, SpeculativeConfig
from outrider.core.protocols import Drafter, LayeredTarget
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.head_check import check_model_at_load
from outrider.drafters.heads import eagle_drafter, exit_drafter, medusa_drafter
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.rows import DraftVocabulary
from outrider.drafters.self_draft import SelfDrafter, layer_bytes
from outrider.drafters.setup import DrafterSetup
from outrider.drafters.suffix import SuffixDrafter
from outrider.drafters.suffix_corpus import SuffixCorpus
from outrider.errors import ConfigError, nearest_or_all
from outrider.models.borrowed_load import MappedModel
from outrider.models.row_costs import bytes_of

ENTRY_POINT_GROUP = "outrider.drafters"


def build_drafter(setup: DrafterSetup) -> Drafter:
    """The drafter of the configured method, or of the list of methods. Raises `ConfigError`.

    What the configuration leaves open is settled before (`drafters.auto.settled`).
    """
    members = [_factory(name)(setup) for name in setup.config.methods]
    return members[0] if len(members) == 1 else ChainedDrafter(members)


def check_methods(config: SpeculativeConfig) -> None:
    """Raises `ConfigError` on a method that nobody provides, before anything costly is loaded."""
    for name in config.methods:
        if name != AUTO:
            _factory(name)


def _factory(name: str) -> Callable[[DrafterSetup], Drafter]:
    built_in: dict[str, Callable[[DrafterSetup], Drafter]] = {
        "none": lambda setup: NoDrafter(),
        "ngram": _ngram,
        "suffix": _suffix,
        "recycling": _recycling,
        "lookahead": _lookahead,
        "draft_model": _draft_model,
        "self_draft": _self_draft,
        "medusa": medusa_drafter,
        "eagle": eagle_drafter,
        "eagle3": eagle_drafter,
    }
    if name in built_in:
        return built_in[name]
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = [*BUILT_IN_METHODS, AUTO, *found]
        raise ConfigError(f"unknown method {name!r}{nearest_or_all(name, known)}")
    factory: Callable[[DrafterSetup], Drafter] = found[name].load()
    return factory


def _ngram(setup: DrafterSetup) -> Drafter:
    low = setup.config.prompt_lookup_min or 2
    high = setup.config.prompt_lookup_max or max(5, low)
    return NgramDrafter(low, high, setup.row_costs)


def _suffix(setup: DrafterSetup) -> Drafter:
    config = setup.config
    factor, floor = config.suffix_decoding_max_spec_factor, config.suffix_decoding_min_token_prob
    longest = config.suffix_decoding_max_tree_depth or 24
    most_texts = config.suffix_decoding_max_cached_requests or 10_000
    return SuffixDrafter(
        max_tree_depth=longest,
        max_spec_factor=1.0 if factor is None else factor,
        min_token_prob=0.1 if floor is None else floor,
        topk=setup.children("suffix"),
        shared=SuffixCorpus(longest, most_texts) if config.suffix_share_requests else None,
        costs=setup.row_costs,
    )


def _recycling(setup: DrafterSetup) -> Drafter:
    return RecyclingDrafter(
        successors=setup.config.recycling_successors or 8,
        topk=setup.children("recycling"),
        costs=setup.row_costs,
    )


def _lookahead(setup: DrafterSetup) -> Drafter:
    columns, size, candidates = setup.config.window
    window = columns if setup.target.supports_trees else 0
    return LookaheadDrafter(window=window, ngram=size, candidates=candidates)


def _draft_model(setup: DrafterSetup) -> Drafter:
    loaded, vocabulary, token_map = setup.load_draft(), None, None
    if isinstance(loaded, MappedModel):
        vocabulary = DraftVocabulary(loaded.token_map, setup.target.vocab_size)
        token_map = loaded.token_map.tolist()
        loaded = loaded.decoder
    if setup.config.check_draft is not False:
        check_model_at_load(setup.target, loaded, token_map, setup.prompts())
    return ModelDrafter(
        loaded,
        target_vocab_size=setup.target.vocab_size,
        topk=setup.children("draft_model"),
        vocabulary=vocabulary,
        settings=setup.growth(bytes_of(loaded)),
    )


def _self_draft(setup: DrafterSetup) -> Drafter:
    target, config = setup.target, setup.config
    if not isinstance(target, LayeredTarget):
        raise ConfigError(
            f"self_draft cannot run layers of a {type(target).__name__}; load with target='torch'"
        )
    if config.exit_head is not None:
        return exit_drafter(setup)
    topk = setup.children("self_draft")
    skipped, first = config.skip_layers, config.assistant_early_exit
    settings = setup.growth(layer_bytes(target, first or target.num_layers - len(skipped or ())))
    if skipped is not None:
        return SelfDrafter.skip(target, skipped, topk=topk, settings=settings)
    assert first is not None, "checked by SpeculativeConfig"
    return SelfDrafter.early_exit(target, first, topk=topk, settings=settings)
