"""Milliseconds per target pass over 1 to 16 new tokens, for Outrider, llama.cpp and OpenVINO, interleaved.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/peer_widths.py --models FILES --llama-python PYTHON
        --openvino-python PYTHON [--rounds 7] [--only REGEX] [--target native]

FILES is made by `peer_files.py`; an engine whose interpreter is not given is left out. In every round a bandwidth
probe runs, then each engine measures each width a few times; a round's figure is the median of those, a cell the
median of the rounds with their range. llama.cpp and Outrider measure at exactly the cached length, OpenVINO around it:
its cache cannot be set back. `KL` is the error against float32 (`peer_error.py`). The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from peer_entries import Entry, chosen
from peer_error import errors, read_prompts
from peer_link import Worker, bandwidth_gbs, opened, places_of
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

WIDTHS = (1, 2, 4, 8, 12, 16)
SEQUENCES = 8
PREFILL = 512

Figures = dict[str, list[float]]
"""Measure -> one figure per round."""


def measure_once(worker: Worker, cached: int, count: int) -> dict[str, float]:
    """Milliseconds per pass by width and of the batch; tokens per second of the prefill."""
    found = {}
    for width in WIDTHS:
        seconds = worker.ask("passes", rows=width, cached=cached, count=count)
        found[f"T={width}"] = 1e3 * statistics.median(seconds)
    seconds = worker.ask("batch", sequences=SEQUENCES, cached=cached, count=count)
    if seconds:
        found[f"{SEQUENCES} x 1"] = 1e3 * statistics.median(seconds)
    found["prefill"] = PREFILL / statistics.median(worker.ask("prefill", tokens=PREFILL, count=2))
    return found


def measure(workers: Sequence[Worker], options: argparse.Namespace) -> tuple[dict[str, Figures], list[float]]:
    figures: dict[str, Figures] = {worker.entry.name: {} for worker in workers}
    probes = []
    for worker in workers:
        measure_once(worker, options.cached, 1)
    for number in range(options.rounds):
        probes.append(bandwidth_gbs(options.threads))
        print(f"round {number + 1} of {options.rounds}: {probes[-1]:.1f} GB/s", file=sys.stderr)
        for worker in workers:
            for measured, figure in measure_once(worker, options.cached, options.count).items():
                figures[worker.entry.name].setdefault(measured, []).append(figure)
    return figures, probes


def summary(figures: Figures) -> dict[str, Any]:
    """Every measure's middle, with the cost of 4 and 8 rows, and of the batch, as ratios round by round."""
    found: dict[str, Any] = {measured: middle(values) for measured, values in figures.items()}
    for measured in ("T=4", "T=8", f"{SEQUENCES} x 1"):
        if measured in figures:
            found[f"{measured} / T=1"] = middle([a / b for a, b in zip(figures[measured], figures["T=1"])])
    return found


def print_table(entries: Sequence[Entry], found: dict[str, dict[str, Any]], error: dict[str, Any]) -> None:
    columns = [f"T={width}" for width in WIDTHS]
    print_head(["class", "engine", *columns, "T8/T1", f"{SEQUENCES} x 1", f"prefill {PREFILL}, tokens/s"])
    for entry in entries:
        row = found[entry.name]
        cells = [entry.width, entry.name, *(shown(row[column], 1) for column in columns)]
        cells.append(f"{row['T=8 / T=1']['median']:.2f}")
        batch = row.get(f"{SEQUENCES} x 1")
        cells.append("" if batch is None else shown(batch, 1))
        cells.append(shown(row["prefill"], 0))
        print_row([*cells, *error_cells(entry, error)])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cached", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=5, help="passes per engine, width and round")
    options = parser.parse_args()
    places = places_of(options)
    entries = chosen(list(places.pythons), options.only)
    error = {}
    if options.error_tokens:
        error = errors(entries, places, [row["ids"] for row in read_prompts()], options.error_tokens)
    facts = machine()
    with opened(entries, places) as workers:
        figures, probes = measure(workers, options)
    found = {name: summary(values) for name, values in figures.items()}
    print_table(entries, found, error)
    print_bandwidth("before each round", probes)
    result = {
        "cached": options.cached,
        "figures": found,
        "rounds": figures,
        "error": error,
        "settings": settings_of(entries, places),
        "bandwidth_gbs": probes,
    }
    print_result(facts, options, result)


if __name__ == "__main__":
    main()
