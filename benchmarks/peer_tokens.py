"""Token ids that every engine measures alike: a fixed series, so that no engine gets friendlier input than another."""

from __future__ import annotations

END = 2
"""The end-of-text id of SmolLM2, for which the prompts were encoded."""


def series(count: int, start: int = 0) -> list[int]:
    """`count` token ids between 1,000 and 40,000 without repeats of any length an n-gram lookup could use."""
    return [1_000 + (start + i) * 7_919 % 39_000 for i in range(count)]
