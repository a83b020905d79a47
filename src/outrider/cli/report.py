"""The JSON that commands print: field names of vLLM, OpenAI and llama.cpp."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from outrider.core.completion import Completion, SpeculationStats, TokenLogprob
    from outrider.core.protocols import TargetModel
    from outrider.llm import LLM


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON object on stdout, ASCII only, so that no terminal or locale can break it."""
    click.echo(json.dumps(content, allow_nan=False))


def placement(target: TargetModel) -> dict[str, Any]:
    """Which implementation runs a model, in what precision and where; None for what it does not have."""
    from outrider.models.placement import placement_of

    return asdict(placement_of(target))


def items(values: Mapping[str, Any]) -> Iterator[str]:
    """The facts of a group in words, those of a group within it under its name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from (f"{name} {item}" for item in items(value))
        elif value not in (None, []):
            yield f"{name} {value}"


@dataclass(frozen=True)
class Totals:
    """A completion's counts and seconds; those of all choices together when there are several."""

    written: int
    prefill_seconds: float
    decode_seconds: float
    stats: SpeculationStats

    @staticmethod
    def of(completion: Completion) -> Totals:
        """Choices are written in shared rounds, so the longest of them took the whole time."""
        from outrider.core.completion import SpeculationStats

        choices = completion.choices or (completion,)
        return Totals(
            written=sum(len(choice.token_ids) for choice in choices),
            prefill_seconds=sum(choice.timings.prefill_seconds for choice in choices),
            decode_seconds=max(choice.timings.decode_seconds for choice in choices),
            stats=SpeculationStats.total([choice.stats for choice in choices]),
        )

    @property
    def tokens_per_second(self) -> float:
        """Written tokens per second of decoding."""
        return self.written / self.decode_seconds if self.decode_seconds else 0.0


def completion_report(llm: LLM, completion: Completion) -> dict[str, Any]:
    """Text, usage, counters and timings of a completion; usage and what follows count all choices."""
    totals = Totals.of(completion)
    plain = llm.config.methods == ("none",)
    report: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "guarantee": completion.guarantee,
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": totals.written,
            "total_tokens": completion.prompt_tokens + totals.written,
        },
        "metrics": {"speculative_decoding": None if plain else counters(totals.stats)},
        "timings": _timings(completion, totals),
    }
    if completion.logprobs is not None:
        report["logprobs"] = _logprobs(llm, completion.logprobs)
    if completion.choices:
        report["choices"] = [_choice(llm, i, choice) for i, choice in enumerate(completion.choices)]
    return report


def counters(stats: SpeculationStats) -> dict[str, Any]:
    """The speculation counters by name."""
    return {
        "num_rounds": stats.num_rounds,
        "num_spec_steps": stats.num_spec_steps,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_draft_tokens": stats.num_accepted_draft_tokens,
        "num_spec_tokens": stats.num_spec_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "tokens_per_pass": stats.tokens_per_pass,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_histogram": list(stats.acceptance_histogram),
    }


def _timings(completion: Completion, totals: Totals) -> dict[str, Any]:
    """llama.cpp's timings: reading the prompt apart from writing the text."""
    return {
        "prompt_n": completion.prompt_tokens,
        "prompt_ms": totals.prefill_seconds * 1e3,
        "predicted_n": totals.written,
        "predicted_ms": totals.decode_seconds * 1e3,
        "predicted_per_second": totals.tokens_per_second,
        "draft_n": totals.stats.num_draft_tokens,
        "draft_n_accepted": totals.stats.num_accepted_draft_tokens,
    }


def _choice(llm: LLM, index: int, choice: Completion) -> dict[str, Any]:
    report: dict[str, Any] = {
        "index": index,
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "seed": choice.seed,
    }
    if choice.logprobs is not None:
        report["logprobs"] = _logprobs(llm, choice.logprobs)
    return report


def _logprobs(llm: LLM, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's shape, with the token ids beside the texts."""
    return {
        "content": [
            {
                **_entry(llm, item.token_id, item.logprob),
                "top_logprobs": [_entry(llm, token_id, logprob) for token_id, logprob in item.top],
            }
            for item in logprobs
        ]
    }


def _entry(llm: LLM, token_id: int, logprob: float) -> dict[str, Any]:
    text = llm.tokenizer.decode([token_id], skip_special_tokens=False)
    return {"token": text, "token_id": token_id, "logprob": logprob if math.isfinite(logprob) else None}
