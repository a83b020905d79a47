"""Which hidden states a target shows: the columns of its features."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import ConfigError


def joined_taps(taps: Sequence[int], layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """`taps`, then those of `layers` that are new. Raises `ConfigError` on a layer that is not there."""
    for layer in layers:
        if type(layer) is not int or not 0 <= layer <= num_layers:
            raise ConfigError(f"tap {layer!r} is not a layer of this model: choose 0 to {num_layers}")
    return tuple(dict.fromkeys((*taps, *layers)))
