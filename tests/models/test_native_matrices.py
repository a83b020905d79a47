"""Matrices of a caller's own in the compiled library: right, and the same for a row at any width."""

from __future__ import annotations

import pytest
import torch

from outrider.compiled.library import NativeError
from outrider.errors import ConfigError
from outrider.models.native_library import Activations, library
from outrider.models.native_matrices import NativeMatrices

pytestmark = pytest.mark.native

ERRORS = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 4e-2}


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (50, 70), (33, 96), (200, 192)])
def test_a_product_is_torch_s_within_the_precision(dtype: str, outputs: int, inputs: int) -> None:
    weight, bias, x = numbers(outputs, inputs), numbers(outputs), numbers(9, inputs)
    made = NativeMatrices(dtype, threads=2).linear(weight, bias)(x)
    wanted = torch.nn.functional.linear(x, weight, bias)
    assert made.shape == wanted.shape
    assert float((made - wanted).abs().max()) < ERRORS[dtype] * max(1.0, float(inputs**0.5))


@pytest.mark.parametrize("dtype", ERRORS)
def test_a_row_is_bitwise_the_same_at_any_width_and_thread_count(dtype: str) -> None:
    weight, x = numbers(90, 100), numbers(40, 100)
    one = NativeMatrices(dtype, threads=1).linear(weight)
    two = NativeMatrices(dtype, threads=2).linear(weight)
    alone = torch.cat([one(row.unsqueeze(0)) for row in x])
    assert torch.equal(one(x), alone)
    for width in (2, 7, 16, 33):
        assert torch.equal(two(x[:width]), alone[:width])


def test_several_matrices_live_side_by_side() -> None:
    matrices = NativeMatrices("float32", threads=2)
    weights = [numbers(20 + 13 * i, 40) for i in range(4)]
    linears = [matrices.linear(weight) for weight in weights]
    x = numbers(3, 40)
    for weight, linear in zip(weights, linears):
        assert torch.allclose(linear(x), x @ weight.T, atol=1e-4)
    assert linears[0](x[:0]).shape == (0, 20)


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int7'"):
        NativeMatrices("int7")
    matrices = NativeMatrices("float32", threads=1)
    with pytest.raises(NativeError, match="no matrix 0"):
        matrices.multiply(0, numbers(1, 4), 4)
    with pytest.raises(NativeError, match="rows and columns"):
        matrices.linear(torch.empty(0, 4))
    with pytest.raises(NativeError, match="threads"):
        library().create_matrices(Activations.FLOAT32, 0, "avx2")
