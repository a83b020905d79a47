"""What is compared: every engine with the settings that could be its fastest, by width of the stored weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CLASSES = ("float32", "bfloat16", "8-bit", "4-bit", "4-bit remade")
"""4-bit is the shipped file as it stands; what was quantised anew from it writes other, poorer texts."""


@dataclass(frozen=True, eq=False)
class Entry:
    """An engine with a file and settings; `width` is its class, `file` lies in the folder of the peers' files."""

    engine: str
    width: str
    name: str
    settings: Mapping[str, Any]
    file: str = ""
    lookups: Sequence[int] = field(default=())
    """Draft lengths of the engine's own n-gram lookup that are tried for texts."""


def outrider(width: str, dtype: str, activations: str) -> Entry:
    """Activations `auto` are left out, so that targets without a choice of them take the entry too."""
    chosen = {} if activations == "auto" else {"activations": activations}
    name = f"outrider {dtype}" + (f", {activations} activations" if chosen else "")
    return Entry("outrider", width, name, {"dtype": dtype, **chosen}, lookups=(4, 7, 11))


def llama(width: str, file: str, label: str, **settings: str) -> Entry:
    name = ", ".join([f"llama.cpp {label}", *(f"{key} {value}" for key, value in settings.items())])
    return Entry("llama.cpp", width, name, settings, f"{file}.gguf", (2, 4, 10))


def openvino(width: str, file: str, label: str, **properties: str | int) -> Entry:
    short = {
        "INFERENCE_PRECISION_HINT": "",
        "KV_CACHE_PRECISION": "cache ",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "groups ",
    }
    shown = [short[key] + str(value) for key, value in properties.items()]
    name = ", ".join([f"OpenVINO {label}", *shown])
    return Entry("openvino", width, name, properties, f"openvino-{file}", (4, 7, 10))


def entries() -> Iterator[Entry]:
    """All that is compared, in the order of the tables. The first of an engine and file has its default settings."""
    yield outrider("float32", "float32", "auto")
    yield from _llama("float32", "f32", "F32")
    yield _openvino("float32", "f16", "f16 file", "f32")
    yield _openvino("float32", "f16", "f16 file", "f32", KV_CACHE_PRECISION="f32")
    yield outrider("bfloat16", "bfloat16", "auto")
    yield from _llama("bfloat16", "bf16", "BF16")
    yield _openvino("bfloat16", "f16", "f16 file", "bf16")
    yield _openvino("bfloat16", "f16", "f16 file", "bf16", KV_CACHE_PRECISION="bf16")
    yield outrider("8-bit", "int8", "int8")
    yield outrider("8-bit", "int8", "auto")
    yield from _llama("8-bit", "q8_0", "Q8_0")
    yield from _openvino_pair("8-bit", "q8_0")
    yield from _openvino_pair("8-bit", "int8")
    yield _openvino("8-bit", "int8", "int8", "f32", DYNAMIC_QUANTIZATION_GROUP_SIZE=64)
    yield outrider("4-bit", "gguf", "int8")
    yield outrider("4-bit", "gguf", "auto")
    yield from _llama("4-bit", "shipped", "Q4_1")
    yield from _openvino_pair("4-bit", "shipped")
    yield outrider("4-bit remade", "int4", "int8")
    yield outrider("4-bit remade", "int4", "auto")
    yield from _llama("4-bit remade", "q4_0", "Q4_0")
    yield from _openvino_pair("4-bit remade", "q4_0")
    yield from _openvino_pair("4-bit remade", "int4")
    yield _openvino("4-bit remade", "int4", "int4", "f32", DYNAMIC_QUANTIZATION_GROUP_SIZE=64)


def chosen(engines: Sequence[str], only: str | None) -> list[Entry]:
    """The entries of these engines whose `class: name` the pattern finds."""
    pattern = re.compile(only or "")
    return [e for e in entries() if e.engine in engines and pattern.search(f"{e.width}: {e.name}")]


def _llama(width: str, file: str, label: str) -> Iterator[Entry]:
    yield llama(width, file, label)
    yield llama(width, file, label, flash="off")


def _openvino(width: str, file: str, label: str, precision: str, **properties: str | int) -> Entry:
    return openvino(width, file, label, INFERENCE_PRECISION_HINT=precision, **properties)


def _openvino_pair(width: str, file: str) -> Iterator[Entry]:
    yield _openvino(width, file, file, "f32")
    yield _openvino(width, file, file, "bf16")
