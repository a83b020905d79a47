"""The check of heads on SmolLM2 with the EAGLE-3 head that is shipped for it: each flag broken on purpose.

Neighbouring layers of SmolLM2 are alike, and a head that is right a third of the time loses little by a wrong flag:
what costs less than the twelve short texts of the check can tell from chance need not be found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from outrider import LLM
from outrider.drafters.head_check import HeadReport
from outrider.models.heads import EagleConfig, Head, read_head
from outrider.models.shipped import shipped_drafts

pytestmark = pytest.mark.model
_TOLD = 0.04  # of acceptance: three standard errors of a difference on these texts


@cache
def smollm2() -> LLM:
    return LLM("smollm2-135m")


@cache
def shipped_head() -> Head:
    drafts = shipped_drafts(smollm2().target)
    if "eagle3" not in drafts:
        pytest.skip("no EAGLE-3 head is shipped for smollm2-135m")
    return read_head(drafts["eagle3"])


def report(head: Head) -> HeadReport:
    found = smollm2().check_head(head)
    assert found is not None
    return found


def broken(**settings: Any) -> Head:
    head = shipped_head()
    assert isinstance(head.config, EagleConfig)
    theta = settings.pop("rope_theta", head.config.arch.rope_theta)
    arch = replace(head.config.arch, rope_theta=theta)
    return replace(head, config=replace(head.config, arch=arch, **settings))


def test_the_shipped_head_is_read_as_it_was_trained() -> None:
    found = report(shipped_head())
    assert found.better is None
    assert found.warning is None
    assert found.acceptance.by_position[0] > 0.3


def assert_found(broken_head: Head, remedy: str) -> None:
    """A broken flag does not raise acceptance, and is found where it lowers it by more than chance could."""
    right, found = report(shipped_head()), report(broken_head)
    assert found.acceptance.rate < right.acceptance.rate + _TOLD
    if found.acceptance.rate < right.acceptance.rate - _TOLD:
        assert found.better is not None
        assert found.better.changes[0].remedy == remedy


@pytest.mark.parametrize("shift", [-1, 1])
def test_tapped_layers_off_by_one(shift: int) -> None:
    config = shipped_head().config
    assert isinstance(config, EagleConfig)
    taps = config.taps or (2, 15, 27)
    moved = broken(taps=tuple(tap + shift for tap in taps))
    assert_found(moved, f"set eagle_aux_hidden_state_layer_ids to {list(taps)}")


@pytest.mark.parametrize("key", ["norm_before_residual", "norm_output"])
def test_a_norm_that_is_taken_wrongly(key: str) -> None:
    right = getattr(shipped_head().config, key)
    assert_found(broken(**{key: not right}), f"set {key} to {str(right).lower()}")


def test_another_rope_theta() -> None:
    config = shipped_head().config
    assert isinstance(config, EagleConfig)
    assert_found(broken(rope_theta=100.0), f"set rope_theta to {config.arch.rope_theta:g}")
