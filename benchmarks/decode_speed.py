"""Plain and speculative decoding of `torch` against transformers' generate, interleaved on one machine.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/decode_speed.py [--dtype float32] [--tokens 128] [--kind code]

Reads `peer_prompts.json` from the folder: chat, summary and code-edit prompts with their token ids. Greedy, batch
1. Every repetition times each engine on each prompt, one after the other; a bandwidth probe runs beside. Prints
medians with their spread, the ratios, and how many texts speculation kept; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from outrider import LLM, SamplingParams

MODEL = "smollm2-135m"


def bandwidth_gbs() -> float:
    """Read bandwidth of all threads: the best of five sums over 256 MB."""
    block = torch.ones(1 << 26)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        block.sum()
        best = min(best, time.perf_counter() - start)
    return block.nbytes / best / 1e9


def transformers_run(dtype: str) -> Callable[[Sequence[int], int], tuple[list[int], float]]:
    from outrider.models.load import load

    model = load(MODEL, target="hf", dtype=dtype).model  # type: ignore[attr-defined]

    def run(ids: Sequence[int], tokens: int) -> tuple[list[int], float]:
        prompt = torch.tensor([list(ids)])
        start = time.perf_counter()
        out = model.generate(prompt, max_new_tokens=tokens, do_sample=False, eos_token_id=2, pad_token_id=2)
        return out[0, len(ids) :].tolist(), time.perf_counter() - start

    return run


def ours_run(llm: LLM) -> Callable[[Sequence[int], int], tuple[list[int], float]]:
    def run(ids: Sequence[int], tokens: int) -> tuple[list[int], float]:
        start = time.perf_counter()
        [done] = llm.generate(list(ids), SamplingParams(temperature=0.0, max_tokens=tokens))
        return list(done.token_ids), time.perf_counter() - start

    return run


def measure(engines: dict[str, Any], prompts: list[list[int]], tokens: int, repeats: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in engines}
    texts: dict[str, list[list[int]]] = {}
    probes = []
    for repeat in range(repeats):
        probes.append(bandwidth_gbs())
        spent = dict.fromkeys(engines, 0.0)
        written = dict.fromkeys(engines, 0)
        for prompt in prompts:
            for name, run in engines.items():
                ids, seconds = run(prompt, tokens)
                spent[name] += seconds
                written[name] += len(ids)
                if repeat == 0:
                    texts.setdefault(name, []).append(ids)
        for name in engines:
            rates[name].append(written[name] / spent[name])
    kept = {name: sum(a == b for a, b in zip(found, texts["torch plain"])) for name, found in texts.items()}
    return {
        "tokens_per_second": {n: statistics.median(r) for n, r in rates.items()},
        "spread": {n: [min(r), max(r)] for n, r in rates.items()},
        "ratio_to_torch_plain": {
            n: statistics.median(a / b for a, b in zip(r, rates["torch plain"])) for n, r in rates.items()
        },
        "texts_equal_to_torch_plain": kept,
        "prompts": len(prompts),
        "bandwidth_gbs": [round(p, 1) for p in probes],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=("chat", "summ", "code"), help="only prompts of one kind")
    parser.add_argument("--without-transformers", action="store_true")
    options = parser.parse_args()
    path = Path(os.environ["OUTRIDER_PROMPTS"]) / "peer_prompts.json"
    rows = [row for row in json.loads(path.read_text()) if options.kind in (None, row["kind"])]
    plain = LLM(MODEL, target="torch", dtype=options.dtype)
    engines = {
        "torch plain": ours_run(plain),
        "torch ngram": ours_run(plain.with_speculation({"method": "ngram"})),
    }
    if not options.without_transformers:
        engines["transformers"] = transformers_run(options.dtype)
    for run in engines.values():
        run(rows[0]["ids"], 8)
    result = measure(engines, [row["ids"] for row in rows], options.tokens, options.repeats)
    for name, rate in result["tokens_per_second"].items():
        low, high = result["spread"][name]
        print(
            f"{name:14} {rate:6.1f} tokens/s ({low:.1f} to {high:.1f}), "
            f"{result['ratio_to_torch_plain'][name]:.2f} x plain, "
            f"{result['texts_equal_to_torch_plain'][name]} of {result['prompts']} texts equal"
        )
    print(json.dumps({"dtype": options.dtype, "kind": options.kind or "all", **result}))


if __name__ == "__main__":
    main()
