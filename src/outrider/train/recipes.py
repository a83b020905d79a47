"""Makes the recipe of a method for a target: fresh weights, a draft vocabulary, the shape that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from outrider.core.records import TokenWeights
from outrider.errors import ConfigError
from outrider.models.arch import Arch
from outrider.models.exit_head import untrained_exit
from outrider.models.head_fit import check_head
from outrider.models.heads import ExitConfig, MedusaConfig
from outrider.models.load import ModelSource, load_state
from outrider.models.medusa_head import untrained_head
from outrider.train.draft_model import DraftModelRecipe
from outrider.train.eagle3 import Eagle3Recipe, Unrolling, eagle3_config, initial_head
from outrider.train.early_exit import EarlyExitRecipe
from outrider.train.losses import loss_named
from outrider.train.medusa import MedusaRecipe
from outrider.train.output import Output
from outrider.train.recipe import Recipe
from outrider.train.settings import DraftShape, TrainSettings
from outrider.train.start import Start
from outrider.train.student import initialised
from outrider.train.student_files import StudentFiles
from outrider.train.texts import Text
from outrider.train.vocabulary import draft_vocabulary

_DRAFT_VOCAB = {"eagle3": 6144, "medusa": 4096, "draft_model": 8192}
_TTT_STEPS = 5
_MEDUSA_HEADS, _MEDUSA_LAYERS = 4, 1


@dataclass(frozen=True, eq=False)
class TrainTarget:
    """What recipes need of the target."""

    source: ModelSource
    arch: Arch
    weights: TokenWeights
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RecipeSetup:
    """A shape for a target, with the draft vocabulary that the texts ask for."""

    shape: DraftShape
    target: TrainTarget
    token_map: torch.Tensor | None  # [draft vocab] int64
    seed: int
    device: str

    @property
    def draft_vocab(self) -> int:
        """Tokens that the draft speaks."""
        return self.target.arch.vocab_size if self.token_map is None else len(self.token_map)


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
    size, whole = _draft_vocab(shape, target.arch.vocab_size), target.arch.vocab_size
    return draft_vocabulary(texts, size, whole, always=target.eos_token_ids) if size < whole else None


def check_vocabulary(settings: TrainSettings, vocab_size: int, start: Start | None) -> None:
    """Raises `ConfigError` on a form to export to that has no place for the draft vocabulary."""
    cut = (
        _draft_vocab(settings.shape, vocab_size) < vocab_size
        if start is None
        else start.head.token_map is not None
    )
    if "medusa" in settings.forms and cut:
        raise ConfigError(
            f"form 'medusa' has no place for a draft vocabulary: export to 'medusa_vllm', or give --draft-vocab-size "
            f"{vocab_size}"
        )


def _draft_vocab(shape: DraftShape, vocab_size: int) -> int:
    return min(shape.draft_vocab_size or _DRAFT_VOCAB[shape.method], vocab_size)


def default_taps(arch: Arch) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head reads where none are named: early, middle, late."""
    if arch.layers < 6:
        raise ConfigError(
            f"a target of {arch.layers} layers has no early, middle and late one: name layers with --target-layer-ids"
        )
    return (2, arch.layers // 2, arch.layers - 3)


def _taps(shape: DraftShape, arch: Arch) -> tuple[int, ...]:
    if shape.target_layer_ids is None:
        return default_taps(arch)
    wrong = [layer for layer in shape.target_layer_ids if not 0 <= layer <= arch.layers]
    if wrong:
        raise ConfigError(
            f"--target-layer-ids: layer {wrong[0]} is not one of the target's, 0 to {arch.layers}"
        )
    return shape.target_layer_ids


def _eagle3(setup: RecipeSetup, start: Start | None) -> Recipe:
    shape, target = setup.shape, setup.target
    if start is None:
        config = eagle3_config(target.arch, _taps(shape, target.arch), setup.draft_vocab)
        head = initial_head(config, target.weights, setup.token_map, seed=setup.seed)
    else:
        head = start.head
    unrolling = Unrolling(shape.ttt_steps or _TTT_STEPS, shape.loss_fn, retention=shape.ttt_retention or 1.0)
    return Eagle3Recipe(
        head, target.weights, unrolling, num_layers=target.arch.layers, output=Output(shape.lm_head),
        target=target.source.name, device=setup.device,
    )  # fmt: skip


def _medusa(setup: RecipeSetup, start: Start | None) -> Recipe:
    shape, target = setup.shape, setup.target
    if start is None:
        heads, layers = shape.num_heads or _MEDUSA_HEADS, shape.num_layers or _MEDUSA_LAYERS
        config = MedusaConfig(heads, layers, target.arch.hidden, target.arch.vocab_size, setup.draft_vocab)
        head = untrained_head(config, target.weights, setup.token_map)
    else:
        head = start.head
    return MedusaRecipe(
        head, target.weights, loss=shape.loss_fn, num_layers=target.arch.layers, output=Output(shape.lm_head),
        target=target.source.name, device=setup.device,
    )  # fmt: skip


def _draft_model(setup: RecipeSetup) -> Recipe:
    shape, target = setup.shape, setup.target
    layers = shape.layers or (0, target.arch.layers // 2)
    student = initialised(target.arch, load_state(target.source), layers)
    files = StudentFiles(target.source, target.weights, setup.token_map)
    return DraftModelRecipe(
        student, target.weights, files, num_layers=target.arch.layers, loss=loss_named(shape.loss_fn),
        steps=shape.ttt_steps or _TTT_STEPS, device=setup.device,
    )  # fmt: skip


def _early_exit(setup: RecipeSetup) -> Recipe:
    shape, arch, weights = setup.shape, setup.target.arch, setup.target.weights
    layers = shape.early_exit or 0
    if not 1 <= layers < arch.layers:
        raise ConfigError(f"early_exit must leave a part of the {arch.layers} layers out, not be {layers}")
    config = ExitConfig(layers, arch.hidden, arch.intermediate, arch.vocab_size, setup.draft_vocab)
    head = untrained_exit(config, weights, setup.token_map, seed=setup.seed)
    return EarlyExitRecipe(
        head, weights, num_layers=arch.layers, loss=loss_named(shape.loss_fn), steps=shape.ttt_steps or _TTT_STEPS,
        target=setup.target.source.name, device=setup.device,
    )  # fmt: skip


_HEADS: Mapping[str, Callable[[RecipeSetup, Start | None], Recipe]] = {"eagle3": _eagle3, "medusa": _medusa}
