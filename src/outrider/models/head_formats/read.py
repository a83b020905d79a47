"""Tells which form the files of a head are in, and reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ModelLoadError
from outrider.models import hub
from outrider.models.head_formats.eagle import plain_name, read_eagle
from outrider.models.head_formats.exit import is_exit, read_exit
from outrider.models.head_formats.files import HeadFolder, WeightFiles, open_folder
from outrider.models.head_formats.medusa import medusa_names, read_medusa
from outrider.models.head_formats.speculators import TYPE_KEY, read_speculators
from outrider.models.heads import Head
from outrider.models.malformed import reading

# Classes of heads that are known, without a drafter here.
_OTHER_CLASSES = ("dflash", "dspark", "peagle", "mtp")


def read_folder(path: Path, name: str) -> Head:
    """The head in a folder. Raises `ModelLoadError` in one line that starts with the file or folder."""
    with reading(path):
        folder = open_folder(path)
        try:
            return _read(folder, name)
        except ModelLoadError as error:
            if str(error).startswith(str(path)):
                raise
            raise ModelLoadError(f"{path}: {error}") from None


def find_folder(model: str | Path, revision: str | None) -> Path:
    """The folder of a head: as given, or a hub id's in the local cache. Raises `ModelLoadError`."""
    if not isinstance(model, (str, Path)) or not str(model):
        raise ModelLoadError(f"a draft head is named by a folder or a hub id, not by {model!r:.60}")
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return path
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelLoadError(
            f"{str(model)[:80]!r} cannot be a path ({error!s:.60}): check the name"
        ) from None
    if is_file:
        raise ModelLoadError(f"{model}: is a file: give the folder of the draft head")
    named = str(model)
    if isinstance(model, Path) or named.startswith(("/", "./", "../", "~")) or named.count("/") != 1:
        raise ModelLoadError(
            f"{named}: no such folder: give the folder of a draft head or a hub id (owner/name)"
        )
    return hub.head_snapshot(named, revision)


def is_head(path: Path) -> bool:
    """Whether a folder holds a draft head rather than a model. False as well where it cannot be read."""
    try:
        with reading(path):
            folder = open_folder(path)
            config = folder.config or {}
            if TYPE_KEY in config or is_exit(config) or _other_class(config):
                return True
            names = WeightFiles(folder.weights).names
            return bool(medusa_names(names)) or _is_eagle(names)
    except ModelLoadError:
        return False


def _read(folder: HeadFolder, name: str) -> Head:
    weights = WeightFiles(folder.weights)
    config = folder.config or {}
    if TYPE_KEY in config:
        return read_speculators(config, weights.read(weights.names), name)
    if is_exit(config):
        return read_exit(config, weights.read(weights.names), name)
    other = _other_class(config)
    if other is not None:
        raise ModelLoadError(
            f"{other!r} is a known kind of head that is not supported: use EAGLE or Medusa heads"
        )
    of_medusa = medusa_names(weights.names)
    if of_medusa:
        return read_medusa(config, weights.read(of_medusa), name)
    if not _is_eagle(weights.names):
        raise ModelLoadError(
            f"holds no draft head: neither fc.weight nor Medusa blocks among its {len(weights.names)} tensors: give "
            "the folder of an EAGLE or Medusa head (a whole model drafts by method 'draft_model')"
        )
    if folder.config is None:
        raise ModelLoadError(f"{folder.path / 'config.json'}: is missing: give the folder of a whole head")
    return read_eagle(config, weights.read(weights.names), name)


def _is_eagle(names: Iterable[str]) -> bool:
    return any(plain_name(name) == "fc.weight" for name in names)


def _other_class(config: Mapping[str, Any]) -> str | None:
    """The class of a head that has no drafter here, None where the config names none of those."""
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else ():
        if isinstance(name, str) and name.lower().startswith(_OTHER_CLASSES):
            return name
    return None
