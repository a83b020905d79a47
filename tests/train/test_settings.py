"""Settings of a training run: what cannot be meant is refused before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.train.losses import LOSSES
from outrider.train.settings import LOSS_NAMES, DraftShape, TrainSettings, seconds_of

EAGLE3 = DraftShape("eagle3")


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900.0), ("90s", 90.0), ("1h30m", 5400.0), ("20", 1200.0), ("0.5h", 1800.0)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "15 m", "m15", "10x", "-5m", "5m!"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="budget must be a time like 15m"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "eagel3"}, "did you mean 'eagle3'"),
        ({"method": "eagle3", "loss_fn": "kldiv"}, "did you mean 'kl_div'"),
        ({"method": "eagle3", "num_heads": 4}, "num_heads is a setting of medusa, not of eagle3"),
        ({"method": "eagle3", "num_layers": 2}, "num_layers is a setting of medusa, not of eagle3"),
        ({"method": "medusa", "ttt_retention": 0.5}, "ttt_retention is a setting of eagle3, not of medusa"),
        ({"method": "eagle3", "ttt_retention": 0.0}, "ttt_retention must be above 0 and at most 1, not 0.0"),
        ({"method": "medusa", "target_layer_ids": (1, 2, 3)}, "target_layer_ids is a setting of eagle3"),
        ({"method": "medusa", "ttt_steps": 3}, "ttt_steps is a setting of eagle3 and draft_model"),
        ({"method": "eagle3", "layers": (0,)}, "layers is a setting of draft_model"),
        ({"method": "medusa", "early_exit": 3}, "early_exit is a setting of draft_model, not of medusa"),
        ({"method": "draft_model", "early_exit": 0}, "early_exit must be from 1"),
        ({"method": "draft_model", "early_exit": 3, "layers": (0, 1)}, "layers and early_exit both say"),
        ({"method": "eagle3", "draft_vocab_size": 0}, "draft_vocab_size must be from 1"),
        ({"method": "eagle3", "ttt_steps": 99}, "ttt_steps must be from 1 to 16, not 99"),
        ({"method": "eagle3", "target_layer_ids": (1, 2, 1)}, "target_layer_ids must be distinct, not [1, 2, 1]"),
        ({"method": "eagle3", "target_layer_ids": (-1, 2)}, "target_layer_ids must name layers from 0, not [-1, 2]"),
        ({"method": "draft_model", "layers": ()}, "layers must name layers from 0, not []"),
        ({"method": "draft_model", "lm_head": "own"}, "lm_head is a setting of eagle3 and medusa, not of draft_model"),
        ({"method": "eagle3", "lm_head": "mine"}, "lm_head must be one of own, target"),
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        DraftShape(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompts": ()}, "no prompts are given"),
        ({"budget": 0.0}, "budget must be above 0"),
        ({"epochs": float("nan")}, "epochs must be above 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"shape": DraftShape("draft_model"), "start_from": "head"}, "goes on from a head of eagle3 or medusa"),
        ({"shape": DraftShape("eagle3", 64), "start_from": "head"}, "draft_vocab_size is that of the head"),
        ({"most_new": 0}, "most_new must be at least 1"),
        ({"forms": ("speculator",)}, "form must be one of eagle3, speculators, not 'speculator'"),
        ({"forms": ("medusa",)}, "form must be one of eagle3, speculators"),
        ({"seed": -1}, "seed must be from 0"),
        ({"seed": 1 << 70}, "seed must be from 0 to 4294967295, not"),
        ({"budget": 60.0, "steps": 5}, "budget and steps both say"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_named(given: dict[str, Any], says: str) -> None:
    settings = {"shape": EAGLE3, "prompts": (Path("a.jsonl"),), "output": Path("head"), **given}
    with pytest.raises(ConfigError, match=says):
        TrainSettings(**settings)


def test_answers_are_kept_with_the_run_unless_they_have_a_place_of_their_own() -> None:
    alone = TrainSettings(EAGLE3, (Path("a"),), Path("head"))
    assert alone.answer_folder == alone.work == Path("head/training")
    shared = TrainSettings(EAGLE3, (Path("a"),), Path("head"), answers=Path("answers"))
    assert (shared.answer_folder, shared.work) == (Path("answers"), Path("head/training"))


def test_settings_know_the_losses_there_are() -> None:
    assert tuple(LOSSES) == LOSS_NAMES
