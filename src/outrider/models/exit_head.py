"""`ExitHead`: what the target's first layers lack of a draft model of their own, trained beside the target."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from outrider.core.records import TokenWeights
from outrider.models.head_fit import check_tensors
from outrider.models.heads import ExitConfig, Head
from outrider.models.products import MakeProduct, swapped

_INIT_STD = 0.02


class ExitHead(nn.Module):
    """Reads the target's hidden state after its first `exit_layer` layers and speaks of the token that comes next.

    A gated block on the residual stream, as in the target's own layers, then a norm and the target's rows of the draft
    vocabulary (LayerSkip, 2404.16710, trains the target itself to speak from there; here it stays as it is). Products
    are the children `gate_up`, `down` and `lm_head`, which `swap_products` puts others in the places of.

    Copies the tensors of `head` as `dtype` onto `device`. Raises `ModelLoadError` where the head does not fit the
    target's hidden states, or a tensor is missing, unknown or of another shape.
    """

    gate_up: nn.Module
    down: nn.Module
    lm_head: nn.Module
    token_map: torch.Tensor | None  # [draft vocab] int64

    def __init__(self, head: Head, weights: TokenWeights, *, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu") -> None:  # fmt: skip
        super().__init__()
        assert isinstance(head.config, ExitConfig), "an exit head"
        self.config = head.config
        check_tensors(head, self.config.hidden, exit_shapes(self.config), weights)
        own = {name: tensor.to(device, dtype, copy=True) for name, tensor in head.tensors.items()}
        self.block_norm, self.norm = (nn.Parameter(own[f"{name}.weight"]) for name in ("block_norm", "norm"))
        self.gate_up = _linear(torch.cat([own["gate_proj.weight"], own["up_proj.weight"]]))
        self.down = _linear(own["down_proj.weight"])
        token_map = head.token_map
        rows = weights.head if token_map is None else weights.head[token_map.to(weights.head.device)]
        self.lm_head = _linear(rows.to(device, dtype, copy=True)).requires_grad_(False)
        self.register_buffer(
            "token_map", None if token_map is None else token_map.to(device), persistent=False
        )
        self._eps, self._dtype = weights.norm_eps, dtype

    def forward(self, states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, draft vocab]
        """Logits of the token after each state's own; `token_map` names the columns."""
        logits: torch.Tensor = self.lm_head(self.spoken(states))
        return logits

    def spoken(self, states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, hidden]
        """What the output rows are applied to. Differentiable."""
        x = states.to(self.norm.device, self._dtype)
        gate, up = self.gate_up(self._normed(x, self.block_norm)).chunk(2, dim=-1)
        return self._normed(x + self.down(F.silu(gate) * up), self.norm)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its own tensors as they are now, under the names of `Head.tensors`."""
        assert isinstance(self.gate_up, nn.Linear), "products are not swapped"
        assert isinstance(self.down, nn.Linear), "products are not swapped"
        gate, up = self.gate_up.weight.detach().chunk(2)
        norms = {"block_norm.weight": self.block_norm.detach(), "norm.weight": self.norm.detach()}
        return {**norms, "gate_proj.weight": gate, "up_proj.weight": up,
                "down_proj.weight": self.down.weight.detach()}  # fmt: skip

    def swap_products(self, make: MakeProduct) -> None:
        """Puts `make(weight, bias)` in the place of every matrix product, and frees the module's own matrix.

        For inference alone: the head can no longer be trained or exported.
        """
        for name in ("gate_up", "down", "lm_head"):
            linear = getattr(self, name)
            assert isinstance(linear, nn.Linear), "products are swapped once"
            setattr(self, name, swapped(linear, make))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, self._eps)


def untrained_exit(
    config: ExitConfig, weights: TokenWeights, token_map: torch.Tensor | None = None, *, seed: int = 0
) -> Head:
    """A head as training starts from: a block that adds nothing, and the target's final norm, so that it says what the
    target would if it ended there. `token_map` [draft vocab] int64, where `config` cuts the vocabulary."""
    made = torch.Generator().manual_seed(seed)
    gate, up = (torch.randn(config.intermediate, config.hidden, generator=made) * _INIT_STD for _ in range(2))
    tensors = {
        "block_norm.weight": torch.ones(config.hidden),
        "norm.weight": weights.norm.to("cpu", torch.float32),
        "gate_proj.weight": gate,
        "up_proj.weight": up,
        "down_proj.weight": torch.zeros(config.hidden, config.intermediate),
    }
    return Head(config, tensors, token_map, name="untrained exit head")


def exit_shapes(config: ExitConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of an exit head."""
    wide, narrow = (config.intermediate, config.hidden), (config.hidden, config.intermediate)
    return {"block_norm.weight": (config.hidden,), "norm.weight": (config.hidden,), "gate_proj.weight": wide,
            "up_proj.weight": wide, "down_proj.weight": narrow}  # fmt: skip


def _linear(weight: torch.Tensor) -> nn.Linear:  # [out, in]
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight)
    return linear
