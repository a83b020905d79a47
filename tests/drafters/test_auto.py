"""`auto` and drafts without a `model`: what they stand for on a loaded target."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.drafters.auto import settled
from outrider.errors import ConfigError
from outrider.models import shipped
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_formats.write import write_head
from outrider.models.heads import EagleConfig
from outrider.models.shipped import write_identity
from outrider.testing.tiny_head import tiny_arch
from outrider.testing.toy import ToyTarget
from outrider.text import Tokenizer

VOCAB = 11


@pytest.fixture
def target() -> ToyTarget:
    return ToyTarget(VOCAB, seed=2)


@pytest.fixture
def place(tmp_path: Path, target: ToyTarget, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped drafts with an EAGLE-3 head for the target."""
    monkeypatch.setattr(shipped, "PLACE", tmp_path)
    write_identity(target, tmp_path / "toy")
    config = EagleConfig(True, tiny_arch(target, 64), target.hidden_size, VOCAB, taps=(0, 1, 2))
    write_head(fresh_head(config, seed=1), tmp_path / "toy" / "eagle3", "eagle3")
    return tmp_path / "toy"


def preset(place: Path, **settings: object) -> None:
    (place / "preset.json").write_text(json.dumps({"default": settings}))


def config(**settings: object) -> SpeculativeConfig:
    return SpeculativeConfig.of(settings)


def test_auto_takes_the_preset_beside_the_drafts_with_the_shipped_draft(
    place: Path, target: ToyTarget, caplog: pytest.LogCaptureFixture
) -> None:
    preset(place, method=["suffix", "eagle3"], num_steps=3, topk=2, tree_budget=6)
    with caplog.at_level(logging.INFO):
        found = settled(config(method="auto"), target)
    assert found.methods == ("suffix", "eagle3")
    assert (found.depth, found.nodes, found.model) == (3, 6, str(place / "eagle3"))
    assert "method auto: suffix, eagle3" in caplog.text


def test_what_the_caller_sets_outranks_the_preset(place: Path, target: ToyTarget) -> None:
    preset(place, method=["suffix", "eagle3"], num_steps=3, draft_dtype="int8")
    found = settled(
        config(
            method="auto", num_speculative_tokens=5, draft_dtype="bfloat16", guarantee="same_distribution"
        ),
        target,
    )
    assert (found.depth, found.draft_dtype, found.guarantee) == (5, "bfloat16", "same_distribution")


def test_a_rule_for_chains_takes_back_the_trees_of_the_preset(place: Path, target: ToyTarget) -> None:
    preset(place, method=["suffix", "eagle3"], num_steps=3, topk=2, tree_budget=6)
    law = {"guarantee": "same_distribution", "rejection_sample_method": "block"}
    found = settled(config(method="auto", **law), target)
    assert (found.depth, found.nodes, found.topk, found.tree_budget) == (3, 3, None, None)
    with pytest.raises(ConfigError, match="'block' judges chains"):
        settled(config(method="auto", topk=2, **law), target)


def test_without_shipped_drafts_auto_needs_no_model(place: Path) -> None:
    stranger = ToyTarget(VOCAB, seed=3)
    assert settled(config(method="auto"), stranger).methods == ("suffix",)
    assert settled(config(method="auto", num_speculative_tokens=3), stranger).depth == 3


def test_a_method_without_a_model_takes_the_shipped_draft(place: Path, target: ToyTarget) -> None:
    for method in ("eagle3", ["suffix", "eagle3"]):
        assert settled(config(method=method), target).model == str(place / "eagle3")
    assert settled(config(method="eagle3", model="mine"), target).model == "mine"


@pytest.mark.parametrize("method", ["medusa", "draft_model"])
def test_a_draft_that_is_neither_named_nor_shipped_is_refused_with_what_there_is(
    place: Path, target: ToyTarget, method: str
) -> None:
    with pytest.raises(ConfigError, match=f"method '{method}' needs 'model'.*shipped for toy: eagle3"):
        settled(config(method=method), target)
    with pytest.raises(ConfigError, match=r"needs 'model'.*none is shipped for it"):
        settled(config(method=method), ToyTarget(VOCAB, seed=3))


def test_settings_that_leave_nothing_open_are_kept_as_they_are(place: Path, target: ToyTarget) -> None:
    for given in (config(), config(method="ngram"), config(method="eagle3", model="mine")):
        assert settled(given, target) is given


def test_a_preset_that_names_a_draft_which_is_not_there_is_refused(place: Path, target: ToyTarget) -> None:
    preset(place, method=["suffix", "medusa"])
    with pytest.raises(ConfigError, match="method 'medusa' needs 'model'"):
        settled(config(method="auto"), target)


def test_an_llm_drafts_with_what_auto_picked_and_writes_the_same_text(place: Path, target: ToyTarget) -> None:
    preset(place, method=["suffix", "eagle3"], num_speculative_tokens=3)
    backend = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    drafting = LLM.from_parts(target, Tokenizer(backend), speculative_config={"method": "auto"})
    assert drafting.config.methods == ("suffix", "eagle3")
    assert drafting.config.model == str(place / "eagle3")
    plain = drafting.with_speculation(None)
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    [told], [wanted] = drafting.generate("w1 w2 w3", sampling), plain.generate("w1 w2 w3", sampling)
    assert told.token_ids == wanted.token_ids
    assert told.stats.num_draft_tokens > 0
