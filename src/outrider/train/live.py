"""Live acceptance: held-out prompts decoded with the written draft, beside plain decoding and the offline count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.core.completion import Completion, SpeculationStats
from outrider.core.sampling import SamplingParams
from outrider.llm import LLM
from outrider.train.playback import cumulative_acceptance
from outrider.train.texts import Text

_ALONE = 8  # texts that are timed one at a time, in turn with plain decoding
AGREEMENT = 0.02
"""How far live and offline tokens per pass may be apart, as a share."""


@dataclass(frozen=True)
class Live:
    """What a draft came to in decoding at temperature 0."""

    stats: SpeculationStats  # of chains of full length, as those counted offline
    differing: int  # texts that are not those of plain decoding
    plain_seconds: float  # decoding of the timed texts
    drafted_seconds: float  # likewise, drafts cut to what is worth its cost, as they are by default

    @property
    def speed(self) -> float:
        """Times plain decoding, prefill apart."""
        return self.plain_seconds / self.drafted_seconds if self.drafted_seconds else 0.0

    def apart(self, offline: SpeculationStats) -> float:
        """How far live tokens per pass are from those counted offline, as a share."""
        return self.stats.tokens_per_pass / offline.tokens_per_pass - 1.0

    def figures(self, offline: SpeculationStats) -> Mapping[str, Any]:
        """For the provenance."""
        return {
            "tokens_per_pass": round(self.stats.tokens_per_pass, 4),
            "tokens_per_pass_offline": round(offline.tokens_per_pass, 4),
            "acceptance_by_position": [round(share, 4) for share in cumulative_acceptance(self.stats)],
            "speed_ratio": round(self.speed, 3),
            "differing_texts": self.differing,
        }


def measure_live(
    llm: LLM, method: str, draft: Path, texts: Sequence[Text], num_spec_tokens: int, most_new: int
) -> Live:
    """Decodes the prompts of `texts` (temperature 0) with chains of up to `num_spec_tokens` by the draft in a folder.

    Some are decoded alone, in turn with plain decoding, and timed.
    """
    speculation = {"method": method, "model": str(draft), "num_speculative_tokens": num_spec_tokens}
    # What the check at load would tell is measured here on more texts, by chains as long as those counted offline.
    counted = llm.with_speculation({**speculation, "check_draft": False, "cut_drafts": False})
    used = llm.with_speculation({**speculation, "check_draft": False})
    sampling = SamplingParams(temperature=0.0, max_tokens=most_new)
    plain_seconds = drafted_seconds = 0.0
    timed: list[Completion] = []
    for text in texts[:_ALONE]:
        [plain] = llm.generate([list(text.prompt)], sampling)
        [drafted] = used.generate([list(text.prompt)], sampling)
        plain_seconds += plain.timings.decode_seconds
        drafted_seconds += drafted.timings.decode_seconds
        timed.append(drafted)
    full = counted.generate([list(text.prompt) for text in texts], sampling)
    differing = {
        text.prompt for written in (timed, full) for text, one in zip(texts, written)
        if one.token_ids != text.answer
    }  # fmt: skip
    stats = SpeculationStats.total([one.stats for one in full])
    return Live(stats, len(differing), plain_seconds, drafted_seconds)
