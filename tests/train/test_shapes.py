"""Shapes of drafts: sizes that are told before a draft is made are those of the draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_target import ARCH, save_target

from outrider.errors import ConfigError
from outrider.models.load import load, resolve
from outrider.train.eagle3 import Eagle3Recipe
from outrider.train.medusa import MedusaRecipe
from outrider.train.recipes import TrainTarget, recipe_for
from outrider.train.settings import DraftShape, TrainSettings
from outrider.train.shapes import DraftSize, check_vocabulary, size_of
from outrider.train.start import Start
from outrider.train.texts import Text

SHAPES = {
    "eagle3": DraftShape("eagle3", 64, (0, 1, 3)),
    "eagle3 with rows of its own": DraftShape("eagle3", 64, (0, 1, 2), lm_head="own"),
    "eagle3 that speaks all": DraftShape("eagle3", 256, (0, 1, 2)),
    "medusa": DraftShape("medusa", 64, num_heads=2, num_layers=2),
    "medusa with rows of its own": DraftShape("medusa", 256, num_heads=3, lm_head="own"),
    "draft_model": DraftShape("draft_model", 64, layers=(0, 1)),
    "exit head": DraftShape("draft_model", 64, early_exit=2),
    "exit head that speaks all": DraftShape("draft_model", 256, early_exit=1),
}
TEXTS = [Text((1, 2, 3), (4, 5, 6), 0.0, "made")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TrainTarget:
    folder = save_target(tmp_path_factory.mktemp("targets") / "tiny")
    weights = load(folder, target="torch", dtype="float32").token_weights()  # type: ignore[attr-defined]
    return TrainTarget(resolve(folder), ARCH, weights, (0, 7))


def settings(shape: DraftShape, **given: object) -> TrainSettings:
    return TrainSettings(shape, (Path("some.txt"),), Path("draft"), **given)  # type: ignore[arg-type]


def counted(module: torch.nn.Module, taps: tuple[int, ...]) -> DraftSize:
    trained = sum(one.numel() for one in module.parameters() if one.requires_grad)
    held = sum(one.numel() for one in (*module.parameters(), *module.buffers()))
    return DraftSize(trained, held, len(taps))


@pytest.mark.parametrize("shape", list(SHAPES.values()), ids=list(SHAPES))
def test_a_size_is_that_of_the_draft(target: TrainTarget, shape: DraftShape) -> None:
    recipe = recipe_for(settings(shape), target, TEXTS, None)
    assert size_of(shape, ARCH, None) == counted(recipe.module, recipe.taps)
    if isinstance(recipe, (Eagle3Recipe, MedusaRecipe)):
        going_on = DraftShape(shape.method, lm_head=shape.lm_head)
        start = Start(recipe.trained(torch.float32), "hash")
        again = recipe_for(settings(going_on), target, TEXTS, start)
        assert size_of(going_on, ARCH, start) == counted(again.module, again.taps)


def test_a_vocabulary_that_cannot_hold_the_ends_of_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="a draft vocabulary of 1 tokens: give from 2 to 256"):
        check_vocabulary(settings(DraftShape("medusa", 1)), 256, (0, 7), None)
    check_vocabulary(settings(DraftShape("medusa", 2)), 256, (0, 7), None)


def test_a_student_of_layers_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer 9 is not one of the target's: they are 0 to 2"):
        size_of(DraftShape("draft_model", layers=(0, 9)), ARCH, None)
