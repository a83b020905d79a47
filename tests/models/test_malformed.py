"""Model files whose content is not what it must be: one line that names the file, never another error."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from outrider.errors import ModelLoadError, ParameterError
from outrider.models.load import ModelSource, SourceKind, load_arch
from outrider.text import load_tokenizer
from outrider.text.chat import ChatTemplate

CONFIG = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "hidden_act": "silu"}  # fmt: skip


def source_of(folder: Path, kind: SourceKind = SourceKind.FOLDER) -> ModelSource:
    return ModelSource("tiny", kind, folder)


@pytest.mark.parametrize(
    "change", [{"layer_types": 3, "sliding_window": 8}, {"quantization_config": "x"}, {"rope_scaling": 5}]
)
def test_a_config_with_a_value_of_another_kind(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ModelLoadError) as error:
        load_arch(source_of(tmp_path))
    assert "\n" not in str(error.value)


def test_a_config_nested_beyond_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ModelLoadError, match="is not JSON"):
        load_arch(source_of(tmp_path))


@pytest.mark.parametrize(
    ("key", "value"),
    [("tokens", 5), ("merges", 7), ("token_type", 3), ("bos_token_id", 10**6), ("eos_token_id", "x")],
)
def test_a_gguf_tokenizer_with_a_value_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fields = {"model": "gpt2", "pre": "smollm", "tokens": ["a", "b", "ab"], "merges": ["a b"],
              "token_type": [1, 1, 1], "bos_token_id": 0, "eos_token_id": 1, "add_bos_token": True}  # fmt: skip
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    for name, given in {**fields, key: value}.items():
        full = f"tokenizer.ggml.{name}"
        if isinstance(given, list):
            writer.add_array(full, given)
        elif isinstance(given, bool):
            writer.add_bool(full, given)
        elif isinstance(given, int):
            writer.add_uint32(full, given)
        else:
            writer.add_string(full, str(given))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError) as error:
        load_tokenizer(source_of(tmp_path / "m.gguf", SourceKind.GGUF))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "template", ["{{ 1/0 }}", "{{ 10.0**1000 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"]
)
def test_a_template_that_fails_refuses_the_messages(template: str) -> None:
    with pytest.raises(ParameterError, match="refuses the messages"):
        ChatTemplate(template, {}).render([{"role": "user", "content": "hi"}])
