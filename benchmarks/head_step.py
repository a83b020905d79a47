"""What a step of an EAGLE-3 head costs on the CPU: one pass of the compiled library, beside a module with its products.

    python benchmarks/head_step.py [--threads N] [--rounds 60] [--levels 4] [--context 400]

Heads of SmolLM2-135M's shape with random weights, widths and precisions interleaved. A round takes in 3 entries and
guesses levels of equal width; in between 128 MB are read, as a target's pass would. Prints a Markdown table of median
microseconds, Python included; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict

import numpy as np
import torch

from outrider.core.records import TokenWeights
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_cache import CachedHead, DraftHead, Entries, Guesses
from outrider.models.heads import EagleConfig
from outrider.models.native_eagle import NativeEagleHead
from outrider.models.native_eagle_load import pack_eagle
from outrider.models.native_matrices import NativeMatrices

HIDDEN, VOCAB, LAYERS, NEW = 576, 49152, 30, 3
WIDTHS = (1, 4, 8, 16)
ARCH = Arch("llama", 1, HIDDEN, 1536, 9, 3, 64, VOCAB, 1e-5, 10000.0, RopeScaling(),
            False, False, False, False, False, 8192)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--context", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = {
        (kind, dtype, vocab): made(kind, dtype, vocab, options.threads)
        for vocab in (4096, 8192)
        for dtype in ("int8", "bfloat16")
        for kind in ("module", "pass")
    }
    features = torch.randn(options.context, 3, HIDDEN)
    for head in heads.values():
        head.extend([Entries(0, 0, range(options.context), features)])
    times: dict[tuple[object, ...], list[float]] = defaultdict(list)
    between = np.ones(16 << 20)
    for _ in range(options.rounds):
        for width in WIDTHS:
            for name, head in heads.items():
                between.sum()
                taken_in, levels = one_round(head, features[:NEW], width, options.levels)
                times[(*name, "entries")].append(taken_in)
                times[(*name, width)] += levels
    report(heads.keys(), times)


def made(kind: str, dtype: str, draft_vocab: int, threads: int) -> DraftHead:
    """A head as it runs now (`pass`), or as a torch module whose products alone are compiled (`module`)."""
    chosen = torch.arange(draft_vocab) * (VOCAB // draft_vocab)
    head = fresh_head(EagleConfig(True, ARCH, HIDDEN, draft_vocab, (2, 15, 27)), seed=1, token_map=chosen)
    shared = torch.randn(VOCAB, HIDDEN) / 24
    weights = TokenWeights(shared, shared, torch.ones(HIDDEN), 1e-5)
    if kind == "pass":
        return NativeEagleHead(pack_eagle(head, weights, num_layers=LAYERS, dtype=dtype, threads=threads))
    module = EagleHead(head, weights, num_layers=LAYERS)
    module.swap_products(NativeMatrices(dtype, threads).linear)
    return CachedHead(module.eval())


def one_round(head: DraftHead, features: torch.Tensor, width: int, levels: int) -> tuple[float, list[float]]:
    """Microseconds of taking new entries in, and of each level of guesses."""
    known = head.cached_length(0)  # type: ignore[attr-defined]
    start = time.perf_counter()
    head.extend([Entries(0, known, range(NEW), features)])
    head.pending_rows([0])
    taken_in, spent, above = time.perf_counter() - start, [], (0,) * width
    for level in range(levels):
        tokens = tuple(range(100, 100 + width))
        start = time.perf_counter()
        head.guess([Guesses(0, tokens, above)])
        spent.append(1e6 * (time.perf_counter() - start))
        above = tuple(range(1 + level * width, 1 + (level + 1) * width))
    return 1e6 * taken_in, spent


def report(names: object, times: dict[tuple[object, ...], list[float]]) -> None:
    print(
        "| draft vocabulary | weights | runs as | 3 entries | "
        + " | ".join(f"{w} wide" for w in WIDTHS)
        + " |"
    )
    print("|---" * (4 + len(WIDTHS)) + "|")
    rows = []
    for kind, dtype, vocab in names:  # type: ignore[attr-defined]
        medians = {
            str(what): round(statistics.median(times[kind, dtype, vocab, what]))
            for what in ("entries", *WIDTHS)
        }
        print(f"| {vocab} | {dtype} | {kind} | " + " | ".join(map(str, medians.values())) + " |")
        rows.append({"kind": kind, "dtype": dtype, "draft_vocab": vocab, "microseconds": medians})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
