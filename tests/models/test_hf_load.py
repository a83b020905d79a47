"""Loading transformers models from folders and GGUF files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hf_models import PROMPT, TREE, context, drafted, model, plain, score

import outrider
from outrider.core.protocols import Chunk
from outrider.core.tree import TokenTree
from outrider.errors import ModelLoadError
from outrider.models.arch import Arch, RopeKind, RopeScaling
from outrider.models.hf import load_hf
from outrider.models.load import ModelSource, SourceKind
from outrider.text import Tokenizer

PROMPTS = Path(__file__).parents[1] / "data" / "prompts.json"


def folder(path: Path) -> ModelSource:
    return ModelSource("tiny", SourceKind.FOLDER, path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "auto"])
def test_a_folder_loads_at_the_asked_dtype(tmp_path: Path, dtype: str) -> None:
    model("qwen2").save_pretrained(tmp_path)
    target = load_hf(folder(tmp_path), dtype=dtype)
    assert target.dtype == (torch.float32 if dtype == "float32" else torch.float64)
    expected = plain("qwen2", PROMPT)[-1]
    assert (score(target, PROMPT, TREE).logits[0] - expected).abs().max() < 1e-4


def test_broken_folders_fail_in_one_line(tmp_path: Path) -> None:
    model("qwen2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelLoadError) as error:
        load_hf(folder(tmp_path), dtype="float32")
    assert "\n" not in str(error.value)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "model_type": "t5", "is_encoder_decoder": True})
    )
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        load_hf(folder(tmp_path), dtype="float32")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_an_architecture_becomes_the_configuration_it_was_read_from(family: str) -> None:
    from outrider.models.hf_load import config_of

    arch = Arch.from_config({**model(family).config.to_dict(), "rope_theta": 5e4})
    back = Arch.from_config(config_of(arch).to_dict())
    assert dataclasses.asdict(back) == dataclasses.asdict(arch)


def test_linear_scaling_and_biases_of_queries_alone_reach_the_configuration() -> None:
    from outrider.models.hf_load import config_of

    arch = dataclasses.replace(
        Arch.from_config(model("llama").config.to_dict()), qkv_bias=True, output_bias=False,
        rope_scaling=RopeScaling(RopeKind.LINEAR, 4.0),
    )  # fmt: skip
    made = config_of(arch)
    assert made.attention_bias is True, "the bias of the output is then missed when weights are loaded"
    back = Arch.from_config(made.to_dict())
    assert (back.rope_scaling, back.rope_theta) == (arch.rope_scaling, arch.rope_theta)


def distinct_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """64 texts, no two alike: ours, then questions of Spec-Bench where its folder is given, else our own modules."""
    chats = [prompt["messages"] for prompt in json.loads(PROMPTS.read_text())]
    folder = os.environ.get("OUTRIDER_PROMPTS")
    if folder:
        lines = (Path(folder) / "spec_bench.jsonl").read_text().splitlines()
        turns = [json.loads(line)["turns"][0] for line in lines[:: len(lines) // (64 - len(chats))]]
        chats += [[{"role": "user", "content": turn}] for turn in turns]
        prompts = [tokenizer.chat(messages).token_ids for messages in chats]
    else:
        modules = sorted(Path(outrider.__file__).parent.rglob("[a-z]*.py"))
        prompts = [tokenizer.chat(messages).token_ids for messages in chats]
        prompts += [tokenizer.encode(path.read_text()) for path in modules]
    cut = dict.fromkeys(tuple(tokens[:72]) for tokens in prompts)
    return [list(tokens) for tokens in cut][:64]


@pytest.mark.model
def test_smollm2_logits_equal_the_torch_target_on_64_prompts(
    record_property: Callable[[str, object], None],
) -> None:
    from outrider.models.load import load, resolve
    from outrider.text import load_tokenizer

    source = resolve("smollm2-135m")
    targets = [load(source, target=kind, dtype="float32") for kind in ("hf", "torch")]
    prompts = distinct_prompts(load_tokenizer(source))
    assert len(prompts) == 64
    worst = 0.0
    for sequence_id, tokens in enumerate(prompts):
        half = len(tokens) // 2
        rows = []
        for target in targets:
            target.extend([Chunk(sequence_id, tokens[:half])])
            chain = drafted(TokenTree.chain(tokens[half + 1 :]))
            rows.append(target.score([context(tokens[: half + 1], sequence_id)], [chain])[0].logits)
            target.release(sequence_id)
        worst = max(worst, float((rows[0] - rows[1]).abs().max()))
    record_property("largest_difference", worst)
    print(f"64 prompts, {sum(map(len, prompts))} tokens: logits differ by at most {worst:.3g}")
    assert worst < 2e-4


@pytest.mark.parametrize("missing", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_a_folder_that_lacks_a_weight_is_refused_by_its_name(tmp_path: Path, missing: str) -> None:
    from safetensors.torch import load_file, save_file

    model("qwen2").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[missing]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=missing):
        load_hf(folder(tmp_path), dtype="float32")
