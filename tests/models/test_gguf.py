"""The GGUF reader against files written by package `gguf` from known weights, and against broken ones."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from outrider.errors import ModelLoadError
from outrider.models.gguf import GGUFFile, hf_name
from outrider.models.load import resolve
from outrider.models.quants import dequantised
from outrider.models.torch_decoder import TorchDecoder

SIZES = {
    "vocab_size": 67,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
Quant = gguf.GGMLQuantizationType
GGUF_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def tiny(kind: str):
    torch.manual_seed(3)
    model = (
        LlamaForCausalLM(LlamaConfig(**SIZES)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**SIZES))
    )
    return model.eval()


def gguf_name(name: str) -> str:
    head = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}  # fmt: skip
    if name in head:
        return head[name]
    _, _, layer, part = name.split(".", 3)
    part, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_PARTS[part]}.{kind}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to queries and keys: row j of the first half beside row j of the second."""
    rows = []
    size = len(weight) // heads
    for head in range(heads):
        for j in range(size // 2):
            rows += [weight[head * size + j], weight[head * size + size // 2 + j]]
    return np.stack(rows)


def write_gguf(path: Path, model, *, quant: Quant = Quant.F32) -> Path:
    kind, config = model.config.model_type, model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i} é" for i in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    for name, tensor in model.state_dict().items():
        weight = tensor.numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            weight = interleaved(
                weight, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            )
        if weight.ndim == 1 or quant == Quant.F32:
            writer.add_tensor(gguf_name(name), weight)
        else:
            writer.add_tensor(gguf_name(name), gguf.quantize(weight, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_weights_come_back_under_their_own_names_and_order(tmp_path: Path, kind: str):
    model = tiny(kind)
    state = GGUFFile(write_gguf(tmp_path / "m.gguf", model)).state()
    assert state.keys() == model.state_dict().keys()
    for name, expected in model.state_dict().items():
        assert torch.equal(state[name], expected), name


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_model_read_from_gguf_computes_what_transformers_does(tmp_path: Path, kind: str):
    from outrider.core.records import Context, Draft

    model = tiny(kind)
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", model))
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    target = TorchDecoder(file.arch(), file.state())
    got = target.score([Context.of(tokens[:1])], [Draft.chain(tokens[1:])])[0].logits
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("quant", [Quant.Q8_0, Quant.Q4_1, Quant.Q4_0, Quant.F16, Quant.BF16])
def test_every_storage_type_is_dequantised_as_package_gguf_does(quant: Quant):
    weight = np.random.default_rng(0).normal(size=(6, 128)).astype(np.float32)
    raw = gguf.quantize(weight, quant)
    got = dequantised(raw.view(np.uint8).reshape(6, -1), quant)
    assert torch.equal(got, torch.from_numpy(gguf.dequantize(raw, quant)))


@pytest.mark.parametrize(("quant", "step"), [(Quant.Q8_0, 0.01), (Quant.Q4_1, 0.1)])
def test_quantised_files_are_near_the_original(tmp_path: Path, quant: Quant, step: float):
    model = tiny("llama")
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", model, quant=quant))
    assert file.quantisation == quant.name
    for name, weight in file.state().items():
        assert (weight - model.state_dict()[name]).abs().max() < step, name


def test_metadata_holds_scalars_and_arrays(tmp_path: Path):
    metadata = GGUFFile(write_gguf(tmp_path / "m.gguf", tiny("llama"))).metadata
    assert metadata["llama.block_count"] == 2
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    assert metadata["tokenizer.ggml.tokens"][:2] == ["token 0 é", "token 1 é"]
    assert metadata["tokenizer.ggml.token_type"] == [1] * 67


def test_an_unknown_tensor_keeps_its_name():
    assert hf_name("blk.3.ffn_gate_exps.weight") == "blk.3.ffn_gate_exps.weight"
    assert hf_name("blk.3.ffn_gate.weight") == "model.layers.3.mlp.gate_proj.weight"


def one_line_error(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        GGUFFile(path).arch()
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_file_cut_anywhere_is_refused(tmp_path: Path):
    whole = write_gguf(tmp_path / "m.gguf", tiny("llama")).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 7, 12, 24, 30, 100, 700, 1500, 3000, len(whole) // 2, len(whole) - 40):
        cut.write_bytes(whole[:length])
        assert "download the file again" in one_line_error(cut) or length == 3


def test_corrupt_headers_are_refused(tmp_path: Path):
    whole = write_gguf(tmp_path / "m.gguf", tiny("llama")).read_bytes()
    broken = tmp_path / "broken.gguf"
    for offset, patch in (
        (0, b"GGML"),
        (4, struct.pack("<I", 99)),
        (8, struct.pack("<Q", 1 << 60)),
        (16, struct.pack("<Q", 1 << 60)),
        (24, struct.pack("<Q", 1 << 62)),
    ):
        broken.write_bytes(whole[:offset] + patch + whole[offset + len(patch) :])
        one_line_error(broken)


def test_random_damage_never_ends_in_another_error(tmp_path: Path):
    whole = write_gguf(tmp_path / "m.gguf", tiny("llama")).read_bytes()
    header = whole.index(b"blk.1.ffn_norm") + 60
    random = np.random.default_rng(5)
    broken = tmp_path / "broken.gguf"
    refused = []
    for _ in range(150):
        data = bytearray(whole)
        for position in random.integers(4, header, size=3):
            data[position] = random.integers(256)
        broken.write_bytes(data)
        try:
            file = GGUFFile(broken)
            TorchDecoder(file.arch(), file.state())
        except ModelLoadError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert not any("\n" in message for message in refused)


def test_files_that_are_no_gguf_are_refused(tmp_path: Path):
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found</html>")
    assert "is not a GGUF file" in one_line_error(path)
    path.write_bytes(b"")
    assert "is empty" in one_line_error(path)
    assert "cannot be read" in one_line_error(tmp_path / "absent.gguf")


def test_a_nan_in_the_metadata_is_named(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"))
    data = path.read_bytes()
    at = data.index(b"layer_norm_rms_epsilon") + len(b"layer_norm_rms_epsilon") + 4
    path.write_bytes(data[:at] + struct.pack("<f", float("nan")) + data[at + 4 :])
    assert "attention.layer_norm_rms_epsilon must be a finite number above 0, not nan" in one_line_error(path)


@pytest.mark.model
def test_smollm2_equals_what_package_gguf_reads():
    source = resolve("smollm2-135m")
    file = GGUFFile(source.path)
    state = file.state()
    assert sum(weight.numel() for weight in state.values()) == 134_515_008
    reader = gguf.GGUFReader(source.path)
    heads = {"attn_q": 9, "attn_k": 3}
    checked = [
        tensor for tensor in reader.tensors if not tensor.name.startswith("blk.") or ".0." in tensor.name
    ]
    assert {f"blk.0.{part}.weight" for part in GGUF_PARTS.values()} < {tensor.name for tensor in checked}
    for tensor in checked:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        got, part = state[hf_name(tensor.name)].numpy(), tensor.name.split(".")[-2]
        if part in heads:  # the file holds queries and keys in the order of llama.cpp
            assert not np.array_equal(got, expected), tensor.name
            got = interleaved(got, heads[part])
        assert np.array_equal(got, expected), tensor.name
    assert file.metadata["tokenizer.ggml.pre"] == reader.fields["tokenizer.ggml.pre"].contents()
    assert file.metadata["tokenizer.ggml.merges"][-1] == reader.fields["tokenizer.ggml.merges"].contents(-1)
