"""Outrider as an engine of `peer_worker`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from peer_tokens import series

from outrider import LLM, SamplingParams
from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft


class OutriderEngine:
    """Settings: `target`, `dtype`, `threads`, and `activations` where the target takes them."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        self._llm = LLM(model, **settings)
        self._speculative: dict[int, LLM] = {}

    def passes(self, rows: int, cached: int, count: int) -> list[float]:
        context = Context.of(series(cached + 1))
        return self._scores([context], [Draft.chain(series(rows - 1, cached + 1))], count)

    def batch(self, sequences: int, cached: int, count: int) -> list[float]:
        contexts = [Context.of(series(cached + 1, 31 * i), sequence_id=i) for i in range(sequences)]
        return self._scores(contexts, [Draft.chain([])] * sequences, count)

    def prefill(self, tokens: int, count: int) -> list[float]:
        target, context, seconds = self._llm.target, Context.of(series(tokens)), []
        for _ in range(count):
            start = time.perf_counter()
            target.extend([Chunk(0, context.tokens[:-1])])
            target.score([context], [Draft.chain([])])
            seconds.append(time.perf_counter() - start)
            target.release(0)
        return seconds

    def write(self, ids: list[int], tokens: int, lookup: int | None) -> tuple[list[int], float]:
        llm = self._llm if lookup is None else self._with_lookup(lookup)
        start = time.perf_counter()
        [done] = llm.generate(ids, SamplingParams(temperature=0.0, max_tokens=tokens))
        return list(done.token_ids), time.perf_counter() - start

    def rows(self, ids: list[int], first: int, path: str) -> None:
        np.save(path, self._llm.logits(ids)[first:].numpy())

    def _with_lookup(self, lookup: int) -> LLM:
        if lookup not in self._speculative:
            config = {"method": "ngram", "num_speculative_tokens": lookup}
            self._speculative[lookup] = self._llm.with_speculation(config)
        return self._speculative[lookup]

    def _scores(self, contexts: list[Context], drafts: list[Draft], count: int) -> list[float]:
        """Seconds of `count` passes that leave the caches as they were, after one that is not counted."""
        target, seconds = self._llm.target, []
        target.extend([Chunk(context.sequence_id, context.tokens[:-1]) for context in contexts])
        for _ in range(count + 1):
            start = time.perf_counter()
            target.score(contexts, drafts)
            seconds.append(time.perf_counter() - start)
        for context in contexts:
            target.release(context.sequence_id)
        return seconds[1:]
