"""`MedusaHeads`: heads that each speak of one token further ahead, all from one hidden state of the target."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn import functional

from outrider.core.records import TokenWeights
from outrider.models.head_fit import check_tensors
from outrider.models.heads import Head, MedusaConfig
from outrider.models.products import MakeProduct, swapped


class MedusaHeads(nn.Module):
    """Head i, on the state of the token at position t, speaks of the token at t + 2 + i; the target's own of t + 1.

    A head is `layers` blocks x + SiLU(W x + b) on the state after the target's final norm, then an output matrix
    over the draft vocabulary (2401.10774, 2.1). The parameters have the names of `Head.tensors`; the final norm and
    the token map are the target's and the file's, and are not trained.

    Copies the tensors of `head` as `dtype` onto `device`. Raises `ModelLoadError` where the heads do not fit the
    target's hidden states, or a tensor is missing, unknown or of another shape.
    """

    row_invariant = False  # torch chooses other kernels for other numbers of rows
    norm: torch.Tensor  # [hidden]
    token_map: torch.Tensor | None  # [draft_vocab] int64

    def __init__(self, head: Head, weights: TokenWeights, *, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu") -> None:  # fmt: skip
        super().__init__()
        assert isinstance(head.config, MedusaConfig), "a set of Medusa heads"
        self.config = head.config
        with torch.device("meta"):
            self.heads = nn.ModuleList(_modules(head.config) for _ in range(head.config.heads))
        check_tensors(head, self.config.hidden, {n: t.shape for n, t in self.state_dict().items()}, weights)
        tensors = {name: t.to(device, dtype, copy=True) for name, t in head.tensors.items()}
        self.load_state_dict(tensors, assign=True)
        precise = torch.promote_types(dtype, torch.float32)
        self.register_buffer("norm", weights.norm.to(device, precise, copy=True), persistent=False)
        self.register_buffer(
            "token_map", None if head.token_map is None else head.token_map.to(device), persistent=False
        )
        self._norm_eps, self._dtype = weights.norm_eps, dtype

    @property
    def count(self) -> int:
        """How many tokens ahead of the target's own the heads reach."""
        return self.config.heads

    def forward(self, states: torch.Tensor, count: int | None = None) -> torch.Tensor:
        """Logits [n, count, draft_vocab] of the first `count` heads (None: all). `token_map` names the columns.

        `states` [n, hidden] are the target's after its last layer, before its final norm. Differentiable.
        """
        normed = self._normed(states)
        return torch.stack([self._speak(i, normed) for i in range(count or self.count)], dim=1)

    def spoken(self, index: int, normed: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, hidden]
        """What head `index` makes of states after the target's final norm: what its `output` is applied to."""
        head = cast(nn.ModuleDict, self.heads[index])
        x = normed.to(self._dtype)
        for layer in range(self.config.layers):
            x = x + functional.silu(head[str(layer)](x))
        return x

    def output(self, index: int) -> nn.Parameter:  # [draft_vocab, hidden]
        """The output matrix of head `index`, as long as its products are not swapped."""
        return cast(nn.Parameter, cast(nn.ModuleDict, self.heads[index])["out"].weight)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors as they are now, under the names of `Head.tensors`."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def swap_products(self, make: MakeProduct) -> None:
        """Puts `make(weight, bias)` in the place of every matrix product, and frees the module's own matrix.

        The result of a row must not depend on its neighbours: states are then read together (`row_invariant`). For
        inference alone: the heads can no longer be trained or exported.
        """
        self.row_invariant = True
        for head in cast("list[nn.ModuleDict]", list(self.heads)):
            for name, linear in list(head.items()):
                assert isinstance(linear, nn.Linear), "products are swapped once"
                head[name] = swapped(linear, make)

    def _normed(self, states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, hidden]
        x = states.to(self.norm.device, self.norm.dtype)
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self._norm_eps)
        return x * scale * self.norm

    def _speak(self, index: int, normed: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, draft_vocab]
        head = cast(nn.ModuleDict, self.heads[index])
        return cast(torch.Tensor, head["out"](self.spoken(index, normed)))


def untrained_head(
    config: MedusaConfig, weights: TokenWeights, token_map: torch.Tensor | None = None
) -> Head:
    """Heads as training starts from: blocks that change nothing, and the target's own head as the output matrix.

    `token_map` [draft_vocab] int64 names the rows of the target's head; needed where `config` cuts the vocabulary.
    """
    rows = weights.head if token_map is None else weights.head[token_map.to(weights.head.device)]
    assert rows.shape == (config.draft_vocab, config.hidden), "the target's rows of the draft vocabulary"
    tensors: dict[str, torch.Tensor] = {}
    for i in range(config.heads):
        for j in range(config.layers):
            tensors[f"heads.{i}.{j}.weight"] = rows.new_zeros(config.hidden, config.hidden)
            if config.bias:
                tensors[f"heads.{i}.{j}.bias"] = rows.new_zeros(config.hidden)
        tensors[f"heads.{i}.out.weight"] = rows
    return Head(config, tensors, token_map, name="untrained Medusa heads")


def _modules(config: MedusaConfig) -> nn.ModuleDict:
    blocks: dict[str, nn.Module] = {
        str(layer): nn.Linear(config.hidden, config.hidden, bias=config.bias)
        for layer in range(config.layers)
    }
    return nn.ModuleDict(blocks | {"out": nn.Linear(config.hidden, config.draft_vocab, bias=False)})
