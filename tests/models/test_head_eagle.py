"""EAGLE heads as the public projects store them: what is read, and what shapes, keys and flags reveal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from head_folders import (
    DRAFT_IDS,
    DRAFT_VOCAB,
    EAGLE1_CONFIG,
    EAGLE3_CONFIG,
    HIDDEN,
    SPECULATORS_CONFIG,
    VOCAB,
    eagle1_state,
    eagle3_state,
    layer_state,
    maps,
    same_tensors,
    speculators_state,
    weight,
    whole_vocabulary,
    write,
)  # fmt: skip

from outrider.errors import ModelLoadError
from outrider.models.heads import EagleConfig, Head, read_head


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


def eagle3(folder: Path, **changes: Any) -> Head:
    return read_head(write(folder, {**EAGLE3_CONFIG, **changes}, eagle3_state()))


def config_of(head: Head) -> EagleConfig:
    assert isinstance(head.config, EagleConfig)
    return head.config


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_head(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_eagle_1_head_is_read_with_its_own_names(tmp_path: Path):
    state = eagle1_state()
    head = read_head(write(tmp_path, EAGLE1_CONFIG, state))
    config = config_of(head)
    assert head.method == "eagle"
    assert (config.is_eagle3, config.fc_bias, config.draft_vocab, config.taps) == (False, True, VOCAB, None)
    assert (config.arch.hidden, config.arch.rope_theta, config.arch.qkv_bias) == (HIDDEN, 500000.0, False)
    assert head.token_map is None
    assert head.findings == ()
    assert same_tensors(head.tensors, state)


def test_an_eagle_1_head_without_biases_says_that_the_tensors_count(tmp_path: Path):
    state = eagle1_state()
    del state["fc.bias"], state["embed_tokens.weight"]
    head = read_head(write(tmp_path, {**EAGLE1_CONFIG, "bias": True}, state))
    assert not config_of(head).fc_bias
    assert head.findings == (
        "embed_tokens.weight is not stored: the target's embeddings are read",
        "bias is true, but fc.bias is not stored: the tensors count",
    )
    assert not read_head(write(tmp_path, {**EAGLE1_CONFIG, "bias": False}, state)).findings[1:]
    silent = read_head(write(tmp_path, EAGLE1_CONFIG, state))
    assert "bias is absent, which means true, but fc.bias is not stored: the tensors count" in silent.findings


def test_a_bias_of_the_fusing_linear_is_told_by_its_tensor_in_eagle_3_too(tmp_path: Path):
    head = read_head(write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), "fc.bias": weight(HIDDEN)}))
    assert config_of(head).fc_bias
    assert "bias is absent, which means false, but fc.bias is stored: the tensors count" in head.findings


def test_the_output_matrix_stored_with_an_eagle_1_head_is_left_out(tmp_path: Path):
    head = read_head(
        write(tmp_path, EAGLE1_CONFIG, {**eagle1_state(), "lm_head.weight": weight(VOCAB, HIDDEN)})
    )
    assert "lm_head.weight" not in head.tensors
    assert head.findings == (
        "lm_head.weight is stored, but a head of this kind speaks with the target's: left out",
    )


@pytest.mark.parametrize("prefix", ["midlayer", "layers.0", "model.midlayer", "model.layers.0"])
def test_an_eagle_3_head_is_read_under_every_prefix(tmp_path: Path, prefix: str):
    state = eagle3_state(prefix)
    head = read_head(write(tmp_path, EAGLE3_CONFIG, state))
    config = config_of(head)
    assert head.method == "eagle3"
    assert (config.is_eagle3, config.draft_vocab, config.target_hidden, config.taps) == (
        True,
        12,
        HIDDEN,
        None,
    )
    assert not any((config.fc_norm, config.norm_before_fc, config.norm_before_residual, config.norm_output))
    assert head.token_map is not None
    assert head.token_map.dtype == torch.int64
    assert head.token_map.tolist() == DRAFT_IDS
    expected = {name.replace(prefix, "layers.0"): tensor for name, tensor in state.items()}
    assert same_tensors(head.tensors, {n: t for n, t in expected.items() if n not in ("d2t", "t2d")})


def test_a_speculators_head_is_read_by_its_sections(tmp_path: Path):
    state = speculators_state()
    head = read_head(write(tmp_path, SPECULATORS_CONFIG, state))
    config = config_of(head)
    assert (config.taps, config.norm_before_residual, config.draft_vocab) == ((1, 3, 5), True, DRAFT_VOCAB)
    assert (config.arch.rope_theta, config.arch.rms_eps) == (500000.0, 1e-5)
    assert same_tensors(head.tensors, {n: t for n, t in state.items() if n not in ("d2t", "t2d")})
    assert head.token_map is not None
    assert head.token_map.tolist() == DRAFT_IDS


def test_a_speculators_config_silent_on_the_residual_is_read_as_vllm_does(tmp_path: Path):
    silent = {key: value for key, value in SPECULATORS_CONFIG.items() if key != "norm_before_residual"}
    head = read_head(write(tmp_path, silent, speculators_state()))
    assert config_of(head).norm_before_residual
    assert "norm_before_residual is not in the config: taken as true" in head.findings[0]


@pytest.mark.parametrize("kind", ["peagle", "dflash", "dspark", "mtp"])
def test_other_speculators_are_known_but_not_supported(tmp_path: Path, kind: str):
    write(tmp_path, {**SPECULATORS_CONFIG, "speculators_model_type": kind}, speculators_state())
    assert f"speculators_model_type {kind!r} is a known kind of head that is not supported" in refusal(
        tmp_path
    )


def test_a_misspelt_speculators_type_is_told_the_nearest(tmp_path: Path):
    write(tmp_path, {**SPECULATORS_CONFIG, "speculators_model_type": "eagel3"}, speculators_state())
    assert "'eagel3' is unknown; did you mean 'eagle3'?" in refusal(tmp_path)


def test_a_head_of_z_lab_is_known_but_not_supported(tmp_path: Path):
    write(tmp_path, {"architectures": ["DFlashDraftModel"]}, {"fc.weight": weight(2, 2)})
    assert "'DFlashDraftModel' is a known kind of head that is not supported" in refusal(tmp_path)


def test_layer_ids_at_the_top_are_entered_and_those_in_eagle_config_are_left(tmp_path: Path):
    key = "eagle_aux_hidden_state_layer_ids"
    top = eagle3(tmp_path / "top", **{key: [2, 4, 6]})
    nested = eagle3(tmp_path / "nested", eagle_config={key: [1, 3, 5]})
    both = eagle3(tmp_path / "both", **{key: [2, 4, 6], "eagle_config": {key: [1, 3, 5]}})
    empty = eagle3(tmp_path / "empty", eagle_config={key: [], "use_aux_hidden_state": True})
    assert [config_of(head).taps for head in (top, nested, both, empty)] == [(2, 4, 6)] * 3 + [None]
    assert any("the states entering [2, 4, 6]" in line for line in nested.findings)
    assert both.findings == top.findings
    torn = eagle3(tmp_path / "torn", **{key: [2, 4, 6], "eagle_config": {key: [2, 4, 6]}})
    assert any("[2, 4, 6] counts, not [2, 4, 6] in eagle_config" in line for line in torn.findings)


def test_norms_are_told_by_their_tensors_and_flags_that_differ_are_reported(tmp_path: Path):
    per_tap = {f"fc_norm.{tap}.weight": weight(HIDDEN) for tap in range(3)}
    write(tmp_path, {**EAGLE3_CONFIG, "norm_output": True}, {**eagle3_state(), **per_tap})
    head = read_head(tmp_path)
    assert (config_of(head).fc_norm, config_of(head).norm_before_fc, config_of(head).norm_output) == (
        True, False, True,
    )  # fmt: skip
    assert "fc_norm is absent, but its norm is stored: taken as true" in head.findings
    write(tmp_path, {**EAGLE3_CONFIG, "fc_norm": True}, eagle3_state())
    assert "fc_norm is true, but tensor 'fc_norm.0.weight' is missing" in refusal(tmp_path)
    whole = {"input_norm.weight": weight(3 * HIDDEN)}
    write(tmp_path, {**EAGLE3_CONFIG, "norm_before_fc": True}, {**eagle3_state(), **whole})
    assert config_of(read_head(tmp_path)).norm_before_fc
    write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), **whole, **per_tap})
    assert "both stored, and a head has one of them" in refusal(tmp_path)


def test_sizes_that_the_config_leaves_out_are_read_off_the_tensors(tmp_path: Path):
    silent = {
        k: v for k, v in EAGLE3_CONFIG.items() if k not in ("draft_vocab_size", "head_dim", "model_type")
    }
    head = read_head(write(tmp_path, silent, eagle3_state(target_hidden=6)))
    config = config_of(head)
    assert (config.draft_vocab, config.arch.head_dim, config.target_hidden) == (12, 4, 6)
    assert "fc.weight says that the target's hidden size is 6; the head's own is 8" in head.findings
    assert "draft_vocab_size is not in the config: lm_head.weight has 12 rows" in head.findings
    stated = read_head(
        write(tmp_path, {**EAGLE3_CONFIG, "target_hidden_size": 6}, eagle3_state(target_hidden=6))
    )
    assert (
        "target_hidden_size says that the target's hidden size is 6; the head's own is 8" in stated.findings
    )


def test_a_draft_vocabulary_size_other_than_the_rows_is_reported(tmp_path: Path):
    head = eagle3(tmp_path, draft_vocab_size=32000)
    assert config_of(head).draft_vocab == 12
    assert "draft_vocab_size is 32000, but lm_head.weight has 12 rows: the tensors count" in head.findings


def test_the_position_habit_of_published_heads_is_noted(tmp_path: Path):
    assert any("max_position_embeddings 2048 is a habit" in line for line in eagle3(tmp_path / "a").findings)
    assert not any("2048" in line for line in eagle3(tmp_path / "b", max_position_embeddings=8192).findings)


def test_biases_and_norms_of_the_layer_are_told_by_their_tensors(tmp_path: Path):
    state = eagle3_state()
    for part, size in (("q", 8), ("k", 4), ("v", 4), ("o", HIDDEN)):
        state[f"midlayer.self_attn.{part}_proj.bias"] = weight(size)
    head = read_head(write(tmp_path / "biased", EAGLE3_CONFIG, state))
    assert (config_of(head).arch.qkv_bias, config_of(head).arch.output_bias) == (True, True)
    assert any(line.startswith("the config has no qkv_bias") for line in head.findings)
    state = eagle3_state()
    state.update({f"midlayer.self_attn.{part}_norm.weight": weight(4) for part in "qk"})
    head = read_head(write(tmp_path / "normed", {**EAGLE3_CONFIG, "model_type": "qwen3"}, state))
    assert (config_of(head).arch.qk_norm, config_of(head).arch.family) == (True, "qwen3")
    plain = eagle3(tmp_path / "plain", model_type="qwen3")
    assert (config_of(plain).arch.qk_norm, config_of(plain).arch.family) == (False, "llama")
    assert any(line.startswith("the config means qk_norm") for line in plain.findings)


def test_without_an_output_matrix_the_head_speaks_with_its_embedding_or_the_target(tmp_path: Path):
    state = whole_vocabulary(speculators_state())
    del state["lm_head.weight"]
    config = {**EAGLE3_CONFIG, "draft_vocab_size": VOCAB}
    head = read_head(write(tmp_path, {**config, "tie_word_embeddings": True}, state))
    assert torch.equal(head.tensors["lm_head.weight"], state["embed_tokens.weight"])
    assert (head.token_map, config_of(head).draft_vocab) == (None, VOCAB)
    for draft_vocab in (VOCAB, None):
        head = read_head(write(tmp_path, {**config, "draft_vocab_size": draft_vocab}, state))
        assert "lm_head.weight" not in head.tensors
        assert "lm_head.weight is not stored: the head speaks with the target's" in head.findings
        assert config_of(head).draft_vocab == VOCAB
    write(tmp_path, {**config, "draft_vocab_size": 12}, state)
    assert "tensor 'lm_head.weight' is missing" in refusal(tmp_path)


def test_half_a_vocabulary_map_gives_the_whole(tmp_path: Path):
    for missing in ("d2t", "t2d"):
        state = eagle3_state()
        del state[missing]
        head = read_head(write(tmp_path, EAGLE3_CONFIG, state))
        assert head.token_map is not None
        assert head.token_map.tolist() == DRAFT_IDS
        assert any(line.startswith(f"{missing} is not stored") for line in head.findings)


def test_a_map_that_changes_nothing_is_none(tmp_path: Path):
    state = {**eagle3_state(), "lm_head.weight": weight(VOCAB, HIDDEN)}
    state |= {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB, dtype=torch.bool)}
    head = read_head(write(tmp_path, {**EAGLE3_CONFIG, "draft_vocab_size": VOCAB}, state))
    assert (head.token_map, config_of(head).draft_vocab) == (None, VOCAB)


def changed(name: str, at: int, value: int) -> dict[str, torch.Tensor]:
    tensor = maps()[name].clone()
    tensor[at] = value
    return {name: tensor}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("t2d", 2, True), "contradict each other: only t2d marks target id 2"),
        (changed("t2d", 7, False), "contradict each other: only d2t reaches target id 7"),
        (changed("d2t", 11, 40), "d2t sends draft id 11 to target id 51, beyond the vocabulary of 40"),
        (changed("d2t", 0, -1), "d2t sends draft id 0 to target id -1"),
        (changed("d2t", 2, -1), "d2t sends draft ids 1 and 2 both to target id 1"),
        ({"d2t": maps()["d2t"][:5]}, "d2t is for 5 draft ids, but the output matrix has 12 rows"),
        ({"t2d": maps()["t2d"][:39]}, "t2d must hold 40 truth values (vocab_size), not 39"),
        ({"t2d": maps()["t2d"].to(torch.uint8) * 2}, "t2d must hold 40 truth values (vocab_size), not 40 from 0 to 2"),
        ({"d2t": maps()["d2t"].float()}, "tensor 'd2t' is float32 [12], not a list of whole numbers"),
    ],
)  # fmt: skip
def test_maps_that_contradict_are_refused(tmp_path: Path, change: dict[str, torch.Tensor], said: str):
    write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), **change})
    assert said in refusal(tmp_path)


def test_a_missing_map_is_refused_where_the_vocabularies_differ(tmp_path: Path):
    state = eagle3_state()
    del state["d2t"], state["t2d"]
    write(tmp_path, EAGLE3_CONFIG, state)
    assert "lm_head.weight has 12 rows and vocab_size is 40, but there is no 'd2t'" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "8"}, "hidden_size must be a whole number above 0, not '8'"),
        ({"hidden_size": 16}, "reads 16 values; with hidden_size 16 an EAGLE-1 head reads 16"),
        ({"hidden_size": 6}, "reads 16 values; with hidden_size 6 an EAGLE-1 head reads 6, an EAGLE-3 head 12"),
        ({"intermediate_size": 24}, "'midlayer.mlp.gate_proj.weight' has shape [16, 8], but"),
        ({"num_hidden_layers": 2}, "num_hidden_layers 2: heads of one decoder layer are supported"),
        ({"model_type": "gpt2"}, "model_type 'gpt2': the layer of a head must be one of llama"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "cannot be computed: rope scaling 'yarn' is not supported"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters has settings for 'full_attention' apart"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size must be a whole number above 0, not 'many'"),
        ({"draft_vocab_size": True}, "draft_vocab_size must be a whole number above 0, not True"),
        ({"norm_output": 1}, "norm_output must be true or false, not 1"),
        ({"target_hidden_size": 9}, "fc.weight reads 24 values, but 3 tapped layers give 27 (target_hidden_size 9)"),
        ({"eagle_config": [1]}, "eagle_config must be a table of settings, not [1]"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, "must be a list of distinct layer numbers from 0"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, -3]}, "must be a list of distinct layer numbers from 0"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5]}, "24 values, but 5 tapped layers give a multiple"),
        ({"num_attention_heads": None}, "num_attention_heads must be a whole number above 0, not None"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_fit_is_named_in_one_line(tmp_path: Path, change: dict[str, Any], said: str):
    write(tmp_path, {**EAGLE3_CONFIG, **change}, eagle3_state())
    if change == {
        "hidden_size": 16
    }:  # then the same tensors would be those of an EAGLE-1 head of twice the width
        said = "has shape [8, 8], but config and other tensors say [16, 8]"
    assert said in refusal(tmp_path)


@pytest.mark.parametrize("name", sorted(set(eagle3_state()) - {"d2t", "t2d", "fc.weight"}))
def test_every_missing_tensor_is_named(tmp_path: Path, name: str):
    state = eagle3_state()
    del state[name]
    write(tmp_path, EAGLE3_CONFIG, state)
    assert f"tensor '{name.replace('midlayer', 'layers.0')}' is missing" in refusal(tmp_path)


def test_left_over_and_doubled_tensors_are_named(tmp_path: Path):
    write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), "midlayer.lora.weight": weight(2)})
    assert "tensor 'midlayer.lora.weight' (1 in all) is no part of an EAGLE-3 head" in refusal(tmp_path)
    write(tmp_path, EAGLE1_CONFIG, {**eagle1_state(), "layers.0.input_layernorm.weight": weight(HIDDEN)})
    assert "tensor 'layers.0.input_layernorm.weight' (1 in all) is no part of an EAGLE-1 head" in refusal(
        tmp_path
    )
    write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), **layer_state("layers.0", 16)})
    assert "are the same part: keep one of them" in refusal(tmp_path)
    buffer = {"midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    read_head(write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), **buffer}))


def test_weights_that_are_no_floats_are_refused(tmp_path: Path):
    write(tmp_path, EAGLE3_CONFIG, {**eagle3_state(), "fc.weight": torch.zeros(HIDDEN, 24, dtype=torch.int8)})
    assert "tensor 'fc.weight' is int8, which is not read" in refusal(tmp_path)


@pytest.mark.parametrize("odd", [None, True, -1, 0, 3, 1.5, float("nan"), "8", [], [1], {}, {"a": 1}])
def test_any_value_under_any_key_gives_a_head_or_one_line(tmp_path: Path, odd: Any):
    said = []
    for config, state in ((EAGLE3_CONFIG, eagle3_state()), (SPECULATORS_CONFIG, speculators_state())):
        write(tmp_path, config, state)
        for key in (*config, "rope_scaling", "rope_parameters", "eagle_config", "sliding_window", "fc_norm"):
            (tmp_path / "config.json").write_text(json.dumps({**config, key: odd}))
            try:
                read_head(tmp_path)
            except ModelLoadError as error:
                said.append(str(error))
    assert not [line for line in said if "\n" in line or not line.startswith(str(tmp_path))]
