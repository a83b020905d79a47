"""`TargetLaw`: the law after every logits processor, at any node, with the node's own history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.largest import kth_largest
from outrider.core.law import Floats, NodeLaw
from outrider.core.processors import Processors
from outrider.core.sampling import SamplingParams
from outrider.core.scaled_row import ScaledRow
from outrider.core.token_map import AllTokens, Columns
from outrider.errors import ScoreError

Row = torch.Tensor | npt.NDArray[Any]  # [vocab]

_CHEAP_TO_SORT = 2048  # values
_BINS = 1024  # of the histogram that finds a nucleus in a flat law
_DISTINCT = 1e-290  # a smaller spread of values is a tie: their bins could not be told apart


class TargetLaw:
    """The law of one request at any node: what plain decoding would draw from after prompt + output + path.

    Order: bad_words, no_repeat_ngram -> min_tokens, logit_bias -> repetition, presence, frequency penalty
    -> temperature -> min_p -> top_k -> top_p. Supports are cut by value: every token tied with the last one
    kept stays. A function of the row and the tokens alone, bit for bit: one contiguous float64 row, reduced
    by NumPy on one thread in a fixed order. Work is done only when `node` is called.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        *,
        prompt: Sequence[int] = (),
        stop_ids: frozenset[int] = frozenset(),
        bad_word_ids: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        """`stop_ids`: EOS ids (none under ignore_eos); `sampling.stop_token_ids` are added to them."""
        self._sampling = sampling
        self._log = list(prompt)
        stop_ids = stop_ids | frozenset(sampling.stop_token_ids)
        self._processors = Processors(sampling, self._log, len(self._log), stop_ids, bad_word_ids)

    def append(self, tokens: Sequence[int]) -> None:
        """Output tokens that became certain. O(new tokens)."""
        self._log.extend(tokens)

    def node(self, row: Row, path: Sequence[int], columns: Columns | None = None) -> NodeLaw:
        """The law after prompt + output + `path`, from the raw logits there [columns]; `row` is not changed.

        `columns`: which tokens the row speaks of, None for all of them. The others have no chance; the law is the one
        of the same row with -inf for them.

        Without min_p, top_k and top_p the law reads the row only when it is asked; see `NodeLaw`.

        Raises `ScoreError` on a row with NaN or +inf, or one whose every token is masked; `ParameterError`
        when logit_bias names a token beyond the vocabulary.
        """
        raw = host_row(row)
        columns = AllTokens(raw.size) if columns is None else columns
        active = self._processors.active(path)
        if self._sampling.greedy and not active:
            best = int(raw.argmax())  # NaN wins an argmax, so one look at the winner finds it
            _check_peak(float(raw[best]))
            return _greedy(columns, best)
        peak = float(raw.max())
        _check_peak(peak)
        if active:
            raw = raw.astype(np.float64)
            self._processors.apply(raw, path, columns)
            peak = float(raw.max())
            _check_processed(peak)
        if self._sampling.greedy:
            return _greedy(columns, int(raw.argmax()))
        scaled = ScaledRow(raw, peak, self._sampling.temperature, columns.tokens)
        return _cut(scaled, self._sampling, columns.vocab_size)


def host_row(row: Row) -> npt.NDArray[Any]:  # [vocab] -> [vocab]
    """The row as a NumPy array on the host, sharing its memory where it can; half precision is widened."""
    row = on_host(row)
    assert row.ndim == 1, "one row of logits"
    return row


def on_host(rows: Row) -> npt.NDArray[Any]:
    """Logits of any shape as a NumPy array on the host, sharing their memory; half precision is widened."""
    if isinstance(rows, torch.Tensor):
        if rows.is_cpu and rows.dtype is torch.float32 and not rows.requires_grad:
            return rows.numpy()
        rows = rows.detach()
        if rows.dtype in (torch.bfloat16, torch.float16):
            rows = rows.float()
        return rows.cpu().numpy()
    return rows.astype(np.float32) if rows.dtype == np.float16 else rows


def _check_peak(peak: float) -> None:
    if math.isfinite(peak):
        return
    if math.isnan(peak):
        raise ScoreError("the target returned NaN logits: check its weights, or load it at a wider dtype")
    if peak > 0:
        raise ScoreError(
            "the target returned a logit of +inf: check its weights, or load it at a wider dtype"
        )
    raise ScoreError(
        "the target returned a row of -inf logits only: no token can be chosen; check its weights"
    )


def _check_processed(peak: float) -> None:
    if peak == -math.inf:
        raise ScoreError("every token is masked here: loosen bad_words, no_repeat_ngram_size or min_tokens")
    if not math.isfinite(peak):
        raise ScoreError("the penalties overflow the logits here: bring repetition_penalty nearer to 1.0")


def _greedy(columns: Columns, best: int) -> NodeLaw:
    token = best if columns.tokens is None else int(columns.tokens[best])
    return NodeLaw.of_support(columns.vocab_size, np.array([token], dtype=np.int64), np.zeros(1), greedy=True)


def _cut(row: ScaledRow, sampling: SamplingParams, vocab_size: int) -> NodeLaw:
    """Cuts the support by min_p, top_k and top_p. Each cut keeps the values at or above one of them, so the
    support is what the highest of the three floors leaves. Without a cut nothing is computed here."""
    floor = -math.inf if sampling.min_p == 0.0 else math.log(sampling.min_p)
    if sampling.top_k is not None and sampling.top_k < row.raw.size:
        floor = max(floor, row.scaled(kth_largest(row.raw, sampling.top_k)))  # scaling keeps the order
    if floor == -math.inf and sampling.top_p == 1.0:
        return NodeLaw(vocab_size, row)
    columns, logits = (None, row.all()) if floor == -math.inf else row.from_logit(floor)
    if sampling.top_p < 1.0:
        kept = np.flatnonzero(logits >= _nucleus_floor(logits, sampling.top_p))
        columns, logits = kept if columns is None else columns[kept], logits[kept]
    assert columns is not None
    return NodeLaw.of_support(vocab_size, row.ids(columns), logits)


def _nucleus_floor(logits: Floats, top_p: float) -> float:  # [n], maximum 0
    """The smallest value in the smallest set of largest values whose probability reaches `top_p`.

    Tokens too light to matter are dropped, then a histogram of the values narrows the search to the bin in
    which the probability reaches `top_p`, until what is left is cheap to sort.
    """
    total = float(np.exp(logits).sum())
    needed = top_p * total
    light = math.log((1.0 - top_p) * total / (2 * logits.size))  # all lighter ones weigh under 1 - top_p
    values = logits[np.flatnonzero(logits >= light)]
    above = 0.0  # the weight of values larger than all that are left
    while values.size > _CHEAP_TO_SORT and (spread := float(values.max() - values.min())) > _DISTINCT:
        distances = values.max() - values
        distances *= _BINS / spread
        places = distances.astype(np.int64)
        np.minimum(places, _BINS - 1, out=places)
        reached = above + np.cumsum(np.bincount(places, np.exp(values), minlength=_BINS))
        place = min(int(np.searchsorted(reached, needed)), _BINS - 1)
        above = float(reached[place - 1]) if place else above
        values = values[np.flatnonzero(places == place)]
    values = np.sort(values)[::-1]
    reached = above + np.cumsum(np.exp(values))
    return float(values[min(int(np.searchsorted(reached, needed)), values.size - 1)])
