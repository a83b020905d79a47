"""Does a head fit a target? Told by sizes alone, before either runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outrider.core.records import TokenWeights
from outrider.errors import ModelLoadError, PairError
from outrider.models.eagle_shapes import feature_taps
from outrider.models.heads import EagleConfig, ExitConfig, Head


def check_head(head: Head, *, vocab_size: int, hidden_size: int, num_layers: int) -> None:
    """Raises for the first thing in which a head does not fit a target of these sizes.

    `PairError` where the vocabularies differ, else `ModelLoadError`.
    """
    config = head.config
    vocabulary = config.arch.vocab_size if isinstance(config, EagleConfig) else config.vocab_size
    if vocabulary != vocab_size:
        raise PairError(
            f"head {head.name!r} is for a vocabulary of {vocabulary} tokens, the target has {vocab_size}: use a head "
            "that was trained for this target"
        )
    hidden = config.target_hidden if isinstance(config, EagleConfig) else config.hidden
    if hidden != hidden_size:
        raise ModelLoadError(
            f"head {head.name!r} reads hidden states of {hidden} values, the target has {hidden_size}: use a head "
            "that was trained for this target"
        )
    if isinstance(config, EagleConfig):
        _check_eagle(head, config, num_layers)
    if isinstance(config, ExitConfig) and config.exit_layer >= num_layers:
        raise ModelLoadError(
            f"head {head.name!r} reads what {config.exit_layer} layers make, and the target has {num_layers}: use a "
            "head that was trained for this target"
        )


def check_tensors(
    head: Head, hidden: int, shapes: Mapping[str, Sequence[int]], weights: TokenWeights
) -> None:
    """Raises `ModelLoadError` unless a head of this width has exactly the tensors of `shapes`, and fits `weights`.

    For heads whose tensors follow from their configuration alone; `weights` are the target's.
    """
    name = head.name or "the head"
    if len(weights.norm) != hidden:
        raise ModelLoadError(
            f"{name}: reads states of {hidden} numbers, the target's have {len(weights.norm)}: choose a head that was "
            "trained on this target"
        )
    wanted = {key: tuple(shape) for key, shape in shapes.items()}
    found = {key: tuple(tensor.shape) for key, tensor in head.tensors.items()}
    for key in sorted(wanted.keys() | found.keys()):
        if wanted.get(key) != found.get(key):
            raise ModelLoadError(
                f"{name}: {key} must be {wanted.get(key, 'absent')}, not {found.get(key, 'absent')}: take the files of "
                "one training run, with their own config"
            )


def with_positions(head: Head, max_length: int) -> Head:
    """The head with a position limit of at least `max_length`, the target's: published limits are a habit of trainers.

    Rotary embedding has no end; other heads have no positions.
    """
    config = head.config
    if not isinstance(config, EagleConfig) or config.arch.max_positions >= max_length:
        return head
    return replace(head, config=replace(config, arch=replace(config.arch, max_positions=max_length)))


def _check_eagle(head: Head, config: EagleConfig, num_layers: int) -> None:
    lent = ["embed_tokens.weight", *(["lm_head.weight"] if config.is_eagle3 else [])]
    missing = next((name for name in lent if name not in head.tensors), None)
    if missing is not None and config.arch.hidden != config.target_hidden:
        raise ModelLoadError(
            f"head {head.name!r} is {config.arch.hidden} wide and has no {missing}, while that of the target is for "
            f"{config.target_hidden} values: use a head that brings its own"
        )
    try:
        feature_taps(config, num_layers)
    except ModelLoadError as error:
        raise ModelLoadError(f"head {head.name!r}: {error}") from None
