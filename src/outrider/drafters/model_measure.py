"""How often a draft model's greedy guesses are kept on texts of its target, in one pass of the draft model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import Context, Draft
from outrider.drafters.calibration import CalibrationText
from outrider.drafters.head_measure import STEPS, Kept

_SEQUENCES = 2**62 + 2**21  # ids of their own, so that no other sequence of the draft model is touched


def fits(draft: TargetModel, text: CalibrationText) -> bool:
    """Whether the draft model can read a text."""
    return max(text.tokens) < draft.vocab_size and (
        draft.max_length is None or len(text.tokens) <= draft.max_length
    )


def kept_by_model(
    draft: TargetModel, texts: Sequence[CalibrationText], token_map: Sequence[int] | None
) -> Kept:
    """How many of 3 guesses are kept, for each pending token of the answers, [places].

    Guess j of pending position t is the likeliest token of the row at t + j, so one pass over a text tells them all.
    `token_map`: the target's token of each column of a row; None where they are equal.
    """
    kept: list[npt.NDArray[np.int64]] = []
    for index, text in enumerate(texts):
        best = _best_tokens(draft, text, _SEQUENCES + index)
        if token_map is not None:
            best = np.asarray(token_map, dtype=np.int64)[best]
        hits = best == np.array(text.tokens[1:])  # [tokens - 1] of row t about token t + 1
        pending = np.arange(text.start - 1, len(text.tokens) - STEPS)
        chains = hits[pending[:, None] + np.arange(STEPS)]  # [places, STEPS]
        kept.append(chains.astype(np.int64).cumprod(axis=1).sum(axis=1))
    return np.concatenate(kept)


def _best_tokens(draft: TargetModel, text: CalibrationText, sequence_id: int) -> npt.NDArray[np.int64]:
    """The likeliest column of every row but the last."""
    try:
        draft.extend([Chunk(sequence_id, ())])
        context = Context.of(text.tokens[:1], sequence_id=sequence_id)
        [scores] = draft.score([context], [Draft.chain(text.tokens[1:-1])])
        best: npt.NDArray[np.int64] = scores.logits.argmax(dim=-1).cpu().numpy()
        return best
    finally:
        draft.release(sequence_id)
