"""`Head`: a draft head as its files describe it, whatever format they come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.models.arch import Arch


@dataclass(frozen=True)
class EagleConfig:
    """The shape of an EAGLE head: a fusing linear, one decoder layer of `arch`, and a way to speak.

    `arch.hidden` is the head's own width, `arch.vocab_size` the target's vocabulary. EAGLE-1 and 2 (`is_eagle3` false)
    read one feature, the target's last hidden state after its final norm, and speak with the target's head.
    """

    is_eagle3: bool
    arch: Arch
    target_hidden: int
    draft_vocab: int  # equal to arch.vocab_size where no map is stored
    taps: tuple[int, ...] | None = None  # layers whose inputs are read; None: (2, n // 2, n - 3) of n
    fc_bias: bool = False
    norm_before_fc: bool = False  # one RMSNorm over all taps together: `input_norm.weight`
    fc_norm: bool = False  # an RMSNorm per tap: `fc_norm.{i}.weight`
    norm_before_residual: bool = False  # the residual is the normed hidden state
    norm_output: bool = False  # the next step is fed the state after the final norm


@dataclass(frozen=True)
class MedusaConfig:
    """The shape of a set of Medusa heads on the target's last hidden state, after its final norm."""

    heads: int
    layers: int  # residual blocks per head
    hidden: int
    vocab_size: int  # the target's
    draft_vocab: int  # rows of each head's own output matrix
    bias: bool = True


@dataclass(frozen=True)
class ExitConfig:
    """The shape of an exit head, which makes a draft model of the target's first layers."""

    exit_layer: int  # how many layers run before it
    hidden: int
    intermediate: int  # of its gated block
    vocab_size: int  # the target's
    draft_vocab: int  # of the target's output rows, which it speaks through


@dataclass(frozen=True, eq=False)
class Head:
    """A head with its tensors under one set of names.

    EAGLE: `fc.weight`, `fc.bias`, `layers.0.self_attn.{q,k,v,o}_proj.weight` (`.bias`),
    `layers.0.self_attn.{q,k}_norm.weight` where `arch.qk_norm`, `layers.0.mlp.{gate,up,down}_proj.weight`,
    `layers.0.post_attention_layernorm.weight`; EAGLE-3 also `layers.0.input_layernorm.weight`,
    `layers.0.hidden_norm.weight`, `norm.weight`, `fc_norm.{i}.weight`, `input_norm.weight`. `embed_tokens.weight`
    and, in EAGLE-3, `lm_head.weight` where the head has its own.
    Medusa: `heads.{i}.{j}.weight`, `heads.{i}.{j}.bias`, `heads.{i}.out.weight`.
    Exit: `block_norm.weight`, `gate_proj.weight`, `up_proj.weight`, `down_proj.weight`, `norm.weight`.

    `token_map` [draft_vocab] int64: the target's id of each draft id; None where they are equal. `findings`: what the
    files left open and how it was settled, a line each.
    """

    config: EagleConfig | MedusaConfig | ExitConfig
    tensors: Mapping[str, torch.Tensor]
    token_map: torch.Tensor | None = None  # [draft_vocab] int64
    name: str = ""
    findings: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The method that drafts with it."""
        if isinstance(self.config, MedusaConfig):
            return "medusa"
        if isinstance(self.config, ExitConfig):
            return "self_draft"
        return "eagle3" if self.config.is_eagle3 else "eagle"


def read_head(model: str | Path, *, revision: str | None = None) -> Head:
    """A head from a folder, or a hub id at `revision`.

    EAGLE-1 to 3, speculators' eagle3, Medusa v1, Medusa within a full model, vLLM's Medusa and exit heads are told
    apart by keys and tensors. Raises `ModelLoadError` in one line that names the file, what is wrong, and the remedy.
    """
    # The readers build the records above.
    from outrider.models.head_formats.read import find_folder, read_folder

    return read_folder(find_folder(model, revision), str(model))
