"""Tokens per second end to end, prefill included, of Outrider, llama.cpp and OpenVINO, plain and with n-gram lookup.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/peer_texts.py --models FILES --llama-python PYTHON
        --openvino-python PYTHON [--repeats 3] [--only REGEX] [--target native]

Greedy, batch 1, the prompts of `peer_prompts.json` in the folder. Class by class of stored weights: first every engine
tries each of its settings on one prompt of each kind and keeps its fastest plain and its fastest lookup setting; these
then write all prompts, one after the other on each prompt, again and again. "Kept" counts the texts with lookup
that equal the plain ones of the same settings. The ratio is Outrider's lookup over the fastest peer, plain or
not, repeat by repeat. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peer_entries import CLASSES, Entry, chosen
from peer_error import errors, read_prompts
from peer_link import Places, Worker, bandwidth_gbs, opened, places_of
from peer_report import (
    error_cells,
    machine,
    middle,
    parser_of,
    print_bandwidth,
    print_head,
    print_result,
    print_row,
    settings_of,
    shown,
)
from peer_tokens import END

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Run:
    """An entry in one mode: plain where `lookup` is None, else with drafts of that length."""

    entry: Entry
    lookup: int | None

    @property
    def name(self) -> str:
        return f"{self.entry.name}, " + ("plain" if self.lookup is None else f"lookup {self.lookup}")


@dataclass(frozen=True)
class Texts:
    """What a run wrote: tokens per second of each repeat, and the texts of the first."""

    rates: list[float]
    texts: list[list[int]]


def write(worker: Worker, ids: Sequence[int], tokens: int, lookup: int | None) -> tuple[list[int], float]:
    """The text without its end token, and the seconds it took."""
    text, seconds = worker.ask("write", ids=ids, tokens=tokens, lookup=lookup)
    return (text[:-1] if text[-1:] == [END] else text), seconds


def try_settings(
    entries: Sequence[Entry], places: Places, prompts: Prompts, tokens: int
) -> dict[str, dict[Run, float]]:
    """Tokens per second of every setting, by engine and mode, one engine loaded at a time."""
    found: dict[str, dict[Run, float]] = {}
    for entry in entries:
        with opened([entry], places) as [worker]:
            for lookup in (None, *entry.lookups):
                write(worker, prompts[0], 8, lookup)
                pairs = [write(worker, ids, tokens, lookup) for ids in prompts]
                rate = sum(len(text) for text, _ in pairs) / sum(seconds for _, seconds in pairs)
                mode = "plain" if lookup is None else "lookup"
                found.setdefault(f"{entry.engine} {mode}", {})[Run(entry, lookup)] = rate
    return found


def fastest(tried: dict[str, dict[Run, float]]) -> list[Run]:
    """The best run of each engine and mode, and a plain run of whatever settings are among them."""
    best = [max(rates, key=lambda run: rates[run]) for rates in tried.values()]
    return list(dict.fromkeys(run for kept in best for run in (Run(kept.entry, None), kept)))


def measure(runs: Sequence[Run], places: Places, prompts: Prompts,
            options: argparse.Namespace) -> tuple[dict[str, Texts], list[float]]:  # fmt: skip
    entries = list(dict.fromkeys(run.entry for run in runs))
    found = {run.name: Texts([], []) for run in runs}
    probes = []
    with opened(entries, places) as workers:
        by_entry = dict(zip(entries, workers))
        for run in runs:
            write(by_entry[run.entry], prompts[0], 8, run.lookup)
        for repeat in range(options.repeats):
            probes.append(bandwidth_gbs(options.threads))
            print(f"repeat {repeat + 1} of {options.repeats}: {probes[-1]:.1f} GB/s", file=sys.stderr)
            written, spent = dict.fromkeys(found, 0), dict.fromkeys(found, 0.0)
            for ids in prompts:
                for run in runs:
                    text, seconds = write(by_entry[run.entry], ids, options.tokens, run.lookup)
                    written[run.name] += len(text)
                    spent[run.name] += seconds
                    if repeat == 0:
                        found[run.name].texts.append(text)
            for name, texts in found.items():
                texts.rates.append(written[name] / spent[name])
    return found, probes


def summary(runs: Sequence[Run], found: dict[str, Texts]) -> dict[str, Any]:
    """Rates and kept texts of every run; the fastest peer, and our lookup against it."""
    rows = {
        run.name: {
            "tokens_per_second": middle(found[run.name].rates),
            "kept": sum(
                a == b for a, b in zip(found[run.name].texts, found[Run(run.entry, None).name].texts)
            ),
        }
        for run in runs
    }
    result: dict[str, Any] = {"runs": rows}
    peers = [run.name for run in runs if run.entry.engine != "outrider"]
    ours = [run.name for run in runs if run.entry.engine == "outrider" and run.lookup is not None]
    if peers and ours:
        peer, our = (
            max(names, key=lambda name: statistics.median(found[name].rates)) for names in (peers, ours)
        )
        ratio = middle([a / b for a, b in zip(found[our].rates, found[peer].rates)])
        result.update(fastest_peer=peer, ours=our, ratio=ratio)
    return result


def print_class(
    width: str, runs: Sequence[Run], result: dict[str, Any], prompts: int, error: dict[str, Any]
) -> None:
    print(f"\n### {width}\n")
    print_head(["run", "tokens/s", "texts kept"])
    for run in runs:
        row = result["runs"][run.name]
        kept = "" if run.lookup is None else f"{row['kept']} of {prompts}"
        print_row([run.name, shown(row["tokens_per_second"], 1), kept, *error_cells(run.entry, error)])
    if "ratio" in result:
        print(f"\n{result['ours']} / {result['fastest_peer']}: {shown(result['ratio'], 2)}")


def compare(
    width: str, entries: Sequence[Entry], places: Places, options: argparse.Namespace
) -> dict[str, Any]:
    """One class: tries, measures, prints; the result with everything it rests on."""
    rows = read_prompts()
    prompts = [row["ids"] for row in rows][: options.prompts]
    firsts = [
        next(row["ids"] for row in rows if row["kind"] == kind)
        for kind in dict.fromkeys(r["kind"] for r in rows)
    ]
    tried = try_settings(entries, places, firsts, options.tokens)
    runs = fastest(tried)
    kept = list(dict.fromkeys(run.entry for run in runs))
    error = errors(kept, places, prompts, options.error_tokens) if options.error_tokens else {}
    found, probes = measure(runs, places, prompts, options)
    result = summary(runs, found)
    print_class(width, runs, result, len(prompts), error)
    print_bandwidth("before each repeat", probes)
    result["tried"] = {run.name: rate for rates in tried.values() for run, rate in rates.items()}
    return {
        **result,
        "settings": settings_of(kept, places),
        "rates": {n: t.rates for n, t in found.items()},
        "error": error,
        "bandwidth_gbs": probes,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=12, help="only the first so many")
    options = parser.parse_args()
    places = places_of(options)
    entries = chosen(list(places.pythons), options.only)
    facts, results = machine(), {}
    for width in CLASSES:
        of_class = [entry for entry in entries if entry.width == width]
        if of_class:
            results[width] = compare(width, of_class, places, options)
    print_result(facts, options, {"tokens": options.tokens, "classes": results})


if __name__ == "__main__":
    main()
