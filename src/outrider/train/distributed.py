"""`World`: the processes that train together, each on its share of every batch.

Started by `torchrun`, which tells each process its place in the environment; a process alone is a world of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed
from torch.nn import Parameter

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The place of this process among those that train together."""

    rank: int = 0
    size: int = 1

    def share(self, work: Sequence[T]) -> Sequence[T]:
        """What this process takes of it; may be empty."""
        return work[self.rank :: self.size]

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replaces the tensor by its sum over all processes, which must call this alike."""
        if self.size > 1:
            distributed.all_reduce(tensor)

    def add_up_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Replaces gradients by their sums over all processes, in one message; none counts as zero."""
        if self.size == 1:
            return
        flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
        distributed.all_reduce(flat)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, own in zip(parameters, torch.split(flat, sizes)):
            parameter.grad = own.view_as(parameter)

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            distributed.barrier()

    def agree(self, parameters: Sequence[Parameter]) -> None:
        """Gives every process the parameters of the first."""
        if self.size > 1:
            for parameter in parameters:
                distributed.broadcast(parameter.data, 0)


def _gradient(parameter: Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


ALONE = World()
_PATIENCE = timedelta(days=2)  # the others wait while the first answers prompts


@contextmanager
def world(device: torch.device | str) -> Iterator[World]:
    """The world that `torchrun` describes, joined for the block: NCCL on CUDA devices, else Gloo."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    place = torch.device(local_device(str(device)))
    if place.type == "cuda":
        distributed.init_process_group("nccl", timeout=_PATIENCE, device_id=place)
    else:
        distributed.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield World(distributed.get_rank(), size)
        distributed.barrier()  # nobody takes the group down while others still speak over it
    finally:
        distributed.destroy_process_group()


def local_device(device: str) -> str:
    """`cuda` made the device of this process; any other name as it is."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device
