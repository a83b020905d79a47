"""Heads written in the public forms: read back to the bit, refused where a form has no place, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import head_folders as made
import pytest
import torch
from head_folders import EAGLE1_CONFIG, EAGLE3_CONFIG, HIDDEN, VOCAB, same_tensors, weight, write
from safetensors import safe_open

from outrider.errors import ModelLoadError
from outrider.models.head_formats.write import FORMS, write_head
from outrider.models.heads import EagleConfig, Head, MedusaConfig, read_head

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


def eagle1(folder: Path) -> Head:
    return read_head(write(folder, EAGLE1_CONFIG, made.eagle1_state()))


def eagle1_biased(folder: Path) -> Head:
    state = made.eagle1_state()
    del state["fc.bias"]
    state |= {f"layers.0.self_attn.{part}_proj.bias": weight(size) for part, size in zip("qkv", (8, 4, 4))}
    return read_head(write(folder, {**EAGLE1_CONFIG, "bias": False, "model_type": "qwen2"}, state))


def eagle3(folder: Path) -> Head:
    config = {**EAGLE3_CONFIG, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}}
    return read_head(write(folder, config, made.eagle3_state()))


def eagle3_whole(folder: Path) -> Head:
    config = {**EAGLE3_CONFIG, "draft_vocab_size": VOCAB, "norm_before_residual": True, "fc_norm": True}
    state = made.whole_vocabulary(made.eagle3_state(target_hidden=6))
    state |= {f"fc_norm.{tap}.weight": weight(6, dtype=torch.float32) for tap in range(3)}
    return read_head(write(folder, {**config, "rope_scaling": LLAMA3_ROPE}, state))


def eagle3_lent(folder: Path) -> Head:
    """It reads and speaks with the target's matrices."""
    state = made.whole_vocabulary(made.eagle3_state())
    del state["lm_head.weight"]
    return read_head(write(folder, {**EAGLE3_CONFIG, "draft_vocab_size": None}, state))


def eagle3_embedded(folder: Path) -> Head:
    config = {**EAGLE3_CONFIG, "norm_before_fc": True, "norm_output": True, "attention_bias": True}
    config |= {"rope_scaling": {"type": "linear", "factor": 2.0}, "mlp_bias": True}
    state = {**made.eagle3_state(), "embed_tokens.weight": weight(VOCAB, HIDDEN)}
    state["input_norm.weight"] = weight(3 * HIDDEN)
    sizes = {"q": 8, "k": 4, "v": 4, "o": HIDDEN}
    state |= {f"midlayer.self_attn.{part}_proj.bias": weight(size) for part, size in sizes.items()}
    sizes = {"gate": 16, "up": 16, "down": HIDDEN}
    state |= {f"midlayer.mlp.{part}_proj.bias": weight(size) for part, size in sizes.items()}
    return read_head(write(folder, config, state))


def qwen3(folder: Path) -> Head:
    state = made.speculators_state()
    state |= {f"layers.0.self_attn.{part}_norm.weight": weight(4) for part in "qk"}
    layer = {**made.LAYER_CONFIG, "model_type": "qwen3"}
    return read_head(write(folder, {**made.SPECULATORS_CONFIG, "transformer_layer_config": layer}, state))


def medusa(folder: Path) -> Head:
    return read_head(write(folder, None, made.medusa_state(3, 2)))


def medusa_cut(folder: Path) -> Head:
    return read_head(write(folder, made.vllm_medusa_config(), made.vllm_medusa_state()))


def medusa_shared(folder: Path) -> Head:
    return read_head(write(folder, made.vllm_medusa_config(original_lm_head=True), made.vllm_medusa_state()))


EAGLE3_HEADS = (eagle3, eagle3_whole, eagle3_lent, eagle3_embedded)


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (eagle1, "eagle"),
        (eagle1_biased, "eagle"),
        *[(make, form) for make in EAGLE3_HEADS for form in ("eagle3", "speculators")],
        (qwen3, "speculators"),
        (medusa, "medusa"),
        *[(make, "medusa_vllm") for make in (medusa, medusa_cut, medusa_shared)],
    ],
)  # fmt: skip
def test_a_head_reads_back_to_the_bit(tmp_path: Path, make: Any, form: str):
    head = make(tmp_path / "given")
    write_head(head, tmp_path / "written", form)
    again = read_head(tmp_path / "written")
    assert again.config == head.config
    assert same_tensors(again.tensors, head.tensors)
    if head.token_map is None:
        assert again.token_map is None
    else:
        assert again.token_map is not None
        assert torch.equal(again.token_map, head.token_map)
    contradictions = [line for line in again.findings if "count" in line and "context" not in line]
    assert contradictions == []
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_an_eagle_3_file_has_what_the_servers_ask_for(tmp_path: Path):
    for make in (eagle3, eagle3_whole):
        folder = tmp_path / make.__name__
        write_head(make(tmp_path / "given"), folder, "eagle3")
        with safe_open(folder / "model.safetensors", framework="pt") as opened:
            names = set(opened.keys())
            assert opened.metadata() == {"format": "pt"}
            assert {"fc.weight", "norm.weight", "lm_head.weight", "t2d", "d2t"} <= names
            assert "midlayer.hidden_norm.weight" in names
            d2t, t2d = opened.get_tensor("d2t"), opened.get_tensor("t2d")
        assert (d2t.dtype, t2d.dtype, len(t2d)) == (torch.int64, torch.bool, VOCAB)
        reached = made.DRAFT_IDS if make is eagle3 else list(range(VOCAB))
        assert (d2t + torch.arange(len(d2t))).tolist() == reached == t2d.nonzero().flatten().tolist()
    config = json.loads((tmp_path / "eagle3" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 7]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 6]
    assert (config["draft_vocab_size"], config["vocab_size"], config["torch_dtype"]) == (12, 40, "bfloat16")


def test_a_speculators_config_names_its_target(tmp_path: Path):
    write_head(eagle3(tmp_path / "given"), tmp_path / "written", "speculators", target="someone/target")
    config = json.loads((tmp_path / "written" / "config.json").read_text())
    known = {key for key in made.SPECULATORS_CONFIG if key != "eagle_aux_hidden_state_layer_ids"}
    assert known <= config.keys()
    assert config["speculators_config"]["verifier"]["name_or_path"] == "someone/target"
    assert config["speculators_config"].keys() == made.SPECULATORS_CONFIG["speculators_config"].keys()
    assert config["transformer_layer_config"].keys() >= made.LAYER_CONFIG.keys()


def test_a_shared_output_matrix_is_stored_once(tmp_path: Path):
    write_head(medusa_shared(tmp_path / "given"), tmp_path / "written", "medusa_vllm")
    with safe_open(tmp_path / "written" / "model.safetensors", framework="pt") as opened:
        names = list(opened.keys())
    assert [name for name in names if name.startswith("lm_head")] == ["lm_heads.0.weight"]


@pytest.mark.parametrize(
    ("make", "form", "said"),
    [
        (eagle3, "eagle", "it is an EAGLE-3 head: use form 'eagle3' or 'speculators'"),
        (eagle1, "eagle3", "it is an EAGLE-1 head: use form 'eagle'"),
        (eagle1, "speculators", "it is an EAGLE-1 head: use form 'eagle'"),
        (qwen3, "eagle3", "its layer has q_norm: use form 'speculators'"),
        (eagle1, "medusa", "it is an EAGLE head: use one of eagle, eagle3, speculators"),
        (medusa, "eagle3", "these are Medusa heads: use one of medusa, medusa_vllm"),
        (medusa_cut, "medusa", "it has a draft vocabulary of its own: use form 'medusa_vllm'"),
        (medusa, "gguf", f"form must be one of {', '.join(FORMS)}, not 'gguf'"),
        (medusa, "medusa_vlm", "did you mean 'medusa_vllm'?"),
    ],
)
def test_a_form_without_place_for_a_head_says_why(tmp_path: Path, make: Any, form: str, said: str):
    with pytest.raises(ModelLoadError) as caught:
        write_head(make(tmp_path / "given"), tmp_path / "written", form)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "written").exists()


def test_parts_that_a_form_has_no_key_for_are_refused(tmp_path: Path):
    head = eagle3(tmp_path / "given")
    assert isinstance(head.config, EagleConfig)
    biased = replace(head, config=replace(head.config, fc_bias=True))
    with pytest.raises(ModelLoadError, match=r"it has fc\.bias: use form 'eagle3'"):
        write_head(biased, tmp_path / "written", "speculators")
    half = replace(head, config=replace(head.config, arch=replace(head.config.arch, qkv_bias=True)))
    for form in ("eagle3", "speculators"):
        with pytest.raises(ModelLoadError, match="biases on q, k, v or on o alone"):
            write_head(half, tmp_path / "written", form)
    plain = medusa(tmp_path / "medusa")
    assert isinstance(plain.config, MedusaConfig)
    unbiased = replace(plain, config=replace(plain.config, bias=False))
    with pytest.raises(ModelLoadError, match="no biases, which v1 loaders expect"):
        write_head(unbiased, tmp_path / "written", "medusa")


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    head = medusa(tmp_path / "given")
    (tmp_path / "empty").mkdir()
    write_head(head, tmp_path / "empty", "medusa")
    with pytest.raises(ModelLoadError, match="is there already and not empty"):
        write_head(head, tmp_path / "empty", "medusa")

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("outrider.models.new_folder.save_file", full)
    with pytest.raises(ModelLoadError, match="No space left on device"):
        write_head(head, tmp_path / "written", "medusa")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "given"]
