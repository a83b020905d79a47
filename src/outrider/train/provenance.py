"""Provenance: where a draft comes from, written beside its weights, and what a target is known again by."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider import __version__
from outrider.text import Tokenizer
from outrider.train.checkpoint import replace_file

FILE = "provenance.json"


@dataclass(frozen=True)
class TargetMarks:
    """What prompts and answers depend on beside the weights."""

    name: str
    chat_template: str | None  # SHA-256
    tokenizer: str  # SHA-256 of the vocabulary in the order of its ids

    @staticmethod
    def of(name: str, tokenizer: Tokenizer) -> TargetMarks:
        text = json.dumps(tokenizer.vocabulary(), ensure_ascii=True)
        return TargetMarks(name, tokenizer.fingerprint, hashlib.sha256(text.encode()).hexdigest())

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """What tells the target from the one that these plain marks are of; its name apart."""
        for field, shown in (("tokenizer", "tokenizer"), ("chat_template", "chat template")):
            if getattr(self, field) != other.get(field):
                return f"{shown} {str(other.get(field))[:12]} instead of {str(getattr(self, field))[:12]}"
        return None


@dataclass(frozen=True)
class Provenance:
    """How a draft was made."""

    command: Sequence[str]
    target: TargetMarks
    prompts: Mapping[str, str]  # file name -> SHA-256
    settings: Mapping[str, Any]
    figures: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """In terms of JSON."""
        return {
            "command": " ".join(self.command),
            "date": datetime.date.today().isoformat(),
            "versions": {
                "outrider": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "target": vars(self.target),
            "prompts": dict(self.prompts),
            "settings": dict(self.settings),
            "figures": dict(self.figures),
        }

    def write(self, folder: Path) -> None:
        """Writes `provenance.json`."""
        text = json.dumps(self.plain(), indent=2) + "\n"
        replace_file(folder / FILE, lambda file: file.write(text.encode()))
