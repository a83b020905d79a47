"""Losses: values against their definitions, gradients against autograd and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from outrider.errors import ConfigError
from outrider.train.losses import LK_DECAY, LK_SCALE, LOSSES, loss_named


def plain_ce(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return -(p * q.log()).sum(1)


def plain_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (p / q).log()).sum(1)


def plain_tv(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p - q).abs().sum(1) / 2


def plain_lk(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    weights = LK_SCALE * torch.exp(-LK_DECAY * (1 - plain_tv(p, q))).detach()
    return weights * plain_kl(p, q) + (1 - weights) * plain_tv(p, q)


PLAIN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "ce": plain_ce,
    "kl_div": plain_kl,
    "tv": plain_tv,
    "lk_hybrid": plain_lk,
}


def logits(rows: int, vocab: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    draft, target = torch.randn(2, rows, vocab, generator=generator, dtype=torch.float64) * 3
    return draft.to(dtype).requires_grad_(), target.to(dtype)


def test_every_loss_has_a_definition_here() -> None:
    assert set(PLAIN) == set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_the_definition(name: str) -> None:
    draft, target = logits(40, 11)
    weights = torch.linspace(-1, 2, 40, dtype=torch.float64)
    rows = LOSSES[name](draft, target)
    (own,) = torch.autograd.grad((rows.losses * weights).sum(), draft)
    expected = PLAIN[name](target.softmax(1), draft.softmax(1))
    (slope,) = torch.autograd.grad((expected * weights).sum(), draft)
    torch.testing.assert_close(rows.losses, expected.detach(), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(own, slope, rtol=1e-9, atol=1e-12)
    overlaps = torch.minimum(target.softmax(1), draft.detach().softmax(1)).sum(1)
    torch.testing.assert_close(rows.overlaps, overlaps)


@pytest.mark.parametrize("name", ["kl_div", "ce", "tv"])  # lk_hybrid holds its weight fixed
def test_gradients_are_finite_differences(name: str) -> None:
    draft, target = logits(5, 7)
    assert torch.autograd.gradcheck(lambda moved: LOSSES[name](moved, target).losses, draft, eps=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_do_not_depend_on_the_rows_beside_them(name: str) -> None:
    draft, target = logits(70, 8192, torch.float32)  # more rows than one block holds
    whole = LOSSES[name](draft, target)
    alone = LOSSES[name](draft[61:62], target[61:62])
    torch.testing.assert_close(whole.losses[61:62], alone.losses)
    (own,) = torch.autograd.grad(whole.losses[61], draft, retain_graph=True)
    (slope,) = torch.autograd.grad(alone.losses[0], draft)
    torch.testing.assert_close(own, slope)


@pytest.mark.parametrize("name", LOSSES)
def test_equal_laws_lose_nothing_and_far_logits_stay_finite(name: str) -> None:
    draft = torch.tensor([[300.0, 0.0, -300.0], [1.0, 2.0, 3.0]], requires_grad=True)
    same = LOSSES[name](draft, draft)
    torch.testing.assert_close(same.overlaps, torch.ones(2))
    if name != "ce":
        torch.testing.assert_close(same.losses, torch.zeros(2), atol=1e-6, rtol=0.0)
    far = LOSSES[name](draft, draft.detach().flip(1))
    far.losses.sum().backward()
    assert far.losses.isfinite().all()
    assert draft.grad is not None
    assert draft.grad.isfinite().all()
    assert far.overlaps[0] == 0.0


def test_bfloat16_logits_are_judged_in_float32_and_answered_in_bfloat16() -> None:
    draft, target = logits(9, 33, torch.bfloat16)
    rows = LOSSES["kl_div"](draft, target)
    assert rows.losses.dtype == rows.overlaps.dtype == torch.float32
    wide = LOSSES["kl_div"](draft.detach().float(), target.float())
    torch.testing.assert_close(rows.losses, wide.losses)
    (slope,) = torch.autograd.grad(rows.losses.sum(), draft)
    assert slope.dtype == torch.bfloat16


def test_an_unknown_loss_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'kl'; did you mean 'kl_div'"):
        loss_named("kl")
    assert loss_named("tv") is LOSSES["tv"]
