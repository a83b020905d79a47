"""`Inputs`: what a run is made from beside its target, read before that is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.train.prompts import Asked, file_hashes, read_prompts
from outrider.train.settings import TrainSettings
from outrider.train.start import Start


@dataclass(frozen=True, eq=False)
class Inputs:
    """The settings of a run with the files that they name."""

    settings: TrainSettings
    asked: Sequence[Asked]
    hashes: Mapping[str, str]  # of the files of prompts: name -> SHA-256
    start: Start | None  # the head that training goes on from

    @staticmethod
    def read(settings: TrainSettings) -> Inputs:
        """Raises `ConfigError` on files that hold no prompts, a finished `output` or a head of another method, and
        `ModelLoadError` on a head that cannot be read."""
        if os.path.exists(settings.output / "config.json"):
            raise ConfigError(f"{settings.output} holds a finished draft: give a new --output")
        named, method = settings.start_from, settings.shape.method
        start = None if named is None else Start.read(named, method)
        asked = read_prompts(settings.prompts)
        return Inputs(settings, asked, file_hashes(settings.prompts), start)

    @property
    def start_hash(self) -> str | None:
        """Of the tensors that training goes on from."""
        return None if self.start is None else self.start.sha256
