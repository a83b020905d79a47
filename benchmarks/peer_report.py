"""What both comparisons with peers share: their arguments, and how figures, errors and the machine are reported."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_entries import Entry
from peer_link import Places, add_arguments

Figure = dict[str, float]


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of both comparisons."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument(
        "--error-tokens", type=int, default=64, help="tokens per prompt for the error; 0: no error"
    )
    return parser


def middle(values: Sequence[float]) -> Figure:
    """The median with the range, as every figure is reported."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def shown(figure: Figure, digits: int) -> str:
    return f"{figure['median']:.{digits}f} ({figure['low']:.{digits}f}–{figure['high']:.{digits}f})"


def error_cells(entry: Entry, error: dict[str, Any]) -> list[str]:
    """The last two cells of an entry's row: no speed stands without its error. Empty where none was measured."""
    wrong = error.get(entry.name)
    return ["", ""] if wrong is None else [f"{wrong['kl_nats']:.5f}", f"{wrong['top1']:.3f}"]


def print_head(columns: Sequence[str]) -> None:
    """The head of a table whose rows end with `error_cells`."""
    print_row([*columns, "KL, nats", "top-1"])
    print("|" + "---|" * (len(columns) + 2))


def print_row(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cells) + " |")


def print_bandwidth(when: str, probes: Sequence[float]) -> None:
    print(f"\nRead bandwidth {when}, GB/s: {', '.join(f'{probe:.1f}' for probe in probes)}\n", flush=True)


def settings_of(entries: Sequence[Entry], places: Places) -> dict[str, Any]:
    """What each entry was loaded with."""
    return {entry.name: {"class": entry.width, **places.settings_of(entry)} for entry in entries}


def machine() -> dict[str, Any]:
    """What a figure needs beside it: processor, cores, system, load, and the commit of the code."""
    info = Path("/proc/cpuinfo")
    names = [n.split(":")[1].strip() for n in info.read_text().splitlines() if n.startswith("model name")]
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "commit": commit.stdout.strip(),
        "load": os.getloadavg()[0],
    }


def print_result(facts: dict[str, Any], options: argparse.Namespace, result: dict[str, Any]) -> None:
    """The last line: one JSON object. `facts`: the `machine` as it was before the first figure."""
    print(json.dumps({"machine": facts, "threads": options.threads, **result}))
