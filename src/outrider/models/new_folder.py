"""`new_folder`: a folder of model files that appears when it is complete, or not at all."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from outrider.errors import ModelLoadError


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A place to write to, which becomes `folder` when the block ends well.

    Raises `ModelLoadError` where `folder` is there already and not empty, or cannot be written.
    """
    path = Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ModelLoadError(f"{path}: is there already and not empty: give a new folder")
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        unfinished.mkdir(parents=True)
        try:
            yield unfinished
            unfinished.replace(path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{path}: cannot be written ({error}): give another folder") from None


def write_model(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], file: str = "model.safetensors"
) -> None:  # fmt: skip
    """config.json and one file of tensors."""
    # Copies, since safetensors refuses tensors that share memory.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(copies, folder / file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
