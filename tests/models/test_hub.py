"""Models of the hub: the local cache first, then a download of what is needed and no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from outrider.errors import ModelLoadError
from outrider.models.hub import head_snapshot
from outrider.models.load import SourceKind, resolve

SIDE = ["config.json", "tokenizer.json"]


class Hub:
    """One repository on a hub, and a cache that downloads fill; `requests` counts what went over the network."""

    def __init__(self, cache: Path, files: Sequence[str]) -> None:
        self.cache, self.files = cache, list(files)
        self.requests = 0

    @property
    def cached(self) -> list[str]:
        return sorted(str(path.relative_to(self.cache)) for path in self.cache.rglob("*") if path.is_file())

    def list_repo_files(self, model: str, *, revision: str | None = None) -> list[str]:
        self.requests += 1
        return self.files

    def snapshot_download(
        self, model: str, *, revision: str | None = None, allow_patterns: list[str] | None = None,
        ignore_patterns: list[str] | None = None, local_files_only: bool = False,
    ) -> str:  # fmt: skip
        if local_files_only:
            if not self.cache.is_dir():
                raise LocalEntryNotFoundError("nothing cached")
            return str(self.cache)
        self.requests += 1
        wanted = filter_repo_objects(
            self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        for name in wanted:
            path = self.cache / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        return str(self.cache)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "cache", [])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", hub.list_repo_files)
    return hub


def test_safetensors_are_fetched_and_no_other_format_of_the_same_weights(hub: Hub) -> None:
    other = ["m.Q4.gguf", "m.Q8.gguf", "pytorch_model.bin", "consolidated.safetensors", "onnx/config.json"]
    hub.files = [*SIDE, "model.safetensors", *other]
    source = resolve("someone/both")
    assert (source.kind, source.path) == (SourceKind.FOLDER, hub.cache)
    assert hub.cached == [*SIDE[:1], "model.safetensors", *SIDE[1:]]


def test_a_whole_snapshot_is_taken_from_the_cache_without_asking_the_hub(hub: Hub) -> None:
    hub.files = [*SIDE, "model.safetensors"]
    first = resolve("someone/model")
    before = hub.requests
    assert resolve("someone/model") == first
    assert hub.requests == before


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors"])
def test_what_a_snapshot_lacks_is_fetched(hub: Hub, missing: str) -> None:
    hub.files = [*SIDE, "model.safetensors"]
    resolve("someone/model")
    (hub.cache / missing).unlink()
    resolve("someone/model")
    assert (hub.cache / missing).is_file()


def test_the_only_gguf_file_is_fetched_where_there_are_no_safetensors(hub: Hub) -> None:
    hub.files = ["README.md", "config.json", "m.Q8.gguf", "old/m.Q4.gguf"]
    source = resolve("someone/gguf")
    assert (source.kind, source.path) == (SourceKind.GGUF, hub.cache / "m.Q8.gguf")
    assert hub.cached == ["config.json", "m.Q8.gguf"]
    before = hub.requests
    assert resolve("someone/gguf") == source
    assert hub.requests == before


def test_of_several_gguf_files_none_is_fetched(hub: Hub) -> None:
    hub.files = ["m.Q4.gguf", "m.Q8.gguf"]
    with pytest.raises(ModelLoadError, match=r"'someone/gguf' holds 2 \.gguf files.*'m\.Q4\.gguf'"):
        resolve("someone/gguf")
    assert hub.cached == []


def test_one_gguf_file_of_several_in_the_cache_is_taken(hub: Hub) -> None:
    hub.files = ["m.Q4.gguf", "m.Q8.gguf"]
    hub.snapshot_download("someone/gguf", allow_patterns=["m.Q8.gguf"])
    assert resolve("someone/gguf").path.name == "m.Q8.gguf"


@pytest.mark.parametrize(
    ("files", "said"), [(["pytorch_model.bin"], r"only \.bin weights"), (["README.md"], "no weights")]
)
def test_a_repository_without_weights_to_read_is_refused(hub: Hub, files: list[str], said: str) -> None:
    hub.files = [*SIDE, *files]
    with pytest.raises(ModelLoadError, match=f"'someone/bin' holds {said}"):
        resolve("someone/bin")


def test_a_failing_connection_is_told_in_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **options: object) -> str:
        if options.get("local_files_only"):
            raise LocalEntryNotFoundError("nothing cached")
        raise OSError("the line is cut\nin the middle")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing)
    with pytest.raises(ModelLoadError, match=r"at revision 'v3' cannot be fetched.*the line is cut") as said:
        resolve("someone/model", revision="v3")
    assert "\n" not in str(said.value)


def test_of_a_head_safetensors_are_fetched_and_pickles_only_where_there_are_none(hub: Hub) -> None:
    trainers = ["optimizer.pt", "training_args.bin"]
    hub.files = ["config.json", "model.safetensors", "pytorch_model.bin", *trainers]
    assert head_snapshot("someone/head", None) == hub.cache
    assert hub.cached == ["config.json", "model.safetensors"]
    (hub.cache / "model.safetensors").unlink()
    hub.files = ["config.json", "medusa_lm_head.pt", *trainers]
    assert head_snapshot("someone/head", None) == hub.cache
    assert hub.cached == ["config.json", "medusa_lm_head.pt"]
    before = hub.requests
    assert head_snapshot("someone/head", None) == hub.cache
    assert hub.requests == before
