"""`Start`: a trained head that training goes on from, instead of a fresh one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from outrider.errors import ConfigError
from outrider.models.heads import Head, read_head


@dataclass(frozen=True, eq=False)
class Start:
    """A head as its files describe it, and what it is known again by."""

    head: Head
    sha256: str  # of its tensors

    @staticmethod
    def read(model: str, method: str) -> Start:
        """The head in a folder. Raises `ModelLoadError`, or `ConfigError` on one of another method."""
        head = read_head(model)
        if head.method != method:
            raise ConfigError(
                f"start_from: {model!r:.80} is a head for method {head.method!r}, not {method!r}"
            )
        return Start(head, _hash(head))


def _hash(head: Head) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(head.tensors.items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
