"""How far the laws of every engine are from Outrider's in float32, so that no speed stands without its error.

Positions: the texts that the reference writes after the prompts of the comparison, each engine fed the same ids.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from peer_entries import Entry, outrider
from peer_link import Places, Worker, opened

Floats = npt.NDArray[np.floating[Any]]

REFERENCE = replace(outrider("float32", "float32", "auto"), name="reference: outrider float32")


def read_prompts() -> list[dict[str, Any]]:
    """The prompts with their ids, from the folder that OUTRIDER_PROMPTS names."""
    rows: list[dict[str, Any]] = json.loads(
        (Path(os.environ["OUTRIDER_PROMPTS"]) / "peer_prompts.json").read_text()
    )
    return rows


def errors(
    entries: Sequence[Entry], places: Places, prompts: Sequence[Sequence[int]], tokens: int
) -> dict[str, Any]:
    """For every entry the mean KL from the reference in nats, the share of equal best tokens, and the positions."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, opened([REFERENCE], places) as [reference]:
        files = [Path(folder) / f"{number}.npy" for number in range(len(prompts))]
        texts = [reference.ask("write", ids=ids, tokens=tokens, lookup=None)[0] for ids in prompts]
        tasks = [([*ids, *text[:-1]], len(ids) - 1, file) for ids, text, file in zip(prompts, texts, files)]
        for ids, first, file in tasks:
            reference.ask("rows", ids=ids, first=first, path=str(file))
        for entry in entries:
            with opened([entry], places) as [worker]:
                found[entry.name] = _error(worker, tasks, Path(folder) / "own.npy")
    return found


def _error(worker: Worker, tasks: Sequence[tuple[list[int], int, Path]], own: Path) -> dict[str, float]:
    nats, same = [], []
    for ids, first, file in tasks:
        worker.ask("rows", ids=ids, first=first, path=str(own))
        expected, logits = np.load(file), np.load(own)  # [positions, vocab]
        log_p, log_q = _log_softmax(expected), _log_softmax(logits)
        nats += (np.exp(log_p) * (log_p - log_q)).sum(axis=1).tolist()
        same += (expected.argmax(axis=1) == logits.argmax(axis=1)).tolist()
    return {"kl_nats": statistics.fmean(nats), "top1": statistics.fmean(same), "positions": len(nats)}


def _log_softmax(logits: Floats) -> Floats:  # [n, vocab]
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_law: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_law
