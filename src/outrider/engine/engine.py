"""The engine: admits requests, prefills their prompts, runs rounds over what is running, frees what is done."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from outrider.core.protocols import Chunk, Drafter, TargetModel
from outrider.core.records import Request, RoundResult
from outrider.core.round import run_round
from outrider.core.rules import RuleBook
from outrider.core.sequence import Sequence, TextTracker
from outrider.engine.controller import Controller

PREFILL_CHUNK = 512
"""Prompt tokens cached per forward: bounds the memory of a long prompt."""


@dataclass(frozen=True)
class Parts:
    """What an engine joins: one target, one drafter, the rules and the controller."""

    target: TargetModel
    drafter: Drafter
    rules: RuleBook
    controller: Controller
    num_spec_tokens: int = 0


class Engine:
    """Batched rounds, first come first served. Aborts take effect between rounds.

    Threads take turns, a round each: `turn` is held by whoever works on the target or reads what a round may change.
    """

    def __init__(self, parts: Parts, *, max_batch: int = 16) -> None:
        self._parts = parts
        self._max_batch = max_batch
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._dropped: deque[Sequence] = deque()
        self.turn = threading.RLock()

    @property
    def unfinished(self) -> int:
        """Requests that run or wait."""
        with self.turn:
            self._abort_dropped()
            return len(self._waiting) + len(self._running)

    def submit(self, request: Request, tracker: TextTracker | None = None) -> Sequence:
        """Queues a request; its `Sequence` fills as `step` is called. `request_id` must be new."""
        sequence = Sequence(request, max_length=self._parts.target.max_length,
                            num_spec_tokens=self._parts.num_spec_tokens, tracker=tracker)  # fmt: skip
        self._waiting.append(sequence)
        return sequence

    def step(self) -> list[RoundResult]:
        """Admits what fits, then runs one round; empty when nothing is left to do."""
        with self.turn:
            self._abort_dropped()
            self._admit()
            return self._round() if self._running else []

    def _round(self) -> list[RoundResult]:
        wanted = self._parts.controller.budgets([s.context() for s in self._running], self.unfinished)
        budgets = [sequence.budget(budget) for sequence, budget in zip(self._running, wanted)]
        sequences, start = self._running, time.perf_counter()
        try:
            return run_round(
                self._parts.target, self._parts.drafter, self._parts.rules, self._running, budgets
            )
        except BaseException as error:
            for sequence in sequences:  # whose caches may be half-way through the round
                _end_by(error, sequence)
            raise
        finally:
            _add_round(sequences, time.perf_counter() - start)
            self._free_finished()

    def abort(self, sequence: Sequence) -> None:
        """Ends one request and frees its caches; what it has emitted stays. Finished requests are left alone."""
        with self.turn:
            if sequence.finish_reason is not None:
                return
            sequence.abort()
            if sequence in self._waiting:
                self._waiting.remove(sequence)
            self._free_finished()

    def drop(self, sequence: Sequence) -> None:
        """Aborts a request before the next round. Safe at any moment, a garbage collection inside a round included."""
        self._dropped.append(sequence)

    def _abort_dropped(self) -> None:
        while self._dropped:
            self.abort(self._dropped.popleft())

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            sequence = self._waiting.popleft()
            self._running.append(sequence)
            try:
                if not self._fork_of_sibling(sequence):
                    self._prefill(sequence)
            except BaseException as error:
                _end_by(error, sequence)
                self._free_finished()
                raise

    def _prefill(self, sequence: Sequence) -> None:
        """Caches all of the prompt but its last token, which stays pending."""
        context, begin = sequence.context(), time.perf_counter()
        certain = context.tokens[:-1]
        for start in range(0, max(1, len(certain)), PREFILL_CHUNK):  # one token opens its sequence too
            chunk = Chunk(sequence.sequence_id, certain[start : start + PREFILL_CHUNK])
            [features] = self._parts.target.extend([chunk])
            self._parts.drafter.ingest(context, features)
        sequence.timings = dataclasses.replace(sequence.timings, prefill_seconds=time.perf_counter() - begin)

    def _fork_of_sibling(self, sequence: Sequence) -> bool:
        """Shares the prompt's cache of a running request with an equal prompt, such as the choices of n > 1."""
        length = len(sequence.request.prompt) - 1
        for other in self._running[:-1]:
            if length and other.request.prompt == sequence.request.prompt:
                self._parts.target.fork(other.sequence_id, sequence.sequence_id, length)
                self._parts.drafter.fork(other.sequence_id, sequence.sequence_id, length)
                return True
        return False

    def _free_finished(self) -> None:
        for sequence in self._running:
            if sequence.finish_reason is not None:
                self._parts.target.release(sequence.sequence_id)
                self._parts.drafter.forget(sequence.sequence_id)
        self._running = [sequence for sequence in self._running if sequence.finish_reason is None]


def _end_by(error: BaseException, sequence: Sequence) -> None:
    """Ends a request that an exception caught in its work; an error is its own, an interruption an abort."""
    if isinstance(error, Exception):
        sequence.fail(RuntimeError(f"the model failed while this text was written: {error!r}"))
    else:
        sequence.abort()


def _add_round(sequences: Seq[Sequence], seconds: float) -> None:
    for sequence in sequences:
        timings = sequence.timings
        sequence.timings = dataclasses.replace(timings, decode_seconds=timings.decode_seconds + seconds)


def run_to_end(engine: Engine, sequences: Seq[Sequence]) -> None:
    """Steps until all of `sequences` are finished; an interruption aborts those of them that are not."""
    try:
        while any(sequence.finish_reason is None for sequence in sequences):
            engine.step()
    finally:
        for sequence in sequences:
            engine.abort(sequence)
