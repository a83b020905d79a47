"""Where the products of a head run, and what cannot be asked for."""

from __future__ import annotations

import pytest
import torch

from outrider.config import SpeculativeConfig
from outrider.drafters.heads import _swap
from outrider.drafters.setup import DrafterSetup
from outrider.errors import ConfigError
from outrider.models.heads import Head
from outrider.models.native_library import NativeUnavailable
from outrider.models.products import Product
from outrider.testing.toy import ToyTarget

WEIGHT = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(3, 7, generator=torch.Generator().manual_seed(2))


def setup_of(dtype: str) -> DrafterSetup:
    def unused() -> Head:
        raise AssertionError("no head is asked for")

    config = SpeculativeConfig.of({"method": "eagle3", "model": "m", "draft_dtype": dtype})
    return DrafterSetup(config, ToyTarget(5), lambda: ToyTarget(5), unused)


def product_of(dtype: str, device: str) -> Product:
    made: list[Product] = []
    _swap(setup_of(dtype), torch.device(device), lambda make: made.append(make(WEIGHT, None)))
    return made[0]


@pytest.mark.native
@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 1e-5), ("bfloat16", 5e-2), ("int8", 1e-1), ("auto", 1e-1)]
)
def test_products_on_the_cpu_are_those_of_the_matrix(dtype: str, error: float) -> None:
    assert float((product_of(dtype, "cpu")(ROWS) - ROWS @ WEIGHT.T).abs().max()) < error


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 5e-2), ("auto", 1e-5)])
def test_without_the_library_torch_runs_them(
    dtype: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*given: object) -> None:
        raise NativeUnavailable("it is not there")

    monkeypatch.setattr("outrider.drafters.heads.NativeMatrices", missing)
    made = product_of(dtype, "cpu")(ROWS)
    assert made.dtype == torch.float32
    assert float((made - ROWS @ WEIGHT.T).abs().max()) < error
    with pytest.raises(ConfigError, match="'int8' needs the compiled library, but it is not there"):
        product_of("int8", "cpu")


def test_int8_off_the_cpu_and_unknown_precisions_are_refused() -> None:
    with pytest.raises(ConfigError, match="the head runs on 'cuda'"):
        product_of("int8", "cuda")
    with pytest.raises(ConfigError, match="not 'float16'"):
        product_of("float16", "cpu")
