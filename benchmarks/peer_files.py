"""Makes the files that the peers read, from one GGUF file, each step under the interpreter that can do it.

LLAMA_PYTHON benchmarks/peer_files.py gguf MODEL.gguf FOLDER     F32, F16, BF16, Q8_0, Q4_0 beside a copy of the file
OPENVINO_PYTHON benchmarks/peer_files.py openvino FOLDER         OpenVINO models of what it reads
OPENVINO_PYTHON benchmarks/peer_files.py compress FOLDER         its own 8- and 4-bit weights (needs nncf)
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
from pathlib import Path

READ_BY_OPENVINO = ("f16", "q8_0", "q4_0", "shipped")
"""Its GGUF reader knows neither float32 nor bfloat16: the half-precision file runs as what the precision hint says."""


def make_gguf(source: Path, folder: Path) -> None:
    """The float32 file holds the dequantised weights of the source; the others are made from it."""
    import llama_cpp as lib

    kinds = {
        "f16": lib.LLAMA_FTYPE_MOSTLY_F16,
        "bf16": lib.LLAMA_FTYPE_MOSTLY_BF16,
        "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
        "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / "shipped.gguf")
    _quantise(source, folder / "f32.gguf", lib.LLAMA_FTYPE_ALL_F32)
    for name, kind in kinds.items():
        _quantise(folder / "f32.gguf", folder / f"{name}.gguf", kind)


def _quantise(source: Path, result: Path, kind: int) -> None:
    import llama_cpp as lib

    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = kind, True
    code = lib.llama_model_quantize(str(source).encode(), str(result).encode(), ctypes.byref(params))
    assert code == 0, f"llama.cpp cannot make {result.name}: code {code}"


def make_openvino(folder: Path) -> None:
    import openvino_genai

    for name in READ_BY_OPENVINO:
        made = folder / f"openvino-{name}"
        made.mkdir(exist_ok=True)
        copy = made / "model.gguf"
        shutil.copyfile(folder / f"{name}.gguf", copy)
        openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
        copy.unlink()
        print(made.name, sorted(path.name for path in made.iterdir()))


def make_compressed(folder: Path) -> None:
    """Weights-only compression as OpenVINO's own exporter does it: 8 bits per output, 4 bits in groups of 64."""
    import nncf
    import openvino

    modes = {
        "int8": {"mode": nncf.CompressWeightsMode.INT8_ASYM},
        "int4": {"mode": nncf.CompressWeightsMode.INT4_ASYM, "group_size": 64, "ratio": 1.0},
    }
    source = folder / "openvino-f16"
    for name, settings in modes.items():
        made = folder / f"openvino-{name}"
        shutil.copytree(source, made, dirs_exist_ok=True, ignore=shutil.ignore_patterns("openvino_model.*"))
        model = openvino.Core().read_model(source / "openvino_model.xml")
        openvino.save_model(nncf.compress_weights(model, **settings), made / "openvino_model.xml")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    gguf = steps.add_parser("gguf")
    gguf.add_argument("source", type=Path)
    gguf.add_argument("folder", type=Path)
    for name in ("openvino", "compress"):
        steps.add_parser(name).add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.step == "gguf":
        make_gguf(options.source, options.folder)
    elif options.step == "openvino":
        make_openvino(options.folder)
    else:
        make_compressed(options.folder)


if __name__ == "__main__":
    main()
