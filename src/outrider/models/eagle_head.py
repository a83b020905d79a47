"""`EagleHead`: the forward of EAGLE-1/2 and EAGLE-3 heads, for training and for drafting alike.

Entry t of a head pairs the token at t + 1 with the target's feature of position t and guesses the token at t + 2. It
is rotated by position t, as in the public implementations (SafeAILab/EAGLE numbers its shifted tokens from 0; vLLM
keeps the positions of the features). Sources: EAGLE 2401.15077, EAGLE-3 2503.01840.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from outrider.core.records import TokenWeights
from outrider.models.eagle_shapes import checked_shapes, feature_taps
from outrider.models.heads import EagleConfig, Head
from outrider.models.products import MakeProduct, swapped
from outrider.models.rope import RopeTable, rotate

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries [rows, heads, head_dim], keys and values [rows, kv_heads, head_dim] of the new entries -> what each row
reads, [rows, heads, head_dim]. Which older entries a row sees is the caller's affair."""

_ATTENTION, _MLP = "layers.0.self_attn", "layers.0.mlp"
_PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "fc": ("fc",),
    "qkv": (f"{_ATTENTION}.q_proj", f"{_ATTENTION}.k_proj", f"{_ATTENTION}.v_proj"),
    "output": (f"{_ATTENTION}.o_proj",),
    "gate_up": (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"),
    "down": (f"{_MLP}.down_proj",),
    "lm_head": ("lm_head",),
}
"""The module's matrix products, and the files' matrices that each is stacked from."""


@dataclass(frozen=True, eq=False)
class Thoughts:
    """What entries came to: the states that the head speaks from, and those that stand for features one level on."""

    spoken: torch.Tensor  # [rows, hidden]
    states: torch.Tensor  # [rows, hidden]


def attention(
    queries: torch.Tensor,  # [rows, heads, head_dim]
    keys: torch.Tensor,  # [kv_heads, keys, head_dim]
    values: torch.Tensor,  # [kv_heads, keys, head_dim]
    visible: torch.Tensor,  # bool [rows, keys]
) -> torch.Tensor:  # [rows, heads, head_dim]
    """Attention of the rows of one sequence."""
    read = F.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=visible,
        enable_gqa=queries.shape[1] != keys.shape[0],
    )
    return read[0].transpose(0, 1)


class EagleHead(nn.Module):
    """A head beside its target. Trainable but for what it shares with the target: token matrices and final norm.

    All matrix products are the children `fc`, `qkv`, `output`, `gate_up`, `down` and `lm_head`, each called once per
    forward with the rows of all sequences; `swap_products` puts others in their places.
    """

    fc: nn.Module
    qkv: nn.Module
    output: nn.Module
    gate_up: nn.Module
    down: nn.Module
    lm_head: nn.Module
    embedding: torch.Tensor  # [vocab, hidden]
    target_norm: torch.Tensor  # [target hidden]
    token_map: torch.Tensor | None  # [draft vocab] int64

    def __init__(self, head: Head, weights: TokenWeights, *, num_layers: int, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu") -> None:  # fmt: skip
        """`num_layers`: the target's. Raises `ModelLoadError` naming a tensor that does not fit, or a missing layer."""
        super().__init__()
        assert isinstance(head.config, EagleConfig), "an EAGLE head has an EAGLE configuration"
        self.config, self.arch = head.config, head.config.arch
        read = feature_taps(self.config, num_layers)
        self.taps = tuple(dict.fromkeys(read))
        self._columns = [self.taps.index(tap) for tap in read]
        self._eps, self._target_eps = self.arch.rms_eps, weights.norm_eps
        self._shapes = checked_shapes(head, weights)
        tensors = {name: tensor.to(device, dtype) for name, tensor in head.tensors.items()}
        for child, names in _PRODUCTS.items():
            self.add_module(child, _product(tensors, names))
        if "lm_head.weight" not in tensors:
            self.lm_head = _linear(weights.head.to(device, dtype), None).requires_grad_(False)
        norms = [name for name, shape in self._shapes.items() if len(shape) == 1 and name.endswith(".weight")]
        self.norms = nn.ParameterDict(
            {_norm_key(name): nn.Parameter(tensors[name].clone()) for name in norms}
        )
        own = tensors.get("embed_tokens.weight")
        self.register_buffer(
            "embedding", weights.embedding.to(device, dtype) if own is None else own, persistent=False
        )
        self.register_buffer("target_norm", weights.norm.to(device, dtype), persistent=False)
        self.register_buffer(
            "token_map", None if head.token_map is None else head.token_map.to(device), persistent=False
        )
        self._rope = RopeTable(self.arch, dtype, torch.device(device))

    @property
    def vocab_size(self) -> int:
        """Tokens it can read: the target's ids."""
        return len(self.embedding)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:  # [n, taps, target hidden] -> [n, hidden]
        """The target's features, one column per entry of `taps`, in the form that entries take."""
        features = features[:, self._columns].to(self.embedding)
        if not self.config.is_eagle3:
            return F.rms_norm(features[:, 0], self.target_norm.shape, self.target_norm, self._target_eps)
        if self.config.fc_norm:
            columns = [self._normed(column, f"fc_norm_{i}") for i, column in enumerate(features.unbind(1))]
            features = torch.stack(columns, dim=1)
        fused = features.flatten(1)
        if self.config.norm_before_fc:
            fused = self._normed(fused, "input_norm")
        states: torch.Tensor = self.fc(fused)
        return states

    def forward(
        self,
        tokens: torch.Tensor,  # [rows]
        states: torch.Tensor,  # [rows, hidden]
        positions: torch.Tensor,  # [rows]
        attend: Attend,
    ) -> Thoughts:
        """Entries of `tokens`, each with the state before it: fused features, or the states that an entry came to."""
        embedded = self.embedding[tokens]
        if self.config.is_eagle3:
            normed = self._normed(states, "hidden_norm")
            seen = torch.cat([self._normed(embedded, "input_layernorm"), normed], dim=-1)
            stream = normed if self.config.norm_before_residual else states
        else:
            seen = stream = self.fc(torch.cat([embedded, states], dim=-1))
        stream = stream + self._attended(seen, positions, attend)
        gate, up = self.gate_up(self._normed(stream, "post_attention_layernorm")).chunk(2, dim=-1)
        stream = stream + self.down(F.silu(gate) * up)
        if not self.config.is_eagle3:
            return Thoughts(stream, stream)
        spoken = self._normed(stream, "norm")
        return Thoughts(spoken, spoken if self.config.norm_output else stream)

    def logits(self, spoken: torch.Tensor) -> torch.Tensor:  # [rows, hidden] -> [rows, draft vocab]
        """Column i speaks of the target's token `token_map[i]`, or of token i where there is no map."""
        drafted: torch.Tensor = self.lm_head(spoken)
        return drafted

    def swap_products(self, make: MakeProduct) -> None:
        """Puts `make(weight, bias)` in the place of every matrix product, and frees the module's own matrix.

        For inference alone: the head can no longer be trained or exported.
        """
        for name in _PRODUCTS:
            module = getattr(self, name)
            if isinstance(module, nn.Linear):
                setattr(self, name, swapped(module, make))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its own tensors as they are now, under the names of `Head.tensors`; a shared embedding apart."""
        named: dict[str, torch.Tensor] = {}
        for child, names in _PRODUCTS.items():
            module = getattr(self, child)
            rows = [self._shapes[f"{name}.weight"][0] for name in names if f"{name}.weight" in self._shapes]
            for kind, stacked in (("weight", module.weight), ("bias", module.bias)) if rows else ():
                if stacked is not None:
                    parts = zip(names, stacked.detach().split(rows))
                    named |= {f"{name}.{kind}": part for name, part in parts}
        return named | {
            name: self.norms[_norm_key(name)].detach()
            for name in self._shapes
            if name.endswith("norm.weight") or name.startswith("fc_norm.")
        }

    def _attended(self, seen: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Attention of one forward: [rows, fused] -> [rows, hidden]."""
        heads, kv_heads, head_dim = self.arch.heads, self.arch.kv_heads, self.arch.head_dim
        split = self.qkv(seen).view(len(seen), -1, head_dim).split([heads, kv_heads, kv_heads], dim=1)
        queries, keys, values = split
        if self.arch.qk_norm:
            queries, keys = self._normed(queries, "q_norm"), self._normed(keys, "k_norm")
        cos, sin = self._rope.at(positions, int(positions.max()) + 1)
        read = attend(rotate(queries, cos, sin), rotate(keys, cos, sin), values)
        mixed: torch.Tensor = self.output(read.reshape(len(seen), heads * head_dim))
        return mixed

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.norms[name].to(x.dtype)  # states of an autocast forward are narrower
        return F.rms_norm(x, weight.shape, weight, self._eps)


def _product(tensors: Mapping[str, torch.Tensor], names: tuple[str, ...]) -> nn.Module:
    """The stacked matrices of these names as one product; the identity where a head has none."""
    if f"{names[0]}.weight" not in tensors:
        return nn.Identity()
    weight = torch.cat([tensors[f"{name}.weight"] for name in names])
    has_bias = f"{names[0]}.bias" in tensors
    return _linear(weight, torch.cat([tensors[f"{name}.bias"] for name in names]) if has_bias else None)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:  # [out, in], [out]
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight)
    linear.register_parameter("bias", None if bias is None else nn.Parameter(bias))
    return linear


def _norm_key(name: str) -> str:
    return name.removesuffix(".weight").removeprefix("layers.0.").removeprefix("self_attn.").replace(".", "_")
