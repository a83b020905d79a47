"""Targets: models that extend, score and commit certain tokens."""

from __future__ import annotations

from outrider.models.load import load

__all__ = ["load"]
