"""Reads single settings of a head's config.json; a wrong type is an error that names key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelLoadError

Table = Mapping[str, Any]


def count(table: Table, key: str) -> int | None:
    """A whole number above 0, None where the key is absent or null. Raises `ModelLoadError`."""
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ModelLoadError(f"{key} must be a whole number above 0, not {value!r}: repair the head's config")
    return value


def flag(table: Table, key: str) -> bool | None:
    """True or false, None where the key is absent or null. Raises `ModelLoadError`."""
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelLoadError(f"{key} must be true or false, not {value!r}: repair the head's config")
    return value


def text(table: Table, key: str) -> str | None:
    """A text, None where the key is absent or null. Raises `ModelLoadError`."""
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise ModelLoadError(f"{key} must be a text, not {value!r:.60}: repair the head's config")
    return value


def section(table: Table, key: str) -> Table:
    """A table of settings, empty where the key is absent or null. Raises `ModelLoadError`."""
    value = table.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelLoadError(
            f"{key} must be a table of settings, not {value!r:.60}: repair the head's config"
        )
    return value


def layer_ids(table: Table, key: str) -> tuple[int, ...] | None:
    """Distinct layer numbers from 0, None where the key is absent, null or empty. Raises `ModelLoadError`."""
    value = table.get(key)
    if value is None or value == []:
        return None
    whole = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    if not whole or len(set(value)) != len(value):
        raise ModelLoadError(
            f"{key} must be a list of distinct layer numbers from 0, not {value!r:.60}: repair the head's config"
        )
    return tuple(value)
