"""What a run will cost, told before it begins: disk, memory and time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError
from outrider.train.settings import TrainSettings
from outrider.train.shapes import DraftSize

_TOKEN_BYTES = 7  # of a token id in the file of answers
_STATE_BYTES = 12  # of a parameter in a checkpoint: itself and two moments
_PASS_BYTES = 24  # of working memory of a training step, for each number of a logits block or activation
_SPARE = 1.2


@dataclass(frozen=True)
class Workload:
    """The texts of a run, at most: those answered already at their own length, the others at the longest."""

    prompts: int
    answered: int  # of them
    tokens: int  # of prompts and answers together
    new_tokens: int  # of them in texts that are yet to be answered


@dataclass(frozen=True)
class Estimate:
    """Upper bounds of what a run takes."""

    prompts: int
    answered: int  # of them, before it begins
    most_tokens: int  # of prompts and answers together
    disk_bytes: int
    memory_bytes: int
    seconds: float | None  # None: until its steps are done

    def lines(self) -> Sequence[str]:
        """For a reader."""
        time = (
            "until its steps are done" if self.seconds is None else f"about {self.seconds / 60:.0f} minutes"
        )
        there = f", {self.answered} of them answered already" if self.answered else ""
        return (
            f"{self.prompts} prompts{there}, at most {self.most_tokens:,} tokens with their answers",
            f"disk at most {self.disk_bytes / 1e6:,.0f} MB, memory about {self.memory_bytes / 1e9:.1f} GB, time {time}",
        )


def estimate(settings: TrainSettings, work: Workload, size: DraftSize, hidden_size: int) -> Estimate:
    """`hidden_size`: numbers of one of the target's hidden states."""
    feature_size, parameters = size.taps * hidden_size, size.trained
    disk = (
        work.new_tokens * _TOKEN_BYTES
        + 2 * parameters * _STATE_BYTES
        + 4 * parameters * (1 + len(settings.forms))
    )
    features = min(settings.memory, 2 * work.tokens * feature_size)
    working = settings.batch_tokens * feature_size * _PASS_BYTES
    memory = features + 4 * (parameters * 4 + size.held) + working
    return Estimate(work.prompts, work.answered, work.tokens, int(disk * _SPARE), memory, settings.budget)


def check_room(found: Estimate, folder: Path) -> None:
    """Raises `ConfigError` where the disk or the memory will not do."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < found.disk_bytes:
        raise ConfigError(
            f"the run may take {found.disk_bytes / 1e6:,.0f} MB of disk, {place} has {free / 1e6:,.0f}: choose another "
            "--output, or answer less with --answer-tokens"
        )
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total < found.memory_bytes:
        raise ConfigError(
            f"the run takes about {found.memory_bytes / 1e9:.1f} GB of memory, this machine has {total / 1e9:.1f}: "
            "keep fewer hidden states with --memory, or take smaller batches with --batch-tokens"
        )
