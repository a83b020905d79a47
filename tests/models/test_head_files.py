"""Where a head's files are found and how they are read: shards, pickles, damage, names, the hub's cache."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from head_folders import (
    EAGLE1_CONFIG,
    EAGLE3_CONFIG,
    SPECULATORS_CONFIG,
    eagle1_state,
    eagle3_state,
    medusa_state,
    speculators_state,
    write,
    write_shards,
)  # fmt: skip

from outrider.errors import ModelLoadError
from outrider.models.head_formats.read import is_head
from outrider.models.heads import read_head

HUB_ID, COMMIT = "someone/a-head", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


def refusal(model: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_head(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_are_read_by_their_index(tmp_path: Path, suffix: str):
    whole = read_head(write(tmp_path / "whole", EAGLE3_CONFIG, state := eagle3_state()))
    folder = write_shards(tmp_path / "shards", EAGLE3_CONFIG, state, suffix)
    head = read_head(folder)
    assert head.config == whole.config
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in whole.tensors.items())
    shard = sorted(folder.glob(f"*-00002.{suffix}"))[0]
    shard.unlink()
    assert f"{shard.name}: is missing though the index names it" in refusal(folder)
    (index,) = folder.glob("*.index.json")
    index.write_text('{"weight_map": {"fc.weight": "../elsewhere.safetensors"}}')
    assert "has no weight_map of file names" in refusal(folder)


def test_what_a_trainer_leaves_beside_the_weights_is_not_read(tmp_path: Path):
    write(tmp_path, EAGLE1_CONFIG, eagle1_state(), "pytorch_model.bin")
    for name in ("optimizer.pt", "training_args.bin", "scheduler.pt"):
        (tmp_path / name).write_bytes(b"never opened")
    assert read_head(tmp_path).method == "eagle"


def test_safetensors_come_before_pickles(tmp_path: Path):
    write(tmp_path, EAGLE1_CONFIG, eagle1_state())
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert read_head(tmp_path).method == "eagle"


class Trap:
    """An object whose pickle would write a file when it is read without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_no_code_of_a_pickle_is_run(tmp_path: Path):
    sprung = tmp_path / "sprung"
    write(tmp_path / "head", EAGLE1_CONFIG, {**eagle1_state(), "trap": Trap(sprung)}, "pytorch_model.bin")
    assert "is damaged or holds more than tensors, which is never run" in refusal(tmp_path / "head")
    (tmp_path / "head" / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    assert "which is never run" in refusal(tmp_path / "head")
    assert not sprung.exists()


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "medusa_lm_head.pt"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.95])
def test_a_truncated_file_is_named(tmp_path: Path, file: str, share: float):
    write(tmp_path, EAGLE1_CONFIG, eagle1_state(), file)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(len(whole) * share)])
    assert refusal(tmp_path).startswith(f"{tmp_path / file}: is ")


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "old.bin"])
def test_damage_anywhere_in_a_file_gives_a_head_or_one_line(tmp_path: Path, file: str):
    write(tmp_path, EAGLE1_CONFIG, state := eagle1_state(), file)
    if file == "old.bin":
        torch.save(state, tmp_path / file, _use_new_zipfile_serialization=False)
    whole, random = (tmp_path / file).read_bytes(), Random(3)
    said = []
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[random.randrange(min(len(whole), 2500))] = random.randrange(256)
        (tmp_path / file).write_bytes(damaged)
        try:
            read_head(tmp_path)
        except ModelLoadError as error:
            said.append(str(error))
    assert len(said) > 10
    assert not [line for line in said if "\n" in line]


def test_a_pickle_of_something_else_is_named(tmp_path: Path):
    write(tmp_path, EAGLE1_CONFIG, {}, "pytorch_model.bin")
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    assert "must hold a table of named tensors, not list: save its state_dict alone" in refusal(tmp_path)
    torch.save({"epoch": 3, "model": {"a": torch.zeros(2)}}, tmp_path / "pytorch_model.bin")
    assert "save its state_dict alone" in refusal(tmp_path)


def test_a_config_that_is_none_is_named(tmp_path: Path):
    write(tmp_path, EAGLE3_CONFIG, eagle3_state())
    for content, said in (("[1]", "must hold a JSON object"), ("{", "is not JSON"), ('"eagle"', "not str")):
        (tmp_path / "config.json").write_text(content)
        assert said in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "config.json: is missing" in refusal(tmp_path)


def test_folders_without_a_head_are_named(tmp_path: Path):
    assert "holds no .safetensors, .bin or .pt" in refusal(tmp_path)
    write(tmp_path, EAGLE1_CONFIG, {"model.norm.weight": torch.ones(2)})
    assert "holds no draft head: neither fc.weight nor Medusa blocks among its 1 tensors" in refusal(tmp_path)
    write(tmp_path / "two", EAGLE1_CONFIG, eagle1_state(), "a.safetensors")
    write(tmp_path / "two", EAGLE1_CONFIG, eagle1_state(), "b.safetensors")
    assert "holds 2 files of weights and no index: keep one, such as 'a.safetensors'" in refusal(
        tmp_path / "two"
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("", "is named by a folder or a hub id, not by ''"),
        (7, "is named by a folder or a hub id, not by 7"),
        ("./absent", "./absent: no such folder"),
        ("nothing-like-it", "no such folder: give the folder of a draft head or a hub id (owner/name)"),
        ("a b/c d", "no hub id"),
        (__file__, "is a file: give the folder of the draft head"),
        (Path("owner/name"), "no such folder"),
    ],
)
def test_a_name_that_is_no_head_is_told_in_one_line(model: Any, said: str, hub_cache: Path):
    assert said in refusal(model)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one head, as huggingface_hub lays it out; nothing may be fetched."""
    repository = tmp_path / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    write(repository / "snapshots" / COMMIT, None, medusa_state(), "medusa_lm_head.pt")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_hub_id_is_read_from_the_cache_though_it_looks_like_no_model(hub_cache: Path):
    head = read_head(HUB_ID)
    assert (head.method, head.name) == ("medusa", HUB_ID)
    assert "'someone/another' is not in the local hub cache and the hub cannot be reached" in refusal(
        "someone/another"
    )


def test_heads_are_told_from_models(tmp_path: Path):
    assert is_head(write(tmp_path / "eagle", EAGLE1_CONFIG, eagle1_state()))
    assert is_head(write(tmp_path / "speculators", SPECULATORS_CONFIG, speculators_state()))
    assert is_head(write(tmp_path / "medusa", None, medusa_state(), "medusa_lm_head.pt"))
    assert not is_head(write(tmp_path / "model", EAGLE1_CONFIG, {"model.norm.weight": torch.ones(2)}))
    assert not is_head(tmp_path / "absent")
