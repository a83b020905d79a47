"""Pairing: loads the draft model of a target and checks that the two share a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outrider.config import AUTO, MODEL_METHODS, SpeculativeConfig
from outrider.core.protocols import TappedTarget, TargetModel
from outrider.errors import ConfigError, ModelLoadError, PairError
from outrider.models.borrowed import is_borrowing, read_borrowing
from outrider.models.borrowed_load import MappedModel, load_borrowing
from outrider.models.heads import Head, read_head
from outrider.models.load import ModelSource, check_run, device_named, load, resolve
from outrider.models.native_matrices import FORMATS
from outrider.models.pair import PairVerdict, compare_vocabularies
from outrider.models.settings import DTYPES, RunSettings, check_choice
from outrider.text import Tokenizer, load_tokenizer


def check_pair(target_tokenizer: Tokenizer, target: TargetModel, draft_tokenizer: Tokenizer,
               draft: TargetModel) -> PairVerdict:  # fmt: skip
    """Compares the two vocabularies token by token; rows beyond the tokenizer's ids are padding."""
    return compare_vocabularies(
        target_tokenizer.vocabulary(), draft_tokenizer.vocabulary(), target.vocab_size, draft.vocab_size
    )


def check_draft(config: SpeculativeConfig) -> None:
    """Raises `ConfigError` for what is wrong with a draft's settings whatever the target and its files are."""
    if "draft_model" in config.methods and config.model is not None and not isinstance(config.model, str):
        for key in ("draft_dtype", "draft_device", "revision"):
            if getattr(config, key) is not None:
                raise ConfigError(f"{key} has no effect on a draft model that is loaded already: remove it")
    if isinstance(config.model, Head):
        load_head(config)
    if not {AUTO, "self_draft", *MODEL_METHODS} & set(config.methods):
        return  # a package's own method means by them what it likes
    dtype = config.draft_dtype or "auto"
    place = device_named("cpu" if config.draft_device is None else config.draft_device, "draft_device")
    if "draft_model" in config.methods:
        with _naming_the_dtype():
            check_run(dtype=dtype, device=str(place))
    elif config.methods == (AUTO,):
        check_choice("draft_dtype", dtype, DTYPES)
    else:
        check_choice("draft_dtype of a head", dtype, ("auto", *FORMATS))


@contextmanager
def _naming_the_dtype() -> Iterator[None]:
    """What does not go with a dtype is told by the key that chose it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"speculative_config 'draft_dtype': {error}") from None


@contextmanager
def _naming_the_key() -> Iterator[None]:
    """What cannot be loaded is the value of a setting."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(f"speculative_config 'model': {error}") from error


@_naming_the_key()
def load_draft(config: SpeculativeConfig, target_tokenizer: Tokenizer, target: TargetModel,
               threads: int | None) -> TargetModel | MappedModel:  # fmt: skip
    """The configured draft model on its own device and dtype. Raises `PairError` when the vocabularies differ.

    A model that the caller holds is taken as it is: it has no tokenizer here to compare. One that borrows from its
    target is known by what it borrows.
    """
    if not isinstance(config.model, str):
        return _held_model(config.model)
    source = resolve(config.model, revision=config.revision)
    if is_borrowing(source.path):
        return _borrowing(source, config, target, threads)
    draft = load(
        source,
        dtype=config.draft_dtype or "auto",
        device="cpu" if config.draft_device is None else config.draft_device,
        threads=threads,
    )
    verdict = check_pair(target_tokenizer, target, load_tokenizer(source), draft)
    if verdict.verdict == "incompatible":
        raise PairError(
            f"draft model {config.model!r} does not share the target's vocabulary: {verdict.first_difference}"
        )
    return draft


@_naming_the_key()
def load_head(config: SpeculativeConfig) -> Head:
    """The configured draft head, as its files describe it. Raises `ModelLoadError`, or `ConfigError` on another kind.

    A head that the caller holds is taken as it is.
    """
    head = (
        config.model if isinstance(config.model, Head) else read_head(config.model, revision=config.revision)
    )
    if head.method not in config.methods:
        raise ConfigError(f"{config.model!r:.80} is a head for method {head.method!r}, not {config.method!r}")
    return head


def _borrowing(
    source: ModelSource, config: SpeculativeConfig, target: TargetModel, threads: int | None
) -> TargetModel | MappedModel:
    if not isinstance(target, TappedTarget):
        raise ConfigError(
            f"draft model {config.model!r} borrows its target's embedding, which {type(target).__name__} does not "
            "show: use another draft model"
        )
    settings = RunSettings(dtype=config.draft_dtype or "auto", threads=threads)
    draft = read_borrowing(source.path, source.name)
    return load_borrowing(draft, target, settings, config.draft_device or "cpu")


def _held_model(model: object) -> TargetModel:
    """A draft that the caller holds: a target of ours, or a transformers model."""
    if isinstance(model, TargetModel):
        return model
    if not hasattr(model, "config"):
        raise ModelLoadError(
            f"a draft model is a name, a folder, a file or a loaded model, not {type(model).__name__}"
        )
    from outrider.models.hf import HfTarget

    return HfTarget.wrap(model)
