"""Starts engines in processes of their own (`peer_worker`) and asks them one at a time."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peer_entries import Entry

WORKER = Path(__file__).with_name("peer_worker.py")
PAUSE = 0.05
"""Seconds before every question, in which the threads of the engine asked before stop spinning."""


@dataclass(frozen=True)
class Places:
    """Where the engines and their files lie, and how Outrider is loaded."""

    pythons: dict[str, str]  # engine -> interpreter
    folder: Path
    model: str
    target: str
    threads: int

    def model_of(self, entry: Entry) -> str:
        return self.model if entry.engine == "outrider" else str(self.folder / entry.file)

    def settings_of(self, entry: Entry) -> dict[str, Any]:
        own = {"target": self.target} if entry.engine == "outrider" else {}
        return {"threads": self.threads, **own, **entry.settings}


class Worker:
    """One engine with one model, loaded. Ends with its pipe; not safe to ask from two threads."""

    def __init__(self, entry: Entry, places: Places) -> None:
        self.entry = entry
        command = [places.pythons[entry.engine], str(WORKER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.ask(
            "open",
            engine=entry.engine,
            model=places.model_of(entry),
            settings=places.settings_of(entry),
        )

    def ask(self, call: str, **arguments: Any) -> Any:
        """The answer of the engine. Raises `RuntimeError` naming the entry where it fails or has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        time.sleep(PAUSE)
        self._process.stdin.write(json.dumps({"call": call, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.entry.name}: {call}: the process ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.entry.name}: {call}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def opened(entries: Sequence[Entry], places: Places) -> Iterator[list[Worker]]:
    """Workers for all entries, in order; all are ended on leaving."""
    workers: list[Worker] = []
    try:
        for entry in entries:
            print(f"loading {entry.name}", file=sys.stderr)
            workers.append(Worker(entry, places))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def bandwidth_gbs(threads: int) -> float:
    """Read bandwidth in GB/s: the best of five sums over 256 MB."""
    torch.set_num_threads(threads)
    block = torch.ones(1 << 26)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        block.sum()
        best = min(best, time.perf_counter() - start)
    return block.nbytes / best / 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that both comparisons share."""
    parser.add_argument("--models", type=Path, help="folder made by peer_files.py; needed for the peers")
    parser.add_argument("--llama-python", help="interpreter that has llama-cpp-python")
    parser.add_argument("--openvino-python", help="interpreter that has openvino-genai")
    parser.add_argument("--model", default="smollm2-135m", help="what Outrider loads")
    parser.add_argument("--target", default="native", help="the target of Outrider")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="regular expression: only entries whose class and name it finds")


def places_of(options: argparse.Namespace) -> Places:
    pythons = {
        "outrider": sys.executable,
        "llama.cpp": options.llama_python,
        "openvino": options.openvino_python,
    }
    known = {engine: python for engine, python in pythons.items() if python is not None}
    if len(known) > 1 and options.models is None:
        raise SystemExit("--models is missing: the folder with the files of the peers")
    return Places(known, options.models or Path(), options.model, options.target, options.threads)
