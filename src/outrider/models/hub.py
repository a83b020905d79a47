"""Fetches a model from the Hugging Face hub: from the local cache first, then over the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ModelLoadError
from outrider.models.checkpoint import weight_files
from outrider.models.head_formats.files import TRAINING
from outrider.models.head_formats.files import weight_files as head_weight_files

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_IGNORED = ["*/*", "consolidated*"]  # other formats of the same weights
_PICKLES = ["*.bin", "*.pt"]
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def snapshot(model: str, revision: str | None) -> Path:
    """The folder of a hub id in the local cache, with safetensors, or else the repository's only .gguf file.

    A snapshot that is whole is taken as it is, without asking the hub whether its branch has moved. Otherwise what
    is missing is downloaded, unless HF_HUB_OFFLINE is set. Raises `ModelLoadError` in one line.
    """
    with _explained(model, revision):
        return _cached(model, revision) or _downloaded(model, revision)


def head_snapshot(model: str, revision: str | None) -> Path:
    """The folder of a draft head in the local cache: safetensors, or pickles where the repository has no others.

    Taken from the cache, or downloaded, as by `snapshot`. Raises `ModelLoadError` in one line.
    """
    with _explained(model, revision):
        return _cached_head(model, revision) or _downloaded_head(model, revision)


@contextmanager
def _explained(model: str, revision: str | None) -> Iterator[None]:
    """Turns whatever the hub raises into one line that names the model."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except ModelLoadError:
        raise
    except HFValidationError:
        raise ModelLoadError(
            f"{model!r} is no file, no folder and no hub id (owner/name): check the name"
        ) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise ModelLoadError(
            f"{model!r}{at} is not in the local hub cache and the hub cannot be reached: download it where there is "
            "a network, or give a folder"
        ) from None
    except Exception as error:  # whatever the hub's HTTP client raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"{model!r}{at} cannot be fetched from the hub ({reason}): check name and access"
        ) from None


def _cached(model: str, revision: str | None) -> Path | None:
    """The snapshot in the local cache, None when there is none or a file of it is missing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model, revision=revision, allow_patterns=_FILES, ignore_patterns=_IGNORED, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder) if _is_whole(Path(folder)) else None


def _is_whole(folder: Path) -> bool:
    if not _holds_safetensors(folder):
        return len(list(folder.glob("*.gguf"))) == 1
    try:
        weight_files(folder)
    except ModelLoadError:  # a shard is missing
        return False
    return any((folder / name).is_file() for name in _TOKENIZERS)


def _downloaded(model: str, revision: str | None) -> Path:
    """Safetensors and what belongs to them; where there are none, the only .gguf file and no other."""
    from huggingface_hub import list_repo_files, snapshot_download

    folder = Path(
        snapshot_download(model, revision=revision, allow_patterns=_FILES, ignore_patterns=_IGNORED)
    )
    if _holds_safetensors(folder):
        return folder
    names = sorted(name for name in list_repo_files(model, revision=revision) if "/" not in name)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) > 1:
        raise ModelLoadError(
            f"{model!r} holds {len(ggufs)} .gguf files and no safetensors: download one, such as {ggufs[0]!r}, "
            "and give its path"
        )
    if not ggufs:
        kind = "only .bin weights" if any(name.endswith(".bin") for name in names) else "no weights"
        raise ModelLoadError(f"{model!r} holds {kind}: use a model with safetensors or one .gguf file")
    return Path(snapshot_download(model, revision=revision, allow_patterns=ggufs))


def _cached_head(model: str, revision: str | None) -> Path | None:
    """The snapshot in the local cache, None when there is none or no whole set of weights in it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=_FILES,
                ignore_patterns=_IGNORED,
                local_files_only=True,
            )
        )
        head_weight_files(folder)
    except (LocalEntryNotFoundError, ModelLoadError):
        return None
    return folder


def _downloaded_head(model: str, revision: str | None) -> Path:
    from huggingface_hub import list_repo_files, snapshot_download

    names = [name for name in list_repo_files(model, revision=revision) if "/" not in name]
    safe = any(name.endswith(".safetensors") for name in names)
    wanted = _FILES if safe else [*_FILES, *_PICKLES]
    return Path(
        snapshot_download(
            model,
            revision=revision,
            allow_patterns=wanted,
            ignore_patterns=[*_IGNORED, *(f"{name}*" for name in TRAINING)],
        )
    )


def _holds_safetensors(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
