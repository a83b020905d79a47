"""What a caller gets: a text, and what was counted and measured while it was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of an emitted token under the raw model law, in nats, with the best alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Timings:
    """Measured seconds of one request: reading its prompt, and the rounds it took part in."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class Completion:
    """A text with everything a caller may ask about it; `finish_reason` is None while it is being written."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    seed: int
    guarantee: str
    stats: SpeculationStats
    prompt_tokens: int
    timings: Timings = Timings()
    logprobs: tuple[TokenLogprob, ...] | None = None
    from_draft: tuple[bool, ...] = ()
    choices: tuple[Completion, ...] = field(default=(), repr=False)
    error: str | None = None


@dataclass(frozen=True)
class SpeculationStats:
    """Counters of one request, or of many added up, with vLLM's meanings."""

    num_rounds: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_emitted_tokens: int = 0
    num_spec_tokens: int = 0
    acceptance_histogram: tuple[int, ...] = ()

    @property
    def mean_acceptance_length(self) -> float:
        return 1.0 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 1.0

    @property
    def tokens_per_pass(self) -> float:
        return self.num_emitted_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @staticmethod
    def total(parts: Sequence[SpeculationStats]) -> SpeculationStats:
        """The counters of several requests of one engine added up."""
        length = max((len(part.acceptance_histogram) for part in parts), default=0)
        histogram = [0] * length
        for part in parts:
            for accepted, count in enumerate(part.acceptance_histogram):
                histogram[accepted] += count
        return SpeculationStats(
            num_rounds=sum(part.num_rounds for part in parts),
            num_spec_steps=sum(part.num_spec_steps for part in parts),
            num_draft_tokens=sum(part.num_draft_tokens for part in parts),
            num_accepted_draft_tokens=sum(part.num_accepted_draft_tokens for part in parts),
            num_emitted_tokens=sum(part.num_emitted_tokens for part in parts),
            num_spec_tokens=max((part.num_spec_tokens for part in parts), default=0),
            acceptance_histogram=tuple(histogram),
        )
