"""Reads a model folder: config.json and safetensors, whole or sharded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.errors import ModelLoadError

_INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json. Raises `ModelLoadError` when it is missing or not a JSON object."""
    return read_json(folder / "config.json")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, shards in the order of the index. Raises `ModelLoadError`."""
    index = folder / _INDEX
    if index.is_file():
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict) or not table:
            raise ModelLoadError(f"{index}: has no weight_map: download the file again")
        files = [folder / str(name) for name in dict.fromkeys(table.values())]
        for file in files:
            if not file.is_file():
                raise ModelLoadError(
                    f"{file}: is missing though the index names it: download the model again"
                )
        return files
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    if any(folder.glob("*.bin")):
        raise ModelLoadError(
            f"{folder}: holds only .bin weights, which can run code when read: convert them with "
            "save_pretrained(folder, safe_serialization=True)"
        )
    raise ModelLoadError(
        f"{folder}: holds no .safetensors and no single .gguf: give the folder of a whole model"
    )


def read_state(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder, as stored. Raises `ModelLoadError` naming a file that cannot be read."""
    state: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        try:
            state.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(
                f"{file}: is truncated or corrupt ({error}): download the file again"
            ) from None
    return state


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of one file of a model folder. Raises `ModelLoadError` naming a file that holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: is missing: give the folder of a whole model") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is not JSON ({error}): download the file again") from None
    if not isinstance(found, dict):
        raise ModelLoadError(
            f"{path}: must hold a JSON object, not {type(found).__name__}: download it again"
        )
    return found
