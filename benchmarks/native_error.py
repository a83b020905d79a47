"""Error of each weight format and activation of the native target, against float32 of the same numbers.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/native_error.py [MODEL] [--positions 2000] [--threads N] [--isa NAME]

Mean KL of the next-token law and agreement of the likeliest token, over the first assistant positions of plain greedy
answers of the float32 model. Prints a Markdown table; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os

from outrider.cli.demo_prompts import PROMPTS
from outrider.doctor import ANSWER_TOKENS, POSITIONS, PromptSet, greedy_texts, question_prompts
from outrider.models.load import SourceKind, load, resolve
from outrider.models.native_weights import stored_as_blocks
from outrider.models.placement import placement_of
from outrider.models.precision import law_error
from outrider.text import load_tokenizer

CELLS = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("int8", "bfloat16"),
    ("int8", "int8"),
    ("gguf", "bfloat16"),
    ("gguf", "int8"),
    ("int4", "bfloat16"),
    ("int4", "int8"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--positions", type=int, default=POSITIONS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa", help="as OUTRIDER_ISA")
    options = parser.parse_args()
    if options.isa:
        os.environ["OUTRIDER_ISA"] = options.isa
    source = resolve(options.model)
    reference = load(source, target="native", dtype="float32", threads=options.threads)
    prompts = question_prompts(PromptSet("built-in prompts", tuple(message for _, message in PROMPTS)))
    texts = list(greedy_texts(reference, load_tokenizer(source), prompts, positions=options.positions))
    has_blocks = source.kind is SourceKind.GGUF and stored_as_blocks(source.gguf)
    print(f"{source.name}, {len(texts)} answers of up to {ANSWER_TOKENS} tokens to {prompts.name}\n")
    print("| dtype | activations | weights, MB | KL, nats | top-1 |\n|---|---|---|---|---|")
    rows = []
    for dtype, activations in CELLS:
        if dtype == "gguf" and not has_blocks:
            continue
        target = load(source, target="native", dtype=dtype, activations=activations, threads=options.threads)
        error = law_error(reference, target, texts, options.positions)
        assert error is not None, "some prompt fits the model"
        size = target.weight_bytes  # type: ignore[attr-defined]
        print(
            f"| {dtype} | {activations} | {size / 1e6:.1f} | {error.kl_nats:.2e} | {error.top1:.2%} |",
            flush=True,
        )
        rows.append(
            {"dtype": dtype, "activations": activations, "weight_bytes": size, "kl_nats": error.kl_nats,
             "top1": error.top1, "positions": error.positions}
        )  # fmt: skip
    isa = placement_of(reference).isa
    print(json.dumps({"model": source.name, "prompts": prompts.name, "isa": isa, "rows": rows}))


if __name__ == "__main__":
    main()
