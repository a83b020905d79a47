"""Makes the recipe of a method for a target: fresh weights, a draft vocabulary, the shape that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from outrider.core.records import TokenWeights
from outrider.models.arch import Arch
from outrider.models.exit_head import untrained_exit
from outrider.models.head_fit import check_head
from outrider.models.load import ModelSource, load_state
from outrider.models.medusa_head import untrained_head
from outrider.train.draft_model import DraftModelRecipe
from outrider.train.eagle3 import Eagle3Recipe, initial_head
from outrider.train.early_exit import EarlyExitRecipe
from outrider.train.medusa import MedusaRecipe
from outrider.train.recipe import Recipe
from outrider.train.settings import DraftShape, TrainSettings
from outrider.train.shapes import (
    TTT_STEPS,
    draft_vocab,
    eagle3_shape,
    exit_shape,
    medusa_shape,
    student_layers,
)
from outrider.train.start import Start
from outrider.train.student import initialised
from outrider.train.student_files import StudentFiles
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Text
from outrider.train.vocabulary import draft_vocabulary


@dataclass(frozen=True, eq=False)
class TrainTarget:
    """What recipes need of the target."""

    source: ModelSource
    arch: Arch
    weights: TokenWeights
    eos_token_ids: tuple[int, ...]

    @property
    def teacher(self) -> Teacher:
        """As drafts see it that learn from it."""
        return Teacher(self.weights, self.arch.layers, self.source.name)


@dataclass(frozen=True, eq=False)
class RecipeSetup:
    """A shape for a target, with the draft vocabulary that the texts ask for."""

    shape: DraftShape
    target: TrainTarget
    token_map: torch.Tensor | None  # [draft vocab] int64
    seed: int
    device: str


def recipe_for(
    settings: TrainSettings, target: TrainTarget, texts: Sequence[Text], start: Start | None
) -> Recipe:
    """The draft before its first step: fresh, or `start`, which brings its own vocabulary.

    Raises `ConfigError` where the shape does not fit the target, `PairError` or `ModelLoadError` where `start` does
    not.
    """
    token_map = _token_map(settings.shape, target, texts) if start is None else start.head.token_map
    setup = RecipeSetup(settings.shape, target, token_map, settings.seed, settings.device)
    if settings.shape.method == "draft_model":
        return _draft_model(setup) if settings.shape.early_exit is None else _early_exit(setup)
    if start is not None:
        arch = target.arch
        check_head(start.head, vocab_size=arch.vocab_size, hidden_size=arch.hidden, num_layers=arch.layers)
    return _HEADS[settings.shape.method](setup, start)


def _token_map(shape: DraftShape, target: TrainTarget, texts: Sequence[Text]) -> torch.Tensor | None:
    whole = target.arch.vocab_size
    size = draft_vocab(shape, whole)
    return draft_vocabulary(texts, size, whole, always=target.eos_token_ids) if size < whole else None


def _eagle3(setup: RecipeSetup, start: Start | None) -> Recipe:
    shape, target = setup.shape, setup.target
    if start is None:
        head = initial_head(
            eagle3_shape(shape, target.arch), target.weights, setup.token_map, seed=setup.seed
        )
    else:
        head = start.head
    return Eagle3Recipe(
        head, target.teacher, _lesson(shape), output=shape.output, numbers=Numbers(device=setup.device)
    )


def _medusa(setup: RecipeSetup, start: Start | None) -> Recipe:
    shape, target = setup.shape, setup.target
    if start is None:
        head = untrained_head(medusa_shape(shape, target.arch), target.weights, setup.token_map)
    else:
        head = start.head
    return MedusaRecipe(
        head, target.teacher, _lesson(shape), output=shape.output,
        numbers=Numbers(device=setup.device),
    )  # fmt: skip


def _draft_model(setup: RecipeSetup) -> Recipe:
    shape, target = setup.shape, setup.target
    student = initialised(target.arch, load_state(target.source), student_layers(shape, target.arch))
    files = StudentFiles(target.source, target.weights, setup.token_map)
    return DraftModelRecipe(student, target.teacher, files, _lesson(shape), device=setup.device)


def _early_exit(setup: RecipeSetup) -> Recipe:
    shape, target = setup.shape, setup.target
    config = exit_shape(shape, target.arch)
    head = untrained_exit(config, target.weights, setup.token_map, seed=setup.seed)
    return EarlyExitRecipe(head, target.teacher, _lesson(shape), numbers=Numbers(device=setup.device))


def _lesson(shape: DraftShape) -> Lesson:
    return Lesson(shape.loss_fn, shape.ttt_steps or TTT_STEPS, retention=shape.ttt_retention or 1.0)


_HEADS: Mapping[str, Callable[[RecipeSetup, Start | None], Recipe]] = {"eagle3": _eagle3, "medusa": _medusa}
