"""Reads single settings of a model's configuration; each raises `ModelLoadError` naming key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelLoadError


def positive(table: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A finite number above 0."""
    value = table.get(key)
    if value is None:
        value = default
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value <= 0
    ):
        raise ModelLoadError(
            f"{key} must be a finite number above 0, not {value!r}: repair the model's config"
        )
    return float(value)


def count(table: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number above 0; some writers give it as a float."""
    value = table.get(key)
    if value is None:
        value = default
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value is None or value <= 0:
        raise ModelLoadError(
            f"{key} must be a whole number above 0, not {value!r}: repair the model's config"
        )
    return int(value)


def flag(table: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """True or false."""
    value = table.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelLoadError(f"{key} must be true or false, not {value!r}: repair the model's config")
    return value
