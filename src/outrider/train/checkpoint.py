"""Checkpoints: all that a run needs to go on, in one file that is whole at any moment."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from outrider.errors import TrainingError
from outrider.train.curve import Curve

FILE = "checkpoint.pt"
_FORM = 1
# What a damaged file makes torch and the code below raise.
_MALFORMED = (
    RuntimeError,
    OSError,
    EOFError,
    pickle.UnpicklingError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run between two steps. `run` tells it from others: a run goes on only from its own checkpoint."""

    run: Mapping[str, str | int | float]
    step: int  # steps done
    seconds: float  # spent on them
    parameters: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any]
    curve: Curve


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained; all others are the target's, and what a checkpoint need not hold."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes `checkpoint.pt`; a reader finds the one before or this one, whenever the process is killed."""
    holds = {
        "form": _FORM,
        "run": dict(checkpoint.run),
        "step": checkpoint.step,
        "seconds": checkpoint.seconds,
        "parameters": dict(checkpoint.parameters),
        "optimizer": dict(checkpoint.optimizer),
        "curve": checkpoint.curve.plain(),
    }
    replace_file(folder / FILE, lambda file: torch.save(holds, file))


def load(folder: Path, run: Mapping[str, str | int | float], device: torch.device) -> Checkpoint | None:
    """The checkpoint of `run`, None where there is none. Raises `TrainingError` on that of another run."""
    path = folder / FILE
    if not path.exists():
        return None
    found = _read(path, device)
    for name in dict.fromkeys((*run, *found.run)):
        here, there = run.get(name), found.run.get(name)
        if here != there:
            raise TrainingError(
                f"{path} is of a run with {name} {there!r}, not {here!r}; "
                "remove it to start again, or give the run a folder of its own"
            )
    return found


def restore(folder: Path, found: Checkpoint, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Puts parameters and moments back. Raises `TrainingError` where those of the file in `folder` do not fit."""
    try:
        with torch.no_grad():
            for name, parameter in trained(module).items():
                parameter.copy_(found.parameters[name])
        optimizer.load_state_dict(dict(found.optimizer))
    except _MALFORMED as error:
        raise _unreadable(folder / FILE, error) from error


def _read(path: Path, device: torch.device) -> Checkpoint:
    try:
        holds = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(holds, dict) or holds.get("form") != _FORM:
            raise TrainingError(f"{path} is no checkpoint of this version; remove it to start again")
        return Checkpoint(dict(holds["run"]), int(holds["step"]), float(holds["seconds"]), dict(holds["parameters"]),
                          dict(holds["optimizer"]), Curve.of(holds["curve"]))  # fmt: skip
    except _MALFORMED as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> TrainingError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    return TrainingError(f"{path} cannot be read; remove it to start again ({reason})")


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file that appears whole or not at all, and lasts once this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
