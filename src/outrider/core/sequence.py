"""`Sequence`: one request in progress, and the only place where tokens become certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.core.completion import SpeculationStats, Timings, TokenLogprob
from outrider.core.law import NodeLaw
from outrider.core.logprobs import token_logprob
from outrider.core.noise import RoundNoise
from outrider.core.protocols import Laws
from outrider.core.records import (
    Budget,
    Context,
    Draft,
    FinishReason,
    Request,
    RoundResult,
    Scores,
    TokenView,
    Verdict,
)
from outrider.core.target_law import TargetLaw
from outrider.errors import ScoreError


class TextTracker(Protocol):
    """Follows the text of the emitted tokens: stop strings, and what is safe to show."""

    def append(self, token_id: int) -> bool:
        """Adds a token; True when it completes a stop string."""

    def append_stop_token(self, token_id: int) -> None:
        """Adds a token that ends the text and is not shown."""

    def delta(self) -> str:
        """New text since the last call that no later token can change or withdraw."""

    def finish(self) -> None:
        """Ends the text: what was held back belongs to it and to the next `delta`."""

    @property
    def text(self) -> str:
        """The text so far, trimmed at the stop string."""


class TokensOnly:
    """A `TextTracker` for callers without a tokenizer: no text, no stop strings."""

    text = ""

    def append(self, token_id: int) -> bool:
        return False

    def append_stop_token(self, token_id: int) -> None:
        pass

    def delta(self) -> str:
        return ""

    def finish(self) -> None:
        pass


@dataclass(frozen=True)
class Piece:
    """One emitted token, the text it released, and whether a drafter had guessed it."""

    token_id: int
    text: str
    from_draft: bool


class Sequence:
    """State of one request between rounds: its token log, its law's history, its text, its counters."""

    def __init__(self, request: Request, *, max_length: int | None, num_spec_tokens: int = 0,
                 tracker: TextTracker | None = None) -> None:  # fmt: skip
        assert request.prompt, "a prompt holds at least one token"
        assert max_length is None or len(request.prompt) < max_length, "the prompt leaves room for a token"
        sampling = request.sampling
        self._stop_ids = request.ending_ids | frozenset(sampling.stop_token_ids)
        self.request = request
        self.pieces: list[Piece] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.timings = Timings()
        self.law = TargetLaw(
            sampling, prompt=request.prompt, stop_ids=request.ending_ids, bad_word_ids=request.bad_word_ids
        )
        self._tracker = tracker or TokensOnly()
        self._log = list(request.prompt)
        self._length_cap = len(request.prompt) + sampling.max_tokens
        if max_length is not None:
            self._length_cap = min(self._length_cap, max_length)
        self._counters = _Counters(num_spec_tokens)

    @property
    def sequence_id(self) -> int:
        return self.request.request_id

    @property
    def text(self) -> str:
        return self._tracker.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The emitted tokens, the stop token included."""
        return tuple(self._log[len(self.request.prompt) :])

    @property
    def stats(self) -> SpeculationStats:
        return self._counters.stats()

    def context(self) -> Context:
        """What is certain now; valid until the next `append`."""
        length = len(self._log)
        noise = RoundNoise(self.request.seed, length)
        view = TokenView(self._log, length)
        return Context(self.sequence_id, view, self.request.sampling, noise, self.request.guarantee, self.law)

    def budget(self, wanted: Budget) -> Budget:
        """`wanted`, cut to the tokens left (the last one needs no guess) and to what the request allows."""
        depth = min(wanted.depth, self._length_cap - len(self._log) - 1)
        depth = self.request.sampling.speculation.cap(depth)
        return Budget(depth, wanted.nodes) if depth > 0 and wanted.nodes > 0 else Budget(0, 0)

    def laws(self, draft: Draft, scores: Scores) -> Laws:
        """The target law per row, computed when first asked for and kept for the round."""
        known: dict[int, NodeLaw] = {}

        def at(row: int) -> NodeLaw:
            if row not in known:
                path = draft.nodes.path_tokens(row - 1) if row else ()
                known[row] = self.law.node(scores.logits[row], path)
            return known[row]

        return at

    def append(self, draft: Draft, verdict: Verdict, scores: Scores) -> RoundResult:
        """Makes the verdict's tokens certain, up to the first that ends the text."""
        wanted = [draft.nodes.tokens[node] for node in verdict.accepted]
        if verdict.next_token is not None:
            wanted.append(verdict.next_token)
        rows = (0, *(node + 1 for node in verdict.accepted))
        top = self.request.sampling.logprobs
        emitted: list[int] = []
        for index, token in enumerate(wanted):
            if top is not None:
                self.logprobs.append(token_logprob(scores.logits[rows[index]], token, top))
            emitted.append(token)
            self._emit(token, from_draft=index < len(verdict.accepted))
            if self.finish_reason is not None:
                break
        self.law.append(emitted)
        if verdict.next_token is None and self.finish_reason is None:
            self._fail_at(scores.logits[rows[-1]])
        accepted = verdict.accepted[: len(emitted)]
        self._counters.add(draft, len(accepted), len(emitted))
        features = scores.features
        if features is not None:
            features = _picked(features, rows[: len(accepted) + 1])
        return RoundResult(
            self.sequence_id, tuple(emitted), accepted, draft, scores, self.finish_reason, features
        )

    def fail(self, error: Exception) -> None:
        """Ends this request; what it has emitted stays, its neighbours go on. Finished requests are left alone."""
        if self.finish_reason is None:
            self.error = str(error)
            self.abort()

    def _fail_at(self, row: torch.Tensor) -> None:  # [vocab]
        """Fails with the reason why this row, which the text now needs, has no law."""
        try:
            self.law.node(row, ())
        except ScoreError as error:
            self.fail(error)
        assert self.finish_reason is not None, "a row that had no law has one now"

    def abort(self) -> None:
        """Ends the request between rounds; what is certain stays."""
        if self.finish_reason is None:
            self._finish(FinishReason.ABORT)

    def _emit(self, token: int, *, from_draft: bool) -> None:
        self._log.append(token)
        reason: FinishReason | None = None
        if token in self._stop_ids:
            self._tracker.append_stop_token(token)
            reason = FinishReason.STOP
        elif self._tracker.append(token):
            reason = FinishReason.STOP
        elif len(self._log) >= self._length_cap:
            reason = FinishReason.LENGTH
        self.pieces.append(Piece(token, self._tracker.delta(), from_draft))
        if reason is not None:
            self._finish(reason)

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self._tracker.finish()
        rest = self._tracker.delta()
        if rest and self.pieces:
            last = self.pieces[-1]
            self.pieces[-1] = Piece(last.token_id, last.text + rest, last.from_draft)


def _picked(features: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
    """Some rows of features; of a chain the first ones, without a copy."""
    count = len(rows)
    return features[:count] if rows[-1] == count - 1 else features[list(rows)]


class _Counters:
    """Counts of one request; `stats()` freezes them."""

    def __init__(self, num_spec_tokens: int) -> None:
        self._num_spec_tokens = num_spec_tokens
        self._rounds = self._steps = self._drafted = self._accepted = self._emitted = 0
        self._histogram = [0] * (num_spec_tokens + 1)  # bounded by SpeculativeConfig

    def add(self, draft: Draft, accepted: int, emitted: int) -> None:
        self._rounds += 1
        self._emitted += emitted
        if len(draft):
            self._steps += 1
            self._drafted += len(draft)
            self._accepted += accepted
            self._histogram += [0] * (accepted + 1 - len(self._histogram))
            self._histogram[accepted] += 1

    def stats(self) -> SpeculationStats:
        return SpeculationStats(self._rounds, self._steps, self._drafted, self._accepted, self._emitted,
                                self._num_spec_tokens, tuple(self._histogram))  # fmt: skip
