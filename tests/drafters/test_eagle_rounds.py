"""EAGLE heads over whole rounds: every row equals a plain float64 recomputation from the text and its features.

The plain one knows neither caches, trees, masks nor batches: for each node it runs the text's entries and those of the
node's path as one causal sequence, one entry after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider.core.protocols import Chunk
from outrider.core.records import Budget, Context, Draft, Guarantee, Request
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.core.tree import TokenTree
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.growth import Growth
from outrider.drafters.rows import DraftRows
from outrider.engine.engine import Engine, Parts
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.head_cache import CachedHead
from outrider.models.heads import EagleConfig, Head
from outrider.testing.toy import ToyTarget

Array = npt.NDArray[np.float64]
Tokens = tuple[int, ...]
VOCAB, FEATURES, LAYERS = 8, 16, 4


@dataclass(frozen=True)
class Kind:
    """A head to build; `hidden` other than the target's brings an embedding of its own."""

    is_eagle3: bool = True
    hidden: int = FEATURES
    heads: int = 2
    kv_heads: int = 2
    draft_ids: tuple[int, ...] | None = None
    flags: dict[str, object] = field(default_factory=dict)
    biased: bool = False
    qk_norm: bool = False


KINDS = {
    "EAGLE-1": Kind(is_eagle3=False),
    "EAGLE-1 with biases": Kind(is_eagle3=False, kv_heads=1, biased=True, flags={"fc_bias": True}),
    "EAGLE-3": Kind(),
    "EAGLE-3, draft vocabulary": Kind(draft_ids=(1, 2, 4, 7, 6)),
    "EAGLE-3, own width": Kind(hidden=24, heads=4, kv_heads=2, flags={"taps": (3, 0, 4)}),
    "EAGLE-3, normed residual and output": Kind(flags={"norm_before_residual": True, "norm_output": True}),
    "EAGLE-3, norm before fc": Kind(flags={"norm_before_fc": True, "taps": (0, 1, 2)}),
    "EAGLE-3, norm per tap": Kind(flags={"fc_norm": True, "norm_output": True}, qk_norm=True),
}


def head_of(kind: Kind) -> Head:
    """A head with random numbers in every tensor, named and shaped as the checkpoint formats say."""
    rng, h, size = np.random.default_rng(4), kind.hidden, 8
    inner, wide = 20, 2 * kind.hidden if kind.is_eagle3 else kind.hidden
    width, kv_width = kind.heads * size, kind.kv_heads * size
    draft_vocab = len(kind.draft_ids) if kind.draft_ids else VOCAB
    tensors: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int) -> None:
        numbers = rng.standard_normal(shape)
        scaled = 1.0 + 0.3 * numbers if len(shape) == 1 else numbers * 1.4 / np.sqrt(shape[1])
        tensors[name] = torch.tensor(scaled * 0.2 if name.endswith(".bias") else scaled)

    layer = "layers.0."
    add("fc.weight", h, 3 * FEATURES if kind.is_eagle3 else 2 * h)
    for name, rows, columns in (
        ("self_attn.q_proj", width, wide), ("self_attn.k_proj", kv_width, wide), ("self_attn.v_proj", kv_width, wide),
        ("self_attn.o_proj", h, width), ("mlp.gate_proj", inner, h), ("mlp.up_proj", inner, h),
        ("mlp.down_proj", h, inner),
    ):  # fmt: skip
        add(f"{layer}{name}.weight", rows, columns)
        if kind.biased:
            add(f"{layer}{name}.bias", rows)
    if kind.flags.get("fc_bias"):
        add("fc.bias", h)
    add(f"{layer}post_attention_layernorm.weight", h)
    if kind.qk_norm:
        add(f"{layer}self_attn.q_norm.weight", size)
        add(f"{layer}self_attn.k_norm.weight", size)
    if kind.is_eagle3:
        for name in (f"{layer}input_layernorm", f"{layer}hidden_norm", "norm"):
            add(f"{name}.weight", h)
        add("lm_head.weight", draft_vocab, h)
        for index in range(3):
            if kind.flags.get("fc_norm"):
                add(f"fc_norm.{index}.weight", FEATURES)
        if kind.flags.get("norm_before_fc"):
            add("input_norm.weight", 3 * FEATURES)
    if h != FEATURES:
        add("embed_tokens.weight", VOCAB, h)
    arch = Arch("llama", 1, h, inner, kind.heads, kind.kv_heads, size, VOCAB, 1e-5, 500.0, RopeScaling(),
                kind.biased, kind.biased, kind.biased, kind.qk_norm, False, 300)  # fmt: skip
    config = EagleConfig(kind.is_eagle3, arch, FEATURES, draft_vocab, **kind.flags)  # type: ignore[arg-type]
    return Head(config, tensors, None if kind.draft_ids is None else torch.tensor(kind.draft_ids), "test")


class PlainHead:
    """EAGLE from the papers and the checkpoint formats, one path at a time."""

    def __init__(self, kind: Kind, head: Head, target: ToyTarget) -> None:
        self._kind, self._flags = kind, kind.flags
        self._t = {name: tensor.double().numpy() for name, tensor in head.tensors.items()}
        weights = target.token_weights()
        self._embedding = self._t.get("embed_tokens.weight", weights.embedding.double().numpy())
        self._target_head, self._target_norm = weights.head.double().numpy(), weights.norm.double().numpy()
        self._target_eps = weights.norm_eps
        self._known: dict[tuple[Tokens, Tokens], tuple[Array, Array, Array]] = {}

    def row(self, text: Tokens, features: dict[int, Array], path: Tokens) -> Array:  # [vocab]
        """What the head says after the text and a path of guesses; `features` [text - 1, hidden] by layer."""
        return self._logits(self._reached(text, features, path)[1])

    def _reached(self, text: Tokens, features: dict[int, Array], path: Tokens) -> tuple[Array, Array, Array]:
        """The states that the path's entries were made from, what the last one says, and what it is to the next."""
        if (text, path) not in self._known:
            states = self._fused(features)
            if path:
                above, _, state = self._reached(text, features, path[:-1])
                states = np.concatenate([above, state[None]])
            spoken, out = self._entries([*text[1:], *path], states)
            self._known[text, path] = (states, spoken[-1], out[-1])
        return self._known[text, path]

    def _fused(self, features: dict[int, Array]) -> Array:  # [n, hidden]
        if not self._kind.is_eagle3:
            return rms(features[LAYERS], self._target_norm, self._target_eps)
        taps = self._flags.get("taps", (2, LAYERS // 2, LAYERS - 3))
        parts = [features[tap] for tap in taps]  # type: ignore[attr-defined]
        if self._flags.get("fc_norm"):
            parts = [rms(part, self._t[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)]
        joined = np.concatenate(parts, axis=1)
        if self._flags.get("norm_before_fc"):
            joined = rms(joined, self._t["input_norm.weight"])
        return self._linear(joined, "fc")

    def _entries(self, tokens: Sequence[int], states: Array) -> tuple[Array, Array]:  # [n, hidden] each
        embedded = self._embedding[list(tokens)]
        if not self._kind.is_eagle3:
            x = self._linear(np.concatenate([embedded, states], axis=1), "fc")
            out = self._layer(x, x)
            return out, out
        normed = rms(states, self._t["layers.0.hidden_norm.weight"])
        both = np.concatenate([rms(embedded, self._t["layers.0.input_layernorm.weight"]), normed], axis=1)
        out = self._layer(both, normed if self._flags.get("norm_before_residual") else states)
        spoken = rms(out, self._t["norm.weight"])
        return spoken, spoken if self._flags.get("norm_output") else out

    def _layer(self, seen: Array, residual: Array) -> Array:
        x = residual + self._linear(self._attention(seen), "layers.0.self_attn.o_proj")
        h = rms(x, self._t["layers.0.post_attention_layernorm.weight"])
        gate, up = self._linear(h, "layers.0.mlp.gate_proj"), self._linear(h, "layers.0.mlp.up_proj")
        return x + self._linear(gate / (1.0 + np.exp(-gate)) * up, "layers.0.mlp.down_proj")

    def _attention(self, seen: Array) -> Array:
        kind, count = self._kind, len(seen)
        q, k, v = (
            self._linear(seen, f"layers.0.self_attn.{name}_proj").reshape(count, -1, 8) for name in "qkv"
        )
        if kind.qk_norm:
            q = rms(q, self._t["layers.0.self_attn.q_norm.weight"])
            k = rms(k, self._t["layers.0.self_attn.k_norm.weight"])
        q, k = turned(q), turned(k)
        k, v = (np.repeat(part, kind.heads // kind.kv_heads, axis=1) for part in (k, v))
        logits = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(8.0)
        logits[:, ~np.tri(count, dtype=bool)] = -np.inf
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", weights, v).reshape(count, -1)

    def _logits(self, spoken: Array) -> Array:
        if not self._kind.is_eagle3:
            return self._target_head @ spoken
        drafted = self._t["lm_head.weight"] @ spoken
        ids = self._kind.draft_ids or range(VOCAB)
        row = np.full(VOCAB, -np.inf)
        row[list(ids)] = drafted
        return row

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._t[f"{name}.weight"].T + self._t.get(f"{name}.bias", 0.0)


def rms(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def turned(x: Array) -> Array:  # [n, heads, 8]
    """Rotation of each pair (j, j + 4) by the row's number; tables have float32 precision everywhere."""
    frequencies = 1.0 / 500.0 ** (torch.arange(0, 8, 2, dtype=torch.float32) / 8)
    angles = torch.outer(torch.arange(len(x), dtype=torch.float32), frequencies)
    cos, sin = angles.cos().double().numpy()[:, None], angles.sin().double().numpy()[:, None]
    low, high = x[..., :4], x[..., 4:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


@dataclass
class Watch:
    """What `Growth` was shown: context, nodes, the rows it asked for, and their numbers over all tokens."""

    seen: list[tuple[tuple[int, ...], TokenTree, tuple[int, ...], torch.Tensor]] = field(default_factory=list)

    def __call__(self, monkeypatch: pytest.MonkeyPatch) -> Watch:
        grow = Growth.grow

        def watched(growth: Growth, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft],
                    score: Callable[..., Sequence[torch.Tensor | DraftRows]]) -> list[Draft]:  # fmt: skip
            def noted(
                some: Sequence[Context], given: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
            ) -> Sequence[torch.Tensor | DraftRows]:
                found = score(some, given, wanted)
                for context, tree, rows, numbers in zip(some, given, wanted, found):
                    self.seen.append((tuple(context.tokens), tree, tuple(rows), spread(numbers)))
                return found

            return grow(growth, contexts, budgets, drafts, noted)

        monkeypatch.setattr(Growth, "grow", watched)
        return self


def spread(rows: torch.Tensor | DraftRows) -> torch.Tensor:  # [rows, VOCAB]
    """A copy of the rows over all of the target's tokens; -inf for those that the head does not speak of."""
    if isinstance(rows, torch.Tensor):
        return rows.clone()
    every = rows.logits.new_full((len(rows.logits), VOCAB), -torch.inf)
    every[:, torch.from_numpy(rows.columns.tokens)] = rows.logits
    return every


class Cycle:
    """A controller whose budgets go round: chains, trees, and rounds without a draft."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets, self._round = budgets, 0

    def budgets(self, contexts: Sequence[Context], load: int) -> list[Budget]:
        self._round += 1
        return [self._budgets[(self._round + index) % len(self._budgets)] for index in range(len(contexts))]


def features_of(text: Sequence[int]) -> dict[int, Array]:
    """The features of a text by layer, from a target that has seen nothing else."""
    target = toy(taps=range(LAYERS + 1))
    [features] = target.extend([Chunk(0, text)])
    assert features is not None
    return {tap: features[:, tap].double().numpy() for tap in range(LAYERS + 1)}


def toy(taps: Sequence[int] = ()) -> ToyTarget:
    return ToyTarget(VOCAB, seed=6, order=2, sharpness=1.5, taps=taps, num_layers=LAYERS)


def made(kind: Kind, target: ToyTarget, **settings: int) -> EagleDrafter:
    module = EagleHead(head_of(kind), target.token_weights(), num_layers=LAYERS, dtype=torch.float64)
    target.tap(module.taps)
    return EagleDrafter(CachedHead(module), target_vocab_size=VOCAB, **settings)


def requests(guarantee: Guarantee) -> list[Request]:
    sampling = SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True)
    prompts = [
        (1, 5, 2, 7, 3),
        (4,),
        (2, 2, 6, 1, 0, 3, 5, 4, 7, 1, 2),
        (1, 5, 2, 7, 3),
    ]  # the last one is a fork
    return [
        Request(number, prompt, sampling, 50 + number, guarantee) for number, prompt in enumerate(prompts)
    ]


CHAIN, TREE, TEXT, LAW = 1, 3, Guarantee.SAME_TEXT, Guarantee.SAME_DISTRIBUTION
RUNS = [(name, TREE, TEXT) for name in KINDS]
RUNS += [("EAGLE-1", CHAIN, LAW), ("EAGLE-3", CHAIN, TEXT), ("EAGLE-3", CHAIN, LAW), ("EAGLE-3", TREE, LAW)]


@pytest.mark.parametrize(("name", "topk", "guarantee"), RUNS)
def test_every_row_of_a_generation_is_that_of_the_plain_head(
    name: str, topk: int, guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, watch = toy(), Watch()(monkeypatch)
    drafter = made(KINDS[name], target, topk=topk)
    plain = PlainHead(KINDS[name], head_of(KINDS[name]), target)
    some, none, more = Budget(3, 3 * topk), Budget(0, 0), Budget(4, 4 * topk)
    engine = Engine(Parts(target, drafter, RuleBook(), Cycle([some, none, none, more])))
    running = [engine.submit(request) for request in requests(guarantee)]
    accepted: list[tuple[int, ...]] = []
    while engine.unfinished:
        accepted += [result.accepted for result in engine.step() if len(result.draft)]
    assert {len(path) for path in accepted} >= ({0, 1} if topk == CHAIN else {0, 1, 2}), (
        "rejections at depths"
    )
    assert topk == 1 or any(path[0] > 0 for path in accepted if path), "paths that leave the first children"
    for done in running:
        prompt = done.request.prompt
        assert len({text for text, *_ in watch.seen if text[: len(prompt)] == prompt}) >= 5, "five rounds"
    for text, nodes, rows, numbers in watch.seen:
        features = features_of(text[:-1])
        for row, found in zip(rows, numbers.numpy(), strict=True):
            wanted = plain.row(text, features, nodes.path_tokens(row - 1 if row else None))
            finite = np.isfinite(wanted)
            assert np.array_equal(finite, np.isfinite(found))
            assert np.abs(found[finite] - wanted[finite]).max() < 1e-10
