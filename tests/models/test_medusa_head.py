"""Medusa heads: the forward of the paper, the target's ids, trainable parameters, and heads that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from outrider.core.records import TokenWeights
from outrider.errors import ModelLoadError
from outrider.models.heads import Head, MedusaConfig
from outrider.models.medusa_head import MedusaHeads, untrained_head
from outrider.models.native_matrices import NativeMatrices
from outrider.models.products import Product

HIDDEN, VOCAB = 12, 30


def weights(dtype: torch.dtype = torch.float64) -> TokenWeights:
    made = torch.Generator().manual_seed(1)
    embedding, head = torch.randn(2, VOCAB, HIDDEN, generator=made, dtype=torch.float64).to(dtype)
    norm = 1.0 + 0.3 * torch.randn(HIDDEN, generator=made, dtype=torch.float64).to(dtype)
    return TokenWeights(embedding, head, norm, 1e-5)


def config(**changes: object) -> MedusaConfig:
    return replace(MedusaConfig(3, 2, HIDDEN, VOCAB, VOCAB), **changes)  # type: ignore[arg-type]


def random_head(shape: MedusaConfig, token_map: torch.Tensor | None = None) -> Head:
    made = torch.Generator().manual_seed(2)
    tensors = {
        name: torch.randn(tensor.shape, generator=made, dtype=torch.float64) / math.sqrt(HIDDEN)
        for name, tensor in untrained_head(shape, weights(), token_map).tensors.items()
    }
    return Head(shape, tensors, token_map, name="random heads")


def states(count: int) -> torch.Tensor:  # [count, hidden]
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 4.0


def plain_row(head: Head, i: int, state: list[float]) -> list[float]:
    """Head i on one state, number by number."""
    assert isinstance(head.config, MedusaConfig)
    token = weights()
    size = math.sqrt(sum(x * x for x in state) / HIDDEN + token.norm_eps)
    h = [x / size * g for x, g in zip(state, token.norm.tolist())]

    def product(name: str, x: list[float]) -> list[float]:
        return [sum(w * v for w, v in zip(row, x)) for row in head.tensors[name].tolist()]

    for j in range(head.config.layers):
        turned = product(f"heads.{i}.{j}.weight", h)
        if head.config.bias:
            turned = [y + b for y, b in zip(turned, head.tensors[f"heads.{i}.{j}.bias"].tolist())]
        h = [x + y / (1.0 + math.exp(-y)) for x, y in zip(h, turned)]
    return product(f"heads.{i}.out.weight", h)


@pytest.mark.parametrize("shape", [config(), config(layers=1), config(bias=False), config(heads=1, layers=0)])
def test_the_forward_is_that_of_the_paper(shape: MedusaConfig) -> None:
    head = random_head(shape)
    rows = MedusaHeads(head, weights(), dtype=torch.float64)(states(4))
    assert rows.shape == (4, shape.heads, VOCAB)
    for n, state in enumerate(states(4).tolist()):
        for i in range(shape.heads):
            assert rows[n, i].tolist() == pytest.approx(plain_row(head, i, state), abs=1e-10)


def test_fewer_heads_speak_as_they_do_among_all() -> None:
    module = MedusaHeads(random_head(config()), weights(), dtype=torch.float64)
    assert torch.equal(module(states(1), 2), module(states(1))[:, :2])
    assert module.count == 3


def test_rows_have_a_column_per_token_of_the_draft_vocabulary() -> None:
    token_map = torch.tensor([4, 0, 29, 17, 8])
    module = MedusaHeads(random_head(config(draft_vocab=5), token_map), weights(), dtype=torch.float64)
    assert module(states(2), 2).shape == (2, 2, 5)
    assert module.token_map is not None
    assert torch.equal(module.token_map, token_map)


def test_untrained_heads_say_what_the_target_says() -> None:
    token = weights()
    module = MedusaHeads(untrained_head(config(), token), token, dtype=torch.float64)
    normed = torch.nn.functional.rms_norm(states(3), (HIDDEN,), token.norm, token.norm_eps)
    for i in range(3):
        torch.testing.assert_close(module(states(3))[:, i], normed @ token.head.T, rtol=1e-10, atol=1e-10)


def test_untrained_heads_of_a_cut_vocabulary_take_the_rows_of_its_tokens() -> None:
    token, token_map = weights(), torch.tensor([7, 3])
    head = untrained_head(config(draft_vocab=2), token, token_map)
    assert torch.equal(head.tensors["heads.1.out.weight"], token.head[[7, 3]])


def test_gradients_reach_every_parameter_and_not_the_norm() -> None:
    head = random_head(config())
    module = MedusaHeads(head, weights())
    rows = module(states(4))
    torch.nn.functional.cross_entropy(rows.flatten(0, 1), torch.arange(12)).backward()
    assert {name for name, p in module.named_parameters() if p.grad is not None and p.grad.any()} == set(
        head.tensors
    )
    assert not module.norm.requires_grad


def test_products_may_be_replaced_by_others() -> None:
    module = MedusaHeads(random_head(config()), weights(), dtype=torch.float64)
    wanted, made = module(states(2)), []

    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        made.append(weight)
        return lambda x: torch.nn.functional.linear(x, weight, bias)

    module.swap_products(make)
    assert len(made) == 3 * (2 + 1)
    torch.testing.assert_close(module(states(2)), wanted, rtol=1e-12, atol=1e-12)
    assert not list(module.parameters())
    assert module.row_invariant


@pytest.mark.native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_compiled_products_give_a_state_the_same_rows_in_any_batch(dtype: str) -> None:
    shape = config(hidden=64, heads=2)
    made = torch.Generator().manual_seed(5)
    token = TokenWeights(*torch.randn(2, VOCAB, 64, generator=made), torch.ones(64), 1e-5)
    head = untrained_head(shape, token)
    tensors = {name: torch.randn(t.shape, generator=made) / 8.0 for name, t in head.tensors.items()}
    module = MedusaHeads(replace(head, tensors=tensors), token)
    batch = torch.randn(5, 64, generator=made)
    wanted = module(batch)
    module.swap_products(NativeMatrices(dtype, threads=1).linear)
    with torch.no_grad():
        rows = module(batch)
        assert all(torch.equal(module(batch[n : n + 1])[0], rows[n]) for n in range(5))
    near = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.05}[dtype]
    torch.testing.assert_close(rows, wanted, atol=near, rtol=near)


def test_the_parameters_have_the_names_of_the_record_and_are_its_copies() -> None:
    head = random_head(config())
    module = MedusaHeads(head, weights(), dtype=torch.float64)
    assert module.tensors().keys() == head.tensors.keys()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter, head.tensors[name])
            parameter.zero_()
    assert all(tensor.any() for tensor in head.tensors.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_heads_norm_their_states_in_float32(dtype: torch.dtype) -> None:
    token = weights(torch.bfloat16)
    module = MedusaHeads(random_head(config()), token, dtype=dtype)
    exact = MedusaHeads(random_head(config()), token, dtype=torch.float64)
    assert module.norm.dtype == torch.float32
    near = {torch.float32: 1e-4, torch.bfloat16: 0.3}[dtype]
    torch.testing.assert_close(module(states(4)).double(), exact(states(4)), atol=near, rtol=0.0)


def test_heads_for_another_target_are_refused() -> None:
    token = weights()
    narrow = TokenWeights(token.embedding[:, :8], token.head[:, :8], token.norm[:8], token.norm_eps)
    with pytest.raises(ModelLoadError, match="random heads: reads states of 12 numbers, the target's have 8"):
        MedusaHeads(random_head(config()), narrow)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads.1.0.bias": None}, r"heads.1.0.bias must be \(12,\), not absent"),
        ({"heads.3.out.weight": torch.zeros(1)}, r"heads.3.out.weight must be absent, not \(1,\)"),
        (
            {"heads.2.out.weight": torch.zeros(5, HIDDEN)},
            r"heads.2.out.weight must be \(30, 12\), not \(5, 12\)",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change: dict[str, torch.Tensor | None], message: str) -> None:
    head = random_head(config())
    tensors = {name: t for name, t in {**head.tensors, **change}.items() if t is not None}
    with pytest.raises(ModelLoadError, match=message):
        MedusaHeads(replace(head, tensors=tensors), weights())
