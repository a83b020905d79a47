"""The example drafter of the documentation: short, found by its entry point, within the contract, and exact."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from outrider.config import SpeculativeConfig
from outrider.core.protocols import Drafter, TargetModel
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, Guarantee, Request
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters import registry
from outrider.drafters.registry import build_drafter
from outrider.drafters.setup import DrafterSetup
from outrider.engine.controller import FixedController
from outrider.engine.engine import Engine, Parts
from outrider.models.heads import Head
from outrider.testing import ToyTarget, check_drafter, oracle_text

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "successor_drafter"
SOURCE = (EXAMPLE / "successor_drafter.py").read_text()
PAGE = (ROOT / "docs" / "add_a_drafter.md").read_text()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as if installed: importable, and with the entry points that its own file declares."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    section = (
        (EXAMPLE / "pyproject.toml").read_text().split('[project.entry-points."outrider.drafters"]\n')[1]
    )
    points = [
        EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
        for name, value in re.findall(r'^(\w+) = "(.+)"$', section.split("\n[")[0], re.MULTILINE)
    ]
    assert points
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def refused() -> TargetModel:
    raise AssertionError("the example loads no model")


def no_head() -> Head:
    raise AssertionError("the example loads no head")


def built(target: TargetModel, method: str | list[str] = "successor") -> Drafter:
    return build_drafter(DrafterSetup(SpeculativeConfig.of({"method": method}), target, refused, no_head))


def test_it_keeps_the_contract() -> None:
    check_drafter(built, lambda: ToyTarget(12, sharpness=4.0))


def test_it_drafts_the_most_frequent_successors() -> None:
    place = Context.of([1, 2, 3, 1, 2, 4, 1, 2, 4, 5, 1])
    assert built(ToyTarget(12)).propose([place], [Budget(3, 3)], [EMPTY_DRAFT]) == [Draft.chain([2, 4, 1])]


@pytest.mark.parametrize("method", ["successor", ["ngram", "successor"]])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SamplingParams(temperature=0.7)])
def test_the_text_is_that_of_plain_decoding(method: str | list[str], sampling: SamplingParams) -> None:
    target, prompt = ToyTarget(9, seed=3, order=1, sharpness=3.0), (1, 2, 3, 4)
    engine = Engine(Parts(target, built(target, method), RuleBook(), FixedController(Budget(4, 4))))
    running = engine.submit(Request(0, prompt, sampling, 5, Guarantee.SAME_TEXT))
    while engine.unfinished:
        engine.step()
    text = oracle_text(target.logits_of, prompt, sampling, 5, eos_token_ids=frozenset(), max_length=None)
    assert running.token_ids == text.token_ids
    assert running.stats.num_accepted_draft_tokens > 0.3 * len(running.token_ids)


def test_it_is_short_and_shown_in_full() -> None:
    assert len(SOURCE.splitlines()) <= 60
    assert f"```python\n{SOURCE}```\n" in PAGE


def test_the_page_s_test_runs_as_it_stands() -> None:
    [script] = [
        code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "check_drafter(" in code
    ]
    importlib.invalidate_caches()
    exec(compile(script, "docs/add_a_drafter.md", "exec"), {})
