"""`ChainAttention`: the attention of unrolled EAGLE-3 steps over texts of any lengths, without padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

KeysValues = tuple[torch.Tensor, torch.Tensor]


class ChainAttention:
    """What `EagleHead.forward` asks for in a batch of texts, whose rows stand one text behind the other.

    `certain` makes the entries of every text: each sees those up to itself. From each a chain may go on: row r of a
    `guessed` step sees the certain entries up to the one it started from, and its own chain, itself included
    (training-time test, 2503.01840, 3.2). `keep` says which chains go on; a chain that ended stays ended.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        """`lengths`: certain entries of each text, one at least."""
        self._lengths = list(lengths)
        self._certain: list[KeysValues] = []  # of each text: [kv_heads, entries, head_dim]
        self._chains: list[KeysValues] = []  # of each step: [rows, kv_heads, head_dim]
        self._texts = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))  # [rows]
        self._starts = torch.cat([torch.arange(length) for length in lengths])  # [rows]

    def keep(self, rows: torch.Tensor) -> None:
        """Only these rows go on (int64, ascending); later steps have a row for each of them."""
        self._chains = [(keys[rows], values[rows]) for keys, values in self._chains]
        self._texts, self._starts = self._texts[rows.cpu()], self._starts[rows.cpu()]

    def certain(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Every entry of every text: queries [rows, heads, head_dim], keys and values [rows, kv_heads, head_dim]."""
        parts = [torch.split(each.transpose(0, 1), self._lengths, dim=1) for each in (queries, keys, values)]
        self._certain = list(zip(parts[1], parts[2]))
        read = [
            F.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, enable_gqa=len(q) != len(k)
            )[0]
            for q, k, v in zip(*parts)
        ]
        return torch.cat(read, dim=1).transpose(0, 1)

    def guessed(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """One step further on every row that is kept; shapes as those of `certain`."""
        self._chains.append((keys, values))
        counts = self._texts.bincount(minlength=len(self._lengths)).tolist()
        chain_keys, chain_values = (torch.stack(steps, dim=1) for steps in zip(*self._chains))
        q_parts, k_parts, v_parts, starts = (
            torch.split(each, counts) for each in (queries, chain_keys, chain_values, self._starts)
        )
        texts = zip(q_parts, self._certain, k_parts, v_parts, starts)
        return torch.cat([_read(q, *certain, k, v, own) for q, certain, k, v, own in texts])


def _read(
    queries: torch.Tensor,  # [rows, heads, head_dim]
    keys: torch.Tensor,  # [kv_heads, entries, head_dim]
    values: torch.Tensor,  # [kv_heads, entries, head_dim]
    chain_keys: torch.Tensor,  # [rows, steps, kv_heads, head_dim]
    chain_values: torch.Tensor,  # [rows, steps, kv_heads, head_dim]
    starts: torch.Tensor,  # [rows]
) -> torch.Tensor:  # [rows, heads, head_dim]
    """Attention of the rows of one text: products with the entries they share, dot products with their chains."""
    rows, heads, head_dim = queries.shape
    kv_heads, entries, steps = len(keys), keys.shape[1], chain_keys.shape[1]
    group = heads // kv_heads
    # The queries that read the same keys are the rows of one product.
    grouped = (queries * head_dim**-0.5).view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shared = grouped.reshape(kv_heads, group * rows, head_dim) @ keys.mT
    later = torch.arange(entries) > starts.unsqueeze(1)
    shared = shared.view(kv_heads, group, rows, entries).masked_fill(later.to(shared.device), -torch.inf)
    own_keys, own_values = (each.permute(2, 0, 1, 3).unsqueeze(1) for each in (chain_keys, chain_values))
    own = (grouped.unsqueeze(3) * own_keys).sum(-1)  # [kv_heads, group, rows, steps]
    weights = torch.cat([shared, own], dim=-1).softmax(-1).to(values)
    shared, own = torch.split(weights, [entries, steps], dim=-1)
    read = (shared.reshape(kv_heads, group * rows, entries) @ values).view(kv_heads, group, rows, head_dim)
    read = read + (own.unsqueeze(-1) * own_values).sum(3)
    return read.permute(2, 0, 1, 3).reshape(rows, heads, head_dim)
