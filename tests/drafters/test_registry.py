"""Methods by name: built in, from entry points, or refused with the nearest known one."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from outrider.config import SpeculativeConfig
from outrider.drafters import registry
from outrider.drafters.chain import ChainedDrafter
from outrider.drafters.none import NoDrafter
from outrider.drafters.registry import build_drafter, check_methods
from outrider.drafters.self_draft import SelfDrafter
from outrider.drafters.setup import DrafterSetup
from outrider.errors import ConfigError
from outrider.models.heads import Head
from outrider.testing.toy import ToyTarget


def no_head() -> Head:
    raise AssertionError("no head is asked for")


def setup_of(**settings: object) -> DrafterSetup:
    target = ToyTarget(12)
    return DrafterSetup(SpeculativeConfig.of(settings), target, lambda: target.imitation(0.1), no_head)


def plugin(setup: DrafterSetup) -> NoDrafter:
    return NoDrafter()


def test_a_list_of_methods_is_one_drafter() -> None:
    assert isinstance(build_drafter(setup_of(method=["ngram", "draft_model"], model="d")), ChainedDrafter)


def test_layers_may_be_named_by_exit_or_by_omission() -> None:
    first, rest = build_drafter(setup_of(assistant_early_exit=2)), build_drafter(setup_of(skip_layers=[0, 2]))
    assert isinstance(first, SelfDrafter)
    assert isinstance(rest, SelfDrafter)
    assert (first.layers, rest.layers) == ((0, 1), (1, 3))
    with pytest.raises(ConfigError, match="assistant_early_exit must be between 1 and 3"):
        build_drafter(setup_of(assistant_early_exit=4))


def test_an_entry_point_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:plugin", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: plugin)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert isinstance(build_drafter(setup_of(method="mine", topk=2)), NoDrafter)


@pytest.mark.parametrize(
    ("name", "message"), [("ngrm", "did you mean 'ngram'"), ("qqq", "known: none, .*, eagle3, auto")]
)
def test_an_unknown_method_is_refused_before_anything_is_loaded(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_methods(SpeculativeConfig.of({"method": name}))
