"""Log-probabilities of emitted tokens under the raw model law, before any processor."""

from __future__ import annotations

import math

import numpy as np

from outrider.core.completion import TokenLogprob
from outrider.core.largest import largest
from outrider.core.target_law import Row, host_row
from outrider.errors import ScoreError


def token_logprob(row: Row, token_id: int, top: int) -> TokenLogprob:
    """The log-probability in nats of `token_id` under softmax(row) [vocab], with the `top` best alternatives.

    Alternatives come best first, lowest id first on ties, and include the token itself where it is one of
    them. float64, one row at a time on one thread: the same bits for a row whatever it was computed beside.
    Raises `ScoreError` on a row with NaN or +inf, or of -inf alone.
    """
    logits = host_row(row).astype(np.float64)
    assert 0 <= token_id < logits.size, "an emitted token is in the vocabulary"
    peak = float(logits.max())
    if not math.isfinite(peak):
        raise ScoreError(
            f"no log-probabilities: the largest logit of a row is {peak}; check the target's weights"
        )
    logits -= peak  # first, so that a large peak does not swallow the logarithm
    log_total = math.log(float(np.exp(logits).sum()))
    best = tuple((int(token), float(logits[token]) - log_total) for token in largest(logits, top))
    return TokenLogprob(token_id, float(logits[token_id]) - log_total, best)
