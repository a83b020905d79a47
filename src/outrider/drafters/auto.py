"""Settles what a configuration leaves open until the target is known: `auto`, and drafts without a `model`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from outrider.config import AUTO, MODEL_METHODS, SpeculativeConfig
from outrider.core.protocols import TargetModel
from outrider.errors import ConfigError
from outrider.models.shipped import ShippedDrafts, auto_settings, find_shipped

_LOG = logging.getLogger(__name__)
_DEPTHS = ("num_speculative_tokens", "num_steps")
_TREES = ("topk", "tree_budget")


def settled(config: SpeculativeConfig, target: TargetModel) -> SpeculativeConfig:
    """The configuration with the methods that `auto` stands for, and the folder of a shipped draft as its `model`.

    What the caller set beside `auto` outranks the preset. Raises `ConfigError` for a draft that is neither named nor
    shipped, and for a preset that names one.
    """
    if config.methods != (AUTO,) and not config.lacks_model:
        return config
    shipped = find_shipped(target)
    if config.methods == (AUTO,):
        settings = auto_settings(shipped, target)
        config = SpeculativeConfig.of({**settings, **_given(config, settings)})
        origin = f"drafts are shipped for {shipped.name}" if shipped else "no draft is shipped for this model"
        _LOG.info("method auto: %s (%s)", ", ".join(config.methods), origin)
    return _with_model(config, shipped)


def _given(config: SpeculativeConfig, preset: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller set, with what of the preset does not go with it taken back."""
    defaults = SpeculativeConfig()
    given = {
        field.name: getattr(config, field.name)
        for field in fields(SpeculativeConfig)
        if field.name != "method" and getattr(config, field.name) != getattr(defaults, field.name)
    }
    if any(key in given for key in _DEPTHS):
        given |= {key: None for key in _DEPTHS if key in preset and key not in given}
    if config.rejection_sample_method == "block":  # of chains
        given |= {key: None for key in _TREES if key in preset and key not in given}
    return given


def _with_model(config: SpeculativeConfig, shipped: ShippedDrafts | None) -> SpeculativeConfig:
    """The configuration with the shipped draft that its methods need, where it names none."""
    if not config.lacks_model:
        return config
    [method] = [name for name in config.methods if name in MODEL_METHODS]
    drafts = {} if shipped is None else shipped.drafts
    if method not in drafts:
        known = (
            f"shipped for {shipped.name}: {', '.join(drafts) or 'none'}"
            if shipped
            else "none is shipped for it"
        )
        raise ConfigError(
            f"method {method!r} needs 'model': the draft's hub id, folder or file ({known}; `outrider train` makes one)"
        )
    _LOG.info("method %s: the draft shipped for %s", method, shipped.name if shipped else "")
    return replace(config, model=str(drafts[method]))
