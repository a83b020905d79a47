"""Where a head and its products run, and what cannot be asked for."""

from __future__ import annotations

import pytest
import torch

from outrider.compiled.library import NativeUnavailable
from outrider.config import SpeculativeConfig
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.heads import _swap, eagle_drafter
from outrider.drafters.setup import DrafterSetup
from outrider.errors import ConfigError
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_cache import CachedHead, DraftHead
from outrider.models.heads import EagleConfig, Head
from outrider.models.native_eagle import NativeEagleHead
from outrider.models.products import Product
from outrider.testing.tiny_head import tiny_arch
from outrider.testing.toy import ToyTarget

WEIGHT = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
VOCAB = 24
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


def drafting_head(method: str, **settings: str) -> DraftHead:
    """The head that a drafter for the toy target gets."""
    target = ToyTarget(VOCAB, num_layers=4)
    arch = tiny_arch(target, 64)
    head = fresh_head(EagleConfig(method == "eagle3", arch, target.hidden_size, VOCAB), seed=1)
    config = SpeculativeConfig.of({"method": method, "model": "m", **settings})
    drafter = eagle_drafter(DrafterSetup(config, target, lambda: target, lambda: head))
    assert isinstance(drafter, EagleDrafter)
    return drafter.head


@pytest.mark.native
@pytest.mark.parametrize("dtype", ["auto", "int8", "bfloat16", "float32"])
def test_eagle3_on_the_cpu_is_one_compiled_pass(dtype: str) -> None:
    assert isinstance(drafting_head("eagle3", draft_dtype=dtype), NativeEagleHead)
    assert isinstance(drafting_head("eagle", draft_dtype=dtype), CachedHead)


def test_without_the_library_eagle3_is_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: object, **named: object) -> None:
        raise NativeUnavailable("it is not there")

    monkeypatch.setattr("outrider.drafters.heads.pack_eagle", missing)
    monkeypatch.setattr("outrider.drafters.heads.NativeMatrices", missing)
    assert isinstance(drafting_head("eagle3"), CachedHead)
    with pytest.raises(ConfigError, match="not 'float16'"):
        drafting_head("eagle3", draft_dtype="float16")
