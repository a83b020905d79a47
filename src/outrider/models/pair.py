"""Do a target and a draft model share a vocabulary? Compared token by token, padding told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Vocabulary = Sequence[str | None] | Mapping[str, int]
"""Tokens in the order of their ids (None where an id has none), or ids by token."""


@dataclass(frozen=True)
class PairVerdict:
    """`padded`: every token agrees, and the models differ in rows that no token uses.

    `first_difference` names the lowest id that differs, with both tokens; for a padded pair, the sizes.
    """

    verdict: Literal["compatible", "padded", "incompatible"]
    first_difference: str | None


def compare_vocabularies(
    target: Vocabulary, draft: Vocabulary, target_size: int, draft_size: int
) -> PairVerdict:
    """Compares the tokenizers' vocabularies; the sizes are the rows of the models' logits.

    A token that only one side has is a difference unless the other model has no row for it: then it is never
    drafted, or never scored.
    """
    theirs, ours = _by_id(draft), _by_id(target)
    for token_id in range(min(target_size, draft_size)):
        expected, found = ours.get(token_id), theirs.get(token_id)
        if expected != found:
            return PairVerdict(
                "incompatible", f"id {token_id} is {expected!r} in the target, {found!r} in the draft"
            )
    if target_size == draft_size:
        return PairVerdict("compatible", None)
    return PairVerdict(
        "padded", f"the target has {target_size} rows, the draft {draft_size}; all shared ids agree"
    )


def _by_id(vocabulary: Vocabulary) -> dict[int, str]:
    if isinstance(vocabulary, Mapping):
        return {token_id: token for token, token_id in vocabulary.items()}
    return {token_id: token for token_id, token in enumerate(vocabulary) if token is not None}
