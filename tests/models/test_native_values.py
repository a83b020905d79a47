"""What the compiled decoder computes: weights as packed, and logits, features and draft rows against `TorchDecoder`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from native_models import ARCH, FORMS, VARIANTS, Form, build, prefilled, rows_of, tokens_of, weights

from outrider.compiled.library import NativeUnavailable
from outrider.core.protocols import Chunk
from outrider.core.records import Draft
from outrider.core.tree import TokenTree
from outrider.errors import ModelLoadError
from outrider.models.gguf import GGUFFile
from outrider.models.native import NativeDecoder
from outrider.models.native_library import MatrixRole, library
from outrider.models.native_load import load_native
from outrider.models.native_weights import matrix_plans
from outrider.models.settings import RunSettings
from outrider.models.torch_decoder import TorchDecoder

try:
    SETS = library().instruction_sets()
except NativeUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

FLOAT32 = FORMS[0]
GROUP = 32
TREE = Draft.tree([5, 9, 7, 3, 5, 11, 2], [None, None, 0, 1, 1, 4, 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(params=SETS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OUTRIDER_ISA", request.param)
    return str(request.param)


def matrices(target: NativeDecoder) -> dict[str, torch.Tensor]:
    """What the packed matrices stand for, by name."""
    return {
        plan.name: torch.from_numpy(
            library().unpacked(target._model.handle, plan.role, plan.layer, plan.outputs, plan.inputs)
        )
        for plan in matrix_plans(target.arch)
    }


def dequantised(target: NativeDecoder) -> TorchDecoder:
    """The float32 model of the packed numbers."""
    return TorchDecoder(target.arch, {**weights(target.arch), **matrices(target)}, dtype=torch.float32)


def steps(name: str, form: Form) -> torch.Tensor:  # [outputs, groups, 1]
    """Distance of two levels in each group of inputs."""
    groups = weights()[name].unflatten(1, (-1, GROUP))
    levels = {"int8": 256, "int4": 16}[form.dtype]
    return (groups.amax(2, keepdim=True) - groups.amin(2, keepdim=True)) / (levels - 1)


def test_plain_weights_are_kept_to_the_bit_of_their_type(folder: Path):
    for form, dtype in zip(FORMS[:2], (torch.float32, torch.bfloat16)):
        for name, matrix in matrices(build(form, folder)).items():
            assert torch.equal(matrix, weights()[name].to(dtype).float()), name


@pytest.mark.parametrize("form", [f for f in FORMS if f.dtype in ("int8", "int4")], ids=str)
def test_quantised_weights_are_the_nearest_of_their_levels(form: Form, folder: Path):
    for name, matrix in matrices(build(form, folder)).items():
        error = (matrix - weights()[name]).unflatten(1, (-1, GROUP)).abs()
        limit = 0.5 * steps(name, form) + 5e-4 * weights()[name].abs().max()  # scale and offset are float16
        assert bool((error <= limit).all()), name
        assert error.max() > 0.1 * steps(name, form).max(), f"{name} is not quantised at all"


@pytest.mark.parametrize("form", [f for f in FORMS if f.quant], ids=str)
def test_blocks_of_a_file_stand_for_what_the_file_says(form: Form, folder: Path):
    assert form.quant
    target = build(form, folder)
    state = GGUFFile(folder / f"{form.quant.name}.gguf").state()
    for name, matrix in matrices(target).items():
        assert torch.equal(matrix, state[name]), name


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_logits_features_and_draft_rows_are_those_of_the_pytorch_decoder(
    name: str, isa: str, folder: Path
):
    arch = VARIANTS[name]
    native = build(FLOAT32, folder, arch=arch, threads=2, taps=(2, 0, 1))
    torch_target = TorchDecoder(arch, weights(arch), dtype=torch.float32, taps=(2, 0, 1))
    prompt, tree = tokens_of(90, 1), TokenTree.chain(tokens_of(5, 2))
    states, rows, drafted = [], [], []
    for target in (native, torch_target):
        target.release(0)
        states.append(target.extend([Chunk(0, prompt[:-1])])[0])
        context = prefilled(target, prompt, chunk=40)
        (scores,) = target.score([context], [TREE])
        rows.append(scores.logits.clone())
        states.append(scores.features)
        drafted += [
            target.draft_rows([context], [tree], layers)[0] for layers in ((0,), (1,), (1, 0), (0, 1))
        ]
    half = len(drafted) // 2
    assert rows[1].abs().max() > 1.0
    torch.testing.assert_close(rows[0], rows[1], atol=2e-4, rtol=0)
    for mine, theirs in zip(states[:2], states[2:]):
        assert mine.shape == theirs.shape == (len(mine), 3, arch.hidden)
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
    for mine, theirs in zip(drafted[:half], drafted[half:]):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=0)
    assert not torch.allclose(drafted[0], drafted[1], atol=0.1)


@pytest.mark.parametrize("form", FORMS[1:], ids=str)
def test_logits_are_near_those_of_the_dequantised_model(form: Form, isa: str, folder: Path):
    """What rounds the inputs is all that lies between: 8 bits of mantissa, or 127 levels of the largest in 32."""
    target = build(form, folder, threads=2)
    reference = dequantised(target)
    prompt = tokens_of(70, 3)
    mine, theirs = (rows_of(each, prefilled(each, prompt), TREE) for each in (target, reference))
    error = float((mine - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())
    assert error < (0.01 if form.activations == "bfloat16" else 0.02)


def test_features_keep_the_order_of_the_taps(folder: Path):
    tokens = tokens_of(9, 4)
    target, other = (build(FLOAT32, folder, taps=taps) for taps in ((0, 1, 2), (2, 0)))
    (ascending,), (turned,) = (each.extend([Chunk(0, tokens)]) for each in (target, other))
    assert torch.equal(turned, ascending[:, [2, 0]])


def test_logits_are_finite_and_logits_of_all_layers_equal_scores(folder: Path):
    target = build(FLOAT32, folder, threads=2)
    context = prefilled(target, tokens_of(20, 5))
    rows = rows_of(target, context, TREE)
    assert np.isfinite(rows.numpy()).all()
    assert torch.equal(target.draft_rows([context], [TREE.nodes], range(ARCH.layers))[0], rows)


def test_weight_bytes_count_what_is_packed(folder: Path):
    numbers = sum(plan.outputs * plan.inputs for plan in matrix_plans(ARCH))
    padded = sum(-(-plan.outputs // 32) * 32 * plan.inputs for plan in matrix_plans(ARCH))
    bits = {"float32": 32, "bfloat16": 16, "int8": 9, "int4": 5}
    for form in FORMS[:6]:
        target = build(form, folder)
        assert target.weight_bytes == padded * bits[form.dtype] / 8
        assert target.weight_bytes >= numbers * bits[form.dtype] / 8


def test_an_embedding_beside_a_head_of_its_own_is_no_weight_of_a_pass(folder: Path):
    arch = VARIANTS["own head, normed queries"]
    padded = sum(
        -(-plan.outputs // 32) * 32 * -(-plan.inputs // 32) * 32
        for plan in matrix_plans(arch)
        if plan.role is not MatrixRole.EMBEDDING
    )
    assert build(FLOAT32, folder, arch=arch).weight_bytes == 4 * padded


def test_the_head_of_its_own_is_used(folder: Path):
    arch = VARIANTS["own head, normed queries"]
    target = build(FLOAT32, folder, arch=arch)
    assert "lm_head.weight" in matrices(target)
    assert not torch.equal(matrices(target)["lm_head.weight"], matrices(target)["model.embed_tokens.weight"])


@pytest.mark.parametrize("form", FORMS[:6], ids=str)
@pytest.mark.parametrize("chosen", ["a part of the vocabulary", "more than it"])
def test_a_head_speaks_the_rows_it_was_given(form: Form, chosen: str, folder: Path):
    arch = VARIANTS["own head, normed queries"]
    state = weights(arch)
    count = 2 * arch.vocab_size
    picked = torch.arange(count) % arch.vocab_size if chosen == "more than it" else torch.arange(77) * 2 + 1
    settings = RunSettings(form.dtype, form.activations, 2)
    few = {**state, "lm_head.weight": state["lm_head.weight"][picked]}
    mine = load_native(arch, few, None, settings, spoken_size=len(picked))
    whole = load_native(arch, state, None, settings)
    assert (mine.vocab_size, mine.spoken_size) == (arch.vocab_size, len(picked))
    prompt = tokens_of(30, 8)
    rows, all_rows = (rows_of(target, prefilled(target, prompt), TREE) for target in (mine, whole))
    assert torch.equal(rows, all_rows[:, picked])
    assert torch.equal(mine.token_weights().head, whole.token_weights().head[picked])


def test_a_head_of_other_rows_than_told_is_refused(folder: Path):
    arch = VARIANTS["own head, normed queries"]
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight"):
        load_native(arch, weights(arch), None, RunSettings("float32"), spoken_size=10)
