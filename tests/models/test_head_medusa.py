"""Medusa heads in the v1 form, within a full model, and in vLLM's form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from head_folders import (
    DRAFT_IDS,
    DRAFT_VOCAB,
    HIDDEN,
    LAYER_CONFIG,
    VOCAB,
    medusa_state,
    same_tensors,
    vllm_medusa_config,
    vllm_medusa_state,
    weight,
    write,
)  # fmt: skip

from outrider.errors import ModelLoadError
from outrider.models.heads import Head, MedusaConfig, read_head

V1_CONFIG = {"base_model_name_or_path": "someone/target", "medusa_num_heads": 2, "medusa_num_layers": 1}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_head(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def in_our_names(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in state.items():
        head, layer, *rest = name.removeprefix("medusa_head.").split(".")
        found[f"heads.{head}.out.weight" if int(layer) == layers else f"heads.{head}.{layer}.{rest[-1]}"] = (
            tensor
        )
    return found


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "pytorch_model.bin"])
def test_v1_heads_are_counted_in_the_file_and_not_in_the_config(tmp_path: Path, file: str):
    state = medusa_state(heads=5)
    head = read_head(write(tmp_path, V1_CONFIG, state, file))
    assert head.method == "medusa"
    assert head.config == MedusaConfig(5, 1, HIDDEN, VOCAB, VOCAB, bias=True)
    assert head.token_map is None
    assert head.findings == ("medusa_num_heads is 2, but the file has 5 heads: the tensors count",)
    assert same_tensors(head.tensors, in_our_names(state, 1))


def test_v1_heads_need_no_config(tmp_path: Path):
    head = read_head(write(tmp_path, None, medusa_state(3, 2), "medusa_lm_head.pt"))
    assert head.config == MedusaConfig(3, 2, HIDDEN, VOCAB, VOCAB)
    assert head.findings == ()


def test_heads_within_a_full_model_are_read_and_the_model_is_left(tmp_path: Path):
    state = medusa_state(heads=2, prefix="medusa_head.")
    model = {"model.embed_tokens.weight": weight(VOCAB, HIDDEN), "lm_head.weight": weight(VOCAB, HIDDEN)}
    config = {**LAYER_CONFIG, "num_hidden_layers": 32, "medusa_num_heads": 2, "medusa_num_layers": 1}
    head = read_head(write(tmp_path, config, {**state, **model}))
    assert head.config == MedusaConfig(2, 1, HIDDEN, VOCAB, VOCAB)
    assert same_tensors(head.tensors, in_our_names(state, 1))
    assert head.findings == (
        "the heads lie within a full model, which may have been trained with them: use it as target",
    )


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_the_form_of_vllm_is_read_with_its_draft_vocabulary(tmp_path: Path, prefix: str):
    state = vllm_medusa_state()
    prefixed = {prefix + name: tensor for name, tensor in state.items()}
    head = read_head(write(tmp_path, vllm_medusa_config(), prefixed))
    assert head.config == MedusaConfig(3, 2, HIDDEN, VOCAB, DRAFT_VOCAB, bias=False)
    assert head.findings == ()
    assert head.token_map is not None
    assert head.token_map.tolist() == DRAFT_IDS
    assert torch.equal(head.tensors["heads.2.1.weight"], state["blocks.2.layers.1.weight"])
    assert torch.equal(head.tensors["heads.1.out.weight"], state["lm_heads.1.weight"])
    assert len(head.tensors) == 9


def test_output_matrices_of_all_rows_are_cut_to_the_draft_vocabulary(tmp_path: Path):
    state = vllm_medusa_state(rows=VOCAB)
    head = read_head(write(tmp_path, vllm_medusa_config(), state))
    assert torch.equal(head.tensors["heads.0.out.weight"], state["lm_heads.0.weight"][DRAFT_IDS])
    assert head.findings == ("the output matrices have all 40 rows: the 12 of token_map are kept",)


@pytest.mark.parametrize("stored", ["lm_heads.0.weight", "lm_head.weight"])
def test_one_output_matrix_serves_all_heads(tmp_path: Path, stored: str):
    state = vllm_medusa_state()
    matrix = state["lm_heads.0.weight"]
    state = {name: tensor for name, tensor in state.items() if not name.startswith("lm_heads")}
    head = read_head(write(tmp_path, vllm_medusa_config(original_lm_head=True), {**state, stored: matrix}))
    for index in range(3):
        assert torch.equal(head.tensors[f"heads.{index}.out.weight"], matrix)
    assert len({head.tensors[f"heads.{index}.out.weight"].data_ptr() for index in range(3)}) == 1


def test_biases_and_counts_that_the_config_denies_are_reported(tmp_path: Path):
    state = vllm_medusa_state()
    state |= {f"blocks.{i}.layers.{j}.bias": weight(HIDDEN) for i in range(3) for j in range(2)}
    head = read_head(
        write(tmp_path, vllm_medusa_config(num_heads=5, num_hidden_layers=1, hidden_size=9), state)
    )
    assert isinstance(head.config, MedusaConfig)
    assert (head.config.heads, head.config.layers, head.config.bias) == (3, 2, True)
    assert head.findings == (
        "num_heads is 5, but the file has 3 heads: the tensors count",
        "num_hidden_layers is 1, but the file has 2 layers: the tensors count",
        "hidden_size is 9, but the output matrices read 8 values: the tensors count",
        "medusa_fc_bias is false, but biases are stored: the tensors count",
    )


def test_a_map_without_a_truncated_vocabulary_is_left_out(tmp_path: Path):
    config = vllm_medusa_config(truncated_vocab_size=None)
    head = read_head(write(tmp_path, config, vllm_medusa_state(rows=VOCAB)))
    assert head.config == MedusaConfig(3, 2, HIDDEN, VOCAB, VOCAB, bias=False)
    assert head.token_map is None
    assert head.findings == ("token_map is left out: truncated_vocab_size is the whole vocabulary of 40",)


def without(state: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if name not in names}


@pytest.mark.parametrize(
    ("config", "state", "said"),
    [
        (V1_CONFIG, without(medusa_state(), "2.0.linear.bias"), "tensor 'heads.2.0.bias' is missing"),
        (V1_CONFIG, without(medusa_state(), "3.1.weight"), "tensor 'heads.3.out.weight' is missing"),
        (V1_CONFIG, {**medusa_state(), "1.0.linear.weight": weight(8, 7)}, "'1.0.linear.weight' has shape [8, 7]"),
        (V1_CONFIG, {**medusa_state(), "4.1.weight": weight(41, 8)}, "'4.1.weight' has shape [41, 8]"),
        (V1_CONFIG, {**medusa_state(), "extra": weight(1)}, "tensor 'extra' (1 in all) is no part of Medusa heads"),
        ({"medusa_num_heads": "5"}, medusa_state(), "medusa_num_heads must be a whole number above 0, not '5'"),
        (vllm_medusa_config(), without(vllm_medusa_state(), "token_map"), "12 of 40, but tensor 'token_map' is"),
        (vllm_medusa_config(truncated_vocab_size=13), vllm_medusa_state(), "12 rows, but truncated_vocab_size is 13"),
        (vllm_medusa_config(), {**vllm_medusa_state(), "token_map": torch.arange(29, 41)}, "id 11 to target id 40"),
        (vllm_medusa_config(), without(vllm_medusa_state(), "lm_heads.2.weight"), "'heads.2.out.weight' is missing"),
        (vllm_medusa_config(original_lm_head="no"), vllm_medusa_state(), "original_lm_head must be true or false"),
    ],
)  # fmt: skip
def test_heads_that_do_not_fit_are_named_in_one_line(
    tmp_path: Path, config: dict[str, Any], state: dict[str, torch.Tensor], said: str
):
    assert said in refusal(write(tmp_path, config, state))


def test_reading_is_one_function_for_both_kinds(tmp_path: Path):
    head = read_head(str(write(tmp_path, V1_CONFIG, medusa_state())))
    assert isinstance(head, Head)
    assert head.name == str(tmp_path)
