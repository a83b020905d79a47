"""Finds the files of a head and reads their tensors: safetensors, or pickles by safe loading alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from outrider.errors import ModelLoadError
from outrider.models.checkpoint import read_config, read_json

MEDUSA_FILE = "medusa_lm_head"
_PICKLES = (".bin", ".pt")
# Files of a trainer that lie beside the weights and hold none.
TRAINING = ("optimizer", "scheduler", "training_args", "rng_state", "trainer_state")


@dataclass(frozen=True)
class HeadFolder:
    """A folder that may hold a head: its config.json (None where there is none) and the files of its tensors."""

    path: Path
    config: Mapping[str, Any] | None
    weights: tuple[Path, ...]


def open_folder(path: Path) -> HeadFolder:
    """Looks for config and weights. Raises `ModelLoadError` when there are no weights or the config is malformed."""
    config = read_config(path) if (path / "config.json").is_file() else None
    return HeadFolder(path, config, tuple(weight_files(path)))


def weight_files(folder: Path) -> list[Path]:
    """Files with a head's tensors: safetensors before pickles, `medusa_lm_head` before a whole model.

    Raises `ModelLoadError` when there are none, when one of several is to be chosen, or when a shard is missing.
    """
    for suffixes in ((".safetensors",), _PICKLES):
        for suffix in suffixes:
            file = folder / f"{MEDUSA_FILE}{suffix}"
            if file.is_file():
                return [file]
        index = folder / ("model.safetensors.index.json" if suffixes[0] == ".safetensors" else
                          "pytorch_model.bin.index.json")  # fmt: skip
        if index.is_file():
            return _shards(index)
        files = [file for suffix in suffixes for file in sorted(folder.glob(f"*{suffix}"))]
        files = [file for file in files if not file.name.startswith(TRAINING)]
        named = [file for file in files if file.stem in ("model", "pytorch_model")]
        if len(named or files) > 1:
            raise ModelLoadError(
                f"{folder}: holds {len(files)} files of weights and no index: keep one, such as {files[0].name!r}"
            )
        if files:
            return named or files
    raise ModelLoadError(f"{folder}: holds no .safetensors, .bin or .pt: give the folder of a draft head")


def _shards(index: Path) -> list[Path]:
    table = read_json(index).get("weight_map")
    names = list(dict.fromkeys(table.values())) if isinstance(table, dict) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ModelLoadError(f"{index}: has no weight_map of file names: download the file again")
    files = [index.parent / name for name in names]
    for file in files:
        if not file.is_file():
            raise ModelLoadError(f"{file}: is missing though the index names it: download the head again")
    return files


class WeightFiles:
    """The tensors of some files. Of safetensors only the names are read before a tensor is asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._file_of: dict[str, Path] = {}
        self._pickled: dict[str, torch.Tensor] = {}
        for file in files:
            if file.suffix == ".safetensors":
                self._file_of.update(dict.fromkeys(_stored_names(file), file))
            else:
                self._pickled.update(_unpickled(file))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._file_of) | frozenset(self._pickled)

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The named tensors, as stored. Raises `ModelLoadError` naming a file that cannot be read."""
        wanted = set(names)
        found = {name: tensor for name, tensor in self._pickled.items() if name in wanted}
        for file in dict.fromkeys(self._file_of.values()):
            own = [name for name in sorted(wanted) if self._file_of.get(name) == file]
            found.update(_stored_tensors(file, own))
        return found


def _stored_names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from None


def _stored_tensors(file: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from None


def _unpickled(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a pickle, which may hold nothing but tensors: no code of the file is ever run."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the unpickler meets in damaged bytes
        reason = " ".join(str(error).split())[:100]
        raise ModelLoadError(
            f"{file}: is damaged or holds more than tensors, which is never run ({reason}): download it again, or "
            "convert it to safetensors where you trust it"
        ) from None
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items()
    ):
        raise ModelLoadError(
            f"{file}: must hold a table of named tensors, not {type(found).__name__}: save its state_dict alone"
        )
    return {name: tensor.detach() for name, tensor in found.items()}


def _damaged(file: Path, error: Exception) -> ModelLoadError:
    reason = " ".join(str(error).split())[:100]
    return ModelLoadError(f"{file}: is truncated or corrupt ({reason}): download the file again")
