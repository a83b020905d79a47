"""`Placement`: which implementation runs a model, in what precision, and where."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outrider.core.protocols import TargetModel
from outrider.models.hf import HfTarget
from outrider.models.native import NativeDecoder
from outrider.models.torch_decoder import TorchDecoder


@dataclass(frozen=True)
class Placement:
    """What `load` settled on; None where a target has no such thing.

    `activations`: what the inputs of products are rounded to. `isa`: the instruction set of the compiled decoder.
    `threads`: of the decoder, or of torch for what runs on the CPU.
    """

    target: str
    dtype: str | None
    activations: str | None
    isa: str | None
    threads: int | None
    device: str | None


def placement_of(target: TargetModel) -> Placement:
    """Where and how a loaded target runs; a target that is not ours is called by its class."""
    if isinstance(target, NativeDecoder):
        setup = target.setup
        activations = setup.activations.name.lower()
        return Placement("native", setup.dtype, activations, setup.isa, setup.threads, "cpu")
    dtype, device = getattr(target, "dtype", None), getattr(target, "device", None)
    precision = None if dtype is None else str(dtype).removeprefix("torch.")
    on_cpu = device is not None and torch.device(device).type == "cpu"
    threads = torch.get_num_threads() if on_cpu else None
    place = None if device is None else str(device)
    return Placement(_name_of(target), precision, precision, None, threads, place)


def spare_torch(target: TargetModel, threads: int | None) -> None:
    """Leaves torch one thread, for the whole process, where the compiled decoder was given `threads`.

    Torch's own pool beside the decoder's workers would outnumber the cores.
    """
    if threads is not None and isinstance(target, NativeDecoder):
        torch.set_num_threads(1)


def _name_of(target: TargetModel) -> str:
    if isinstance(target, TorchDecoder):
        return "torch"
    return "hf" if isinstance(target, HfTarget) else type(target).__name__
