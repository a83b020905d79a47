"""Drafts that come with the package: found by what a loaded target is, not by what it is called.

A folder per model in `PLACE`: `identity.json` (`ModelIdentity`), a folder per draft named after its method, and
`preset.json`, the list of methods that was measured best, by the target's precision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.core.protocols import TappedTarget, TargetModel
from outrider.errors import ModelLoadError
from outrider.models.fingerprint import Fingerprint, spread
from outrider.models.placement import placement_of

PLACE = Path(__file__).parent.parent / "shipped"
METHODS = ("eagle3", "eagle", "medusa", "draft_model")
_IDENTITY, _PRESET = "identity.json", "preset.json"
MODEL_FREE: Mapping[str, Any] = {"method": "suffix"}
"""The best methods without a draft of their own: 1.39x plain on Spec-Bench at temperature 0 (docs/log.md)."""
_ROWS, _COLUMNS = 8, 64


@dataclass(frozen=True, eq=False)
class ModelIdentity:
    """What a model is known by: its sizes and some numbers of its embedding."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    fingerprint: Fingerprint

    @staticmethod
    def of(target: TappedTarget) -> ModelIdentity:
        """Of a loaded target."""
        tokens, columns = spread(target.vocab_size, _ROWS), spread(target.hidden_size, _COLUMNS)
        found = Fingerprint.of(target.token_weights(), tokens, columns)
        return ModelIdentity(target.vocab_size, target.hidden_size, target.num_layers, found)

    def is_of(self, target: TappedTarget) -> bool:
        """Whether this is the target's, in whatever precision it was loaded."""
        sizes = (target.vocab_size, target.hidden_size, target.num_layers)
        same = sizes == (self.vocab_size, self.hidden_size, self.num_layers)
        return same and self.fingerprint.is_of(target.token_weights())

    def plain(self) -> dict[str, Any]:
        """In terms of JSON."""
        found = self.fingerprint
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "tokens": list(found.tokens),
            "columns": list(found.columns),
            "values": [[round(number, 5) for number in row] for row in found.values.tolist()],
        }


@dataclass(frozen=True)
class ShippedDrafts:
    """The drafts for one model. `presets`: settings by precision, such as `native gguf`, `bfloat16` or `default`."""

    name: str
    drafts: Mapping[str, Path]
    presets: Mapping[str, Mapping[str, Any]]

    def preset(self, target: TargetModel) -> Mapping[str, Any] | None:
        """The settings measured best for the precision of this target, None where there are none."""
        placement = placement_of(target)
        for key in (f"{placement.target} {placement.dtype}", placement.dtype, "default"):
            if key is not None and key in self.presets:
                return self.presets[key]
        return None


def find_shipped(target: TargetModel, place: Path | None = None) -> ShippedDrafts | None:
    """What comes with the package (or lies in `place`) for this target; None where nothing does.

    Raises `ModelLoadError` naming a file that cannot be read.
    """
    place = PLACE if place is None else place
    if not isinstance(target, TappedTarget) or not place.is_dir():
        return None
    for folder in sorted(path for path in place.iterdir() if (path / _IDENTITY).is_file()):
        if _identity_in(folder).is_of(target):
            drafts = {method: folder / method for method in METHODS if (folder / method).is_dir()}
            return ShippedDrafts(folder.name, drafts, _presets_in(folder))
    return None


def shipped_drafts(target: TargetModel, place: Path | None = None) -> Mapping[str, Path]:
    """The folder of the shipped draft by method; empty where none is shipped for this target."""
    found = find_shipped(target, place)
    return {} if found is None else found.drafts


def auto_settings(shipped: ShippedDrafts | None, target: TargetModel) -> Mapping[str, Any]:
    """What method `auto` stands for on a target: the preset beside its drafts, else methods without a model."""
    preset = None if shipped is None else shipped.preset(target)
    return MODEL_FREE if preset is None else preset


def write_identity(target: TappedTarget, folder: Path) -> None:
    """Writes what a folder of drafts is found by."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(ModelIdentity.of(target).plain())
    (folder / _IDENTITY).write_text(text + "\n", encoding="utf-8")


def _identity_in(folder: Path) -> ModelIdentity:
    stored = _read(folder / _IDENTITY)
    try:
        vocab, hidden, layers = (int(stored[key]) for key in ("vocab_size", "hidden_size", "num_layers"))
        tokens, columns = (tuple(map(int, stored[key])) for key in ("tokens", "columns"))
        values = torch.tensor([[float(number) for number in row] for row in stored["values"]])
        if values.shape != (len(tokens), len(columns)) or max(tokens) >= vocab or max(columns) >= hidden:
            raise ValueError("its numbers are of other tokens or columns")
        return ModelIdentity(vocab, hidden, layers, Fingerprint(tokens, columns, values))
    except (LookupError, TypeError, ValueError) as error:
        raise ModelLoadError(
            f"{folder / _IDENTITY}: {error!r} is no identity of a model: write it anew"
        ) from None


def _presets_in(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    path = folder / _PRESET
    if not path.is_file():
        return {}
    stored = _read(path)
    for name, settings in stored.items():
        if not isinstance(settings, dict) or "method" not in settings:
            raise ModelLoadError(f"{path}: preset {name!r} must be settings with a method: repair the file")
    return stored


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read ({error}): install the package anew") from None
    if not isinstance(stored, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object: install the package anew")
    return stored
