"""EAGLE heads as modules: trainable, exportable, refused where they do not fit; and their cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outrider.errors import ModelLoadError
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead, attention
from outrider.models.eagle_shapes import feature_taps, fresh_head, tensor_shapes
from outrider.models.head_cache import CachedHead, Entries, Guesses
from outrider.models.heads import EagleConfig, Head
from outrider.models.linear import Linear
from outrider.testing.toy import ToyTarget

VOCAB, HIDDEN = 12, 16
TARGET = ToyTarget(VOCAB)
ARCH = Arch(
    "llama",
    1,
    HIDDEN,
    24,
    4,
    2,
    4,
    VOCAB,
    1e-5,
    10000.0,
    RopeScaling(),
    False,
    False,
    False,
    False,
    False,
    64,
)
EAGLE1 = EagleConfig(False, ARCH, HIDDEN, VOCAB, fc_bias=True)
EAGLE3 = EagleConfig(True, ARCH, HIDDEN, 5)
EVERYTHING = replace(
    EAGLE3, arch=replace(ARCH, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True), taps=(0, 3, 3),
    fc_bias=True, norm_before_fc=True, fc_norm=True, norm_before_residual=True, norm_output=True,
)  # fmt: skip
CONFIGS = {"EAGLE-1": EAGLE1, "EAGLE-3": EAGLE3, "EAGLE-3 with everything": EVERYTHING}
MAP = torch.tensor([0, 3, 4, 9, 11])
by_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))


def files(config: EagleConfig, seed: int = 1) -> Head:
    return fresh_head(config, seed=seed, token_map=MAP if config.draft_vocab < VOCAB else None)


def module_of(head: Head, dtype: torch.dtype = torch.float64) -> EagleHead:
    return EagleHead(head, TARGET.token_weights(), num_layers=TARGET.num_layers, dtype=dtype)


def some_features(module: EagleHead, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, len(module.taps), HIDDEN, generator=generator, dtype=torch.float64)


@by_config
def test_gradients_reach_every_tensor_of_its_own_and_none_of_the_target_s(config: EagleConfig) -> None:
    module = module_of(files(config))
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    states = module.fuse(some_features(module, 5))
    tokens, positions = torch.arange(5), torch.arange(5)
    for _ in range(2):  # the second time on its own states, as in training-time test
        thoughts = module(tokens, states, positions, lambda q, k, v: attention(
            q, k.transpose(0, 1), v.transpose(0, 1), visible))  # fmt: skip
        states = thoughts.states
    module.logits(thoughts.spoken).logsumexp(dim=1).sum().backward()
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert len(trained) >= 7
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


@by_config
def test_its_tensors_are_those_it_was_built_from(config: EagleConfig) -> None:
    head = files(config)
    found = module_of(head, torch.float32).tensors()
    assert found.keys() == head.tensors.keys() == tensor_shapes(config).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in head.tensors.items())


@by_config
def test_training_leaves_the_checkpoint_s_tensors_alone(config: EagleConfig) -> None:
    head = files(config)
    before = {name: tensor.clone() for name, tensor in head.tensors.items()}
    module = module_of(head, torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in before.items())


@by_config
def test_swapped_products_say_the_same(config: EagleConfig) -> None:
    rows = []
    for swapped in (False, True):
        module = module_of(files(config), torch.float32)
        if swapped:
            module.swap_products(Linear)
            assert all(not name.endswith("proj.weight") for name, _ in module.named_parameters())
            assert sum(parameter.numel() for parameter in module.parameters()) < 20 * HIDDEN
        cached = CachedHead(module)
        cached.extend([Entries(0, 0, [1, 2, 3], some_features(module, 3))])
        rows.append(torch.stack([*cached.pending_rows([0]), *cached.guess([Guesses(0, (4, 5), (0, 0))])[0]]))
    torch.testing.assert_close(rows[0], rows[1], atol=1e-5, rtol=1e-5)


def test_rows_have_a_column_per_token_of_the_draft_vocabulary() -> None:
    module = module_of(files(EAGLE3))
    assert module.logits(torch.ones(2, HIDDEN, dtype=torch.float64)).shape == (2, len(MAP))
    assert torch.equal(CachedHead(module).token_map, MAP)


def test_a_head_without_an_output_matrix_speaks_with_the_target_s() -> None:
    whole = fresh_head(replace(EAGLE3, draft_vocab=VOCAB), seed=2)
    bare = replace(whole, tensors={n: t for n, t in whole.tensors.items() if n != "lm_head.weight"})
    module = module_of(bare)
    assert torch.equal(module.lm_head.weight, TARGET.token_weights().head)
    assert "lm_head.weight" not in module.tensors()


def test_one_feature_of_the_head_s_own_width_needs_no_fusing() -> None:
    whole = files(replace(EAGLE3, taps=(2,)))
    bare = replace(whole, tensors={n: t for n, t in whole.tensors.items() if n != "fc.weight"})
    module = module_of(bare)
    features = some_features(module, 3)
    assert torch.equal(module.fuse(features), features[:, 0])


def test_the_default_taps_are_those_of_the_paper() -> None:
    assert feature_taps(EAGLE3, 32) == (2, 16, 29)
    assert feature_taps(EAGLE1, 32) == (32,)
    assert feature_taps(replace(EAGLE3, taps=(1, 5, 9)), 32) == (1, 5, 9)
    assert module_of(files(EAGLE3)).taps == (2, 1), "a layer read twice is tapped once"


@pytest.mark.parametrize(
    ("config", "num_layers", "message"),
    [
        (EAGLE3, 3, "name the layers in eagle_aux"),
        (replace(EAGLE3, taps=(0, 9)), 8, "layer 9, but the target has 8"),
    ],
)
def test_taps_that_a_target_does_not_have_are_refused(
    config: EagleConfig, num_layers: int, message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        feature_taps(config, num_layers)


def broken(config: EagleConfig, name: str, tensor: torch.Tensor | None) -> Head:
    head = files(config)
    rest = {n: t for n, t in head.tensors.items() if n != name}
    return replace(head, tensors=rest if tensor is None else {**rest, name: tensor})


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (broken(EAGLE3, "norm.weight", None), "tensor norm.weight is missing"),
        (broken(EAGLE1, "fc.weight", torch.zeros(HIDDEN, HIDDEN)), r"\[16, 16\], but the configuration says"),
        (broken(EAGLE3, "lm_head.weight", None), "tensor lm_head.weight is missing"),
        (files(replace(EAGLE3, target_hidden=8)), "final norm is 16 wide, the head needs 8"),
        (files(replace(EAGLE3, arch=replace(ARCH, hidden=8))), "embedding is 16 wide, the head needs 8"),
    ],
)  # fmt: skip
def test_a_head_that_does_not_fit_is_refused_by_name(head: Head, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        module_of(head)


# The cache


def rows_of(cached: CachedHead, sequence_id: int) -> torch.Tensor:
    """The rows of a fixed tree of guesses below the last certain entry, and those of a second level added later."""
    first = cached.pending_rows([sequence_id])[0].unsqueeze(0)
    second = cached.guess([Guesses(sequence_id, (1, 2), (0, 0))])[0]
    third = cached.guess([Guesses(sequence_id, (3, 4, 3), (2, 2, 1))])[0]
    return torch.cat([first, second, third])


@by_config
def test_entries_made_in_pieces_or_at_once_say_the_same(config: EagleConfig) -> None:
    module = module_of(files(config))
    features, tokens = some_features(module, 9), [5, 1, 0, 7, 2, 2, 9, 4, 8]
    whole, pieces = CachedHead(module), CachedHead(module)
    whole.extend([Entries(0, 0, tokens, features)])
    for start, end in ((0, 1), (1, 6), (6, 9)):
        pieces.extend([Entries(0, start, tokens[start:end], features[start:end])])
        if end < 9:
            rows_of(pieces, 0)  # guesses leave no trace
    torch.testing.assert_close(rows_of(pieces, 0), rows_of(whole, 0), atol=1e-12, rtol=0)
    assert whole.cached_length(0) == pieces.cached_length(0) == 9


@by_config
def test_an_entry_is_made_anew_with_another_token(config: EagleConfig) -> None:
    module = module_of(files(config))
    features = some_features(module, 6)
    cached, fresh = CachedHead(module), CachedHead(module)
    cached.extend([Entries(0, 0, [5, 1, 0, 7], features[:4])])
    cached.fork(0, 1, 3)
    cached.extend([Entries(1, 2, [9, 3, 3], torch.cat([features[3:5]]))])
    fresh.extend([Entries(1, 0, [5, 1, 9, 3, 3], features[:5])])
    torch.testing.assert_close(rows_of(cached, 1), rows_of(fresh, 1), atol=1e-12, rtol=0)
    cached.extend([Entries(0, 3, [7], features[:0])])
    fresh.extend([Entries(0, 0, [5, 1, 0, 7], features[:4])])
    torch.testing.assert_close(rows_of(cached, 0), rows_of(fresh, 0), atol=1e-12, rtol=0)


@by_config
def test_sequences_side_by_side_say_what_they_say_alone(config: EagleConfig) -> None:
    module = module_of(files(config))
    together, alone = CachedHead(module), CachedHead(module)
    jobs = [
        Entries(
            number,
            0,
            [(3 * number + i) % VOCAB for i in range(length)],
            some_features(module, length, number),
        )
        for number, length in enumerate((1, 7, 4))
    ]
    together.extend(jobs)
    pending = together.pending_rows([2, 0, 1])
    guessed = together.guess([Guesses(1, (4,), (0,)), Guesses(2, (1, 2), (0, 0)), Guesses(0, (3,), (0,))])
    for job in jobs:
        alone.extend([job])
        torch.testing.assert_close(
            pending[(1, 2, 0)[job.sequence_id]], alone.pending_rows([job.sequence_id])[0]
        )
    torch.testing.assert_close(guessed[1], alone.guess([Guesses(2, (1, 2), (0, 0))])[0])


def test_the_cache_grows_without_losing_entries_and_is_freed() -> None:
    module = module_of(files(replace(EAGLE3, arch=replace(ARCH, max_positions=400))))
    features, tokens = some_features(module, 300), [(5 * i) % VOCAB for i in range(300)]
    whole, steps = CachedHead(module), CachedHead(module)
    whole.extend([Entries(0, 0, tokens, features)])
    for start in range(0, 300, 7):
        end = min(start + 7, 300)
        steps.extend([Entries(0, start, tokens[start:end], features[start:end])])
    torch.testing.assert_close(rows_of(steps, 0), rows_of(whole, 0), atol=1e-12, rtol=0)
    steps.release(0)
    steps.release(0)
    assert steps.cached_length(0) == 0
