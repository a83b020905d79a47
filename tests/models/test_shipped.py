"""Shipped drafts: found by what a target is, whatever it was loaded as and whatever it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from native_models import ARCH, weights

from outrider.errors import ModelLoadError
from outrider.models.shipped import PLACE, ModelIdentity, find_shipped, shipped_drafts, write_identity
from outrider.models.torch_decoder import TorchDecoder
from outrider.testing.toy import ToyTarget


def decoder(seed: int = 1, dtype: torch.dtype = torch.float32, noise: float = 0.0) -> TorchDecoder:
    state = weights(ARCH, seed)
    made = torch.Generator().manual_seed(0)
    embedding = state["model.embed_tokens.weight"]
    spread = noise * embedding.std() * torch.randn(embedding.shape, generator=made)
    return TorchDecoder(ARCH, {**state, "model.embed_tokens.weight": embedding + spread}, dtype=dtype)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    write_identity(decoder(), folder)
    (folder / "eagle3").mkdir()
    (folder / "draft_model").mkdir()
    (folder / "notes").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "loaded",
    [decoder(), decoder(dtype=torch.bfloat16), decoder(noise=0.15)],
    ids=["as it was", "bfloat16", "as coarse as 4 bits"],
)
def test_a_model_is_found_in_any_precision(place: Path, loaded: TorchDecoder) -> None:
    drafts = shipped_drafts(loaded, place)
    assert drafts == {name: place / "some-model" / name for name in ("eagle3", "draft_model")}


def test_other_numbers_or_other_sizes_are_another_model(place: Path) -> None:
    assert shipped_drafts(decoder(seed=2), place) == {}
    assert shipped_drafts(ToyTarget(5), place) == {}
    assert find_shipped(decoder(), place / "nowhere") is None


def test_sizes_are_compared_before_any_number_is_looked_at(place: Path) -> None:
    class Unread(ToyTarget):
        def token_weights(self):  # type: ignore[no-untyped-def]
            raise AssertionError("made for nothing")

    assert find_shipped(Unread(5), place) is None


def test_the_preset_of_the_precision_counts_before_the_common_one(place: Path) -> None:
    presets = {
        "default": {"method": "suffix"},
        "bfloat16": {"method": "ngram"},
        "native bfloat16": {"method": "eagle3"},
    }
    (place / "some-model" / "preset.json").write_text(json.dumps(presets))
    exact, coarse = find_shipped(decoder(), place), find_shipped(decoder(dtype=torch.bfloat16), place)
    assert exact is not None
    assert coarse is not None
    assert exact.preset(decoder()) == {"method": "suffix"}
    assert coarse.preset(decoder(dtype=torch.bfloat16)) == {"method": "ngram"}


def test_without_presets_there_is_none(place: Path) -> None:
    found = find_shipped(decoder(), place)
    assert found is not None
    assert found.preset(decoder()) is None


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("identity.json", "{", "cannot be read"),
        ("identity.json", "[]", "must hold a JSON object"),
        ("identity.json", '{"vocab_size": 3}', "no identity of a model"),
        ("preset.json", '{"default": {"topk": 2}}', "preset 'default' must be settings with a method"),
    ],
)
def test_a_broken_file_is_named(place: Path, file: str, content: str, told: str) -> None:
    (place / "some-model" / file).write_text(content)
    with pytest.raises(ModelLoadError, match=told) as raised:
        find_shipped(decoder(), place)
    assert str(place / "some-model" / file) in str(raised.value)


def test_an_identity_survives_its_file(place: Path) -> None:
    path = place / "some-model" / "identity.json"
    stored = json.loads(path.read_text())
    assert list(stored) == ["vocab_size", "hidden_size", "num_layers", "tokens", "columns", "values"]
    embedding = weights(ARCH, 1)["model.embed_tokens.weight"]
    assert stored["tokens"] == [203 * i // 8 for i in range(8)]
    torch.testing.assert_close(
        torch.tensor(stored["values"]), embedding[stored["tokens"]][:, stored["columns"]], atol=1e-5, rtol=0
    )
    assert ModelIdentity.of(decoder()).is_of(decoder(noise=0.15))
    stored["tokens"][-1] = 203
    path.write_text(json.dumps(stored))
    with pytest.raises(ModelLoadError, match="no identity of a model"):
        find_shipped(decoder(), place)


def test_what_is_shipped_can_be_read() -> None:
    assert find_shipped(decoder()) is None
    assert (PLACE / "smollm2-135m" / "identity.json").is_file()
