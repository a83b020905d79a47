"""`random_weights`: numbers for a model of any architecture that has no file."""

from __future__ import annotations

import math

import torch

from outrider.models.arch import Arch
from outrider.models.native_weights import matrix_plans, vector_plans


def random_weights(arch: Arch, seed: int) -> dict[str, torch.Tensor]:
    """All tensors under Hugging Face names, float32. They keep hidden states near one; norms and biases differ from
    1 and 0. Equal architectures and seeds have equal weights."""
    made = torch.Generator().manual_seed(seed)
    state = {
        plan.name: torch.randn(plan.outputs, plan.inputs, generator=made) / math.sqrt(plan.inputs)
        for plan in matrix_plans(arch)
    }
    for _, _, name, count in vector_plans(arch):
        state[name] = torch.randn(count, generator=made) * 0.2 + (0.0 if name.endswith("bias") else 1.0)
    return state
