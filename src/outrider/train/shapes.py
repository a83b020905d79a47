"""The shape that a draft takes on a target, and its size: known, and refused, before any of its numbers exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from outrider.errors import ConfigError
from outrider.models.arch import Arch
from outrider.models.eagle_shapes import feature_taps, tensor_shapes
from outrider.models.head_fit import check_head
from outrider.models.heads import EagleConfig, ExitConfig, Head, MedusaConfig
from outrider.models.native_weights import matrix_plans, vector_plans
from outrider.train.eagle3 import eagle3_config
from outrider.train.output import Output
from outrider.train.settings import DraftShape, TrainSettings
from outrider.train.start import Start
from outrider.train.student import check_layers
from outrider.train.vocabulary import check_size

TTT_STEPS = 5
_DRAFT_VOCAB = {"eagle3": 6144, "medusa": 4096, "draft_model": 8192}
_MEDUSA_HEADS, _MEDUSA_LAYERS = 4, 1
_LEAST_LAYERS = 6  # of a target with an early, a middle and a late one
_EMBEDDING, _HEAD, _OUT = "embed_tokens.weight", "lm_head.weight", "out.weight"


@dataclass(frozen=True)
class DraftSize:
    """How many numbers a draft is made of. `taps`: the target's hidden states that it reads of each token."""

    trained: int
    held: int  # those of its module, what the target lends it included
    taps: int


def draft_vocab(shape: DraftShape, vocab_size: int) -> int:
    """How many of the target's tokens a fresh draft speaks."""
    return min(shape.draft_vocab_size or _DRAFT_VOCAB[shape.method], vocab_size)


def eagle3_shape(shape: DraftShape, arch: Arch) -> EagleConfig:
    """Raises `ConfigError` on layers that the target does not have."""
    return eagle3_config(arch, _taps(shape, arch), draft_vocab(shape, arch.vocab_size))


def medusa_shape(shape: DraftShape, arch: Arch) -> MedusaConfig:
    """Heads of residual blocks on the target's last state."""
    heads, layers = shape.num_heads or _MEDUSA_HEADS, shape.num_layers or _MEDUSA_LAYERS
    return MedusaConfig(heads, layers, arch.hidden, arch.vocab_size, draft_vocab(shape, arch.vocab_size))


def exit_shape(shape: DraftShape, arch: Arch) -> ExitConfig:
    """Raises `ConfigError` on an exit behind all layers or none."""
    layers = shape.early_exit or 0
    if not 1 <= layers < arch.layers:
        raise ConfigError(f"early_exit must leave a part of the {arch.layers} layers out, not be {layers}")
    size = draft_vocab(shape, arch.vocab_size)
    return ExitConfig(layers, arch.hidden, arch.intermediate, arch.vocab_size, size)


def student_layers(shape: DraftShape, arch: Arch) -> tuple[int, ...]:
    """The target's layers that a student is made of. Raises `ConfigError` on others than it has."""
    layers = shape.layers or (0, arch.layers // 2)
    check_layers(layers, arch)
    return layers


def check_vocabulary(
    settings: TrainSettings, vocab_size: int, always: tuple[int, ...], start: Start | None
) -> None:
    """Raises `ConfigError` on a draft vocabulary that the target's does not allow, and on a form to export to that has
    no place for one. `always`: tokens that it must hold."""
    size = draft_vocab(settings.shape, vocab_size)
    if start is None and size < vocab_size:
        check_size(size, vocab_size, always)
    cut = size < vocab_size if start is None else start.head.token_map is not None
    if "medusa" in settings.forms and cut:
        raise ConfigError(
            f"form 'medusa' has no place for a draft vocabulary: export to 'medusa_vllm', or give --draft-vocab-size "
            f"{vocab_size}"
        )


def size_of(shape: DraftShape, arch: Arch, start: Start | None) -> DraftSize:
    """The size of a fresh draft, or of the one that `start` goes on from.

    Raises `ConfigError` where the shape does not fit the target, `PairError` or `ModelLoadError` where `start` does
    not.
    """
    if start is not None:
        return _size_of_start(shape, arch, start.head)
    if shape.early_exit is not None:
        return _exit_size(exit_shape(shape, arch))
    if shape.method == "draft_model":
        return _student_size(replace(arch, layers=len(student_layers(shape, arch)), tied_head=False))
    if shape.method == "eagle3":
        config = eagle3_shape(shape, arch)
        numbers = {name: math.prod(size) for name, size in tensor_shapes(config).items()}
        return _eagle3_size(shape, arch, config, numbers)
    medusa = medusa_shape(shape, arch)
    return _medusa_size(shape, medusa, _medusa_numbers(medusa))


def _size_of_start(shape: DraftShape, arch: Arch, head: Head) -> DraftSize:
    check_head(head, vocab_size=arch.vocab_size, hidden_size=arch.hidden, num_layers=arch.layers)
    numbers = {name: tensor.numel() for name, tensor in head.tensors.items()}
    if isinstance(head.config, EagleConfig):
        return _eagle3_size(shape, arch, head.config, numbers)
    assert isinstance(head.config, MedusaConfig), "training goes on from no other heads"
    return _medusa_size(shape, head.config, numbers)


def _eagle3_size(shape: DraftShape, arch: Arch, config: EagleConfig, numbers: Mapping[str, int]) -> DraftSize:
    """`numbers`: how many each tensor of the head has."""
    matrices = arch.vocab_size * arch.hidden
    own = sum(count for name, count in numbers.items() if name != _EMBEDDING)
    trained = own - (numbers.get(_HEAD, 0) if _is_lent(shape) else 0)
    lent = numbers.get(_EMBEDDING, matrices) + (0 if _HEAD in numbers else matrices)
    taps = {*feature_taps(config, arch.layers), arch.layers}
    return DraftSize(trained, own + lent + config.target_hidden + _map_size(config), len(taps))


def _medusa_numbers(config: MedusaConfig) -> dict[str, int]:
    block = config.hidden * config.hidden + (config.hidden if config.bias else 0)
    blocks = {f"heads.{i}.{j}": block for i in range(config.heads) for j in range(config.layers)}
    return blocks | {f"heads.{i}.{_OUT}": config.draft_vocab * config.hidden for i in range(config.heads)}


def _medusa_size(shape: DraftShape, config: MedusaConfig, numbers: Mapping[str, int]) -> DraftSize:
    own = sum(numbers.values())
    lent = sum(count for name, count in numbers.items() if name.endswith(_OUT)) if _is_lent(shape) else 0
    return DraftSize(own - lent, own + config.hidden + _map_size(config), 1)


def _student_size(arch: Arch) -> DraftSize:
    """`arch`: that of the student's own layers."""
    matrices = sum(plan.outputs * plan.inputs for plan in matrix_plans(arch) if plan.layer >= 0)
    own = matrices + sum(numbers for _, _, _, numbers in vector_plans(arch))
    return DraftSize(own, own, 1)


def _exit_size(config: ExitConfig) -> DraftSize:
    own = 3 * config.hidden * config.intermediate + 2 * config.hidden
    return DraftSize(own, own + config.draft_vocab * config.hidden + _map_size(config), 2)


def _map_size(config: EagleConfig | MedusaConfig | ExitConfig) -> int:
    """Numbers of the map of a draft vocabulary; none where it is the target's own."""
    whole = config.arch.vocab_size if isinstance(config, EagleConfig) else config.vocab_size
    return config.draft_vocab if config.draft_vocab < whole else 0


def _is_lent(shape: DraftShape) -> bool:
    return shape.output is Output.TARGET


def _taps(shape: DraftShape, arch: Arch) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head reads; where none are named, an early, a middle and a late one."""
    if shape.target_layer_ids is None:
        if arch.layers < _LEAST_LAYERS:
            raise ConfigError(
                f"a target of {arch.layers} layers has no early, middle and late one: name layers with "
                "--target-layer-ids"
            )
        return (2, arch.layers // 2, arch.layers - 3)
    wrong = [layer for layer in shape.target_layer_ids if not 0 <= layer <= arch.layers]
    if wrong:
        raise ConfigError(
            f"--target-layer-ids: layer {wrong[0]} is not one of the target's, 0 to {arch.layers}"
        )
    return shape.target_layer_ids
