"""What a pass of a loaded model costs, and what the machine under it could do: both measured, never looked up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import Context, Draft
from outrider.errors import ConfigError
from outrider.models.native import NativeDecoder
from outrider.models.native_library import library

_SEQUENCE = 2**62  # an id of its own, so that no other sequence of the target is touched
_PROBE_BYTES = 256 << 20  # well past every cache
_PROBE_SIDE = 1024
_PROBE_RUNS = 5


@dataclass(frozen=True)
class Rates:
    """What the machine reaches with the threads and the arithmetic of a target."""

    bandwidth_gbs: float  # GB read from memory per second
    product_gflops: float  # 1e9 operations per second, a multiply-add counted as two


def row_costs(
    target: TargetModel, widths: Sequence[int], *, cached: int = 256, repeats: int = 11
) -> dict[int, float]:
    """Median milliseconds of a score of T rows, by T, after `cached` tokens (fewer where the context is shorter).

    The widths take turns, so that a disturbance of the machine strikes all of them. Opens and releases a sequence of
    its own. Raises `ConfigError` for a model whose context holds no such pass.
    """
    limit = target.max_length
    if limit is not None:
        cached = min(cached, limit - max(widths) - 1)
    if cached < 1:
        raise ConfigError(f"the model's context of {limit} tokens is too short for {max(widths)} rows")
    tokens = torch.randint(
        target.vocab_size, (cached + max(widths),), generator=torch.Generator().manual_seed(0)
    ).tolist()
    context = Context.of(tokens[: cached + 1], sequence_id=_SEQUENCE)
    drafts = {width: Draft.chain(tokens[cached + 1 : cached + width]) for width in widths}
    spent: dict[int, list[float]] = {width: [] for width in widths}
    try:
        target.extend([Chunk(_SEQUENCE, tokens[:cached])])
        for turn in range(repeats + 1):  # the first turn warms up
            for width, draft in drafts.items():
                begin = time.perf_counter()
                target.score([context], [draft])
                if turn:
                    spent[width].append(time.perf_counter() - begin)
    finally:
        target.release(_SEQUENCE)
    return {width: 1e3 * statistics.median(seconds) for width, seconds in spent.items()}


def rates_of(target: TargetModel) -> Rates:
    """Probes the machine with the target's own threads and arithmetic: by the compiled decoder, or by torch."""
    if isinstance(target, NativeDecoder):
        setup, opened = target.setup, library()
        read = opened.read_rate(setup.isa, setup.threads)
        return Rates(read / 1e9, opened.product_rate(setup.isa, setup.activations, setup.threads) / 1e9)
    dtype = getattr(target, "dtype", torch.float32)
    memory = torch.ones(_PROBE_BYTES // 4, dtype=torch.float32)
    factor = torch.ones(_PROBE_SIDE, _PROBE_SIDE, dtype=dtype)
    read = _PROBE_BYTES / _fastest(memory.sum)
    return Rates(read / 1e9, 2 * _PROBE_SIDE**3 / _fastest(lambda: factor @ factor) / 1e9)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs, the first not counted."""
    work()
    seconds = []
    for _ in range(_PROBE_RUNS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
