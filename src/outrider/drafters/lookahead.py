"""`LookaheadDrafter`: the target guesses n-grams of its own text in parallel (lookahead decoding, 2402.02057)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from outrider.core.law import Ids, NodeLaw
from outrider.core.noise import Place
from outrider.core.records import Budget, Context, Draft, Guarantee, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.best_tokens import best_tokens
from outrider.drafters.builder import DraftBuilder
from outrider.drafters.ngram_pool import NgramPool
from outrider.errors import ConfigError

_RANKED = 32  # tokens of a row that compete under noise: they hold nearly all of the chance
_STRIDE = 7919  # a prime: successive positions read far-apart places of the text


class LookaheadDrafter:
    """Drafts a window of guesses, which are worked on, and candidates, which are hoped to be kept.

    *Window*: `window` columns of `ngram` - 1 levels; level l of column j guesses the token j + l places after the next.
    Level 0 is a spine below the pending token, each column a chain below its spine token. The target's answers to
    the columns' ends are the newest level: with the column above it an n-gram for the pool, and the guesses of the next
    round. *Candidates*: at most `candidates` continuations of the last token from the pool of n-grams, which also
    holds those of the prompt and the text, most recent first. Both are one tree, equal nodes one row; point masses all,
    so sampling stays exact.

    A round costs up to (ngram - 1) * (window + candidates) rows. A smaller budget keeps candidates first, then the
    columns that fit. Below a given chain only candidates hang, on its leaf; a given tree is left alone. With a `window`
    of 0 the best candidate alone is drafted, a chain, and the pool holds what the text itself showed. State is kept per
    request and shared with no other. Raises `ConfigError` on an n-gram below 2 tokens or an empty set of candidates.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, *, window: int = 5, ngram: int = 3, candidates: int = 4) -> None:
        for name, value, least in (("max_window_size", window, 0), ("max_ngram_size", ngram, 2),
                                   ("max_verification_set_size", candidates, 1)):  # fmt: skip
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")
        self._columns, self._levels = window, ngram - 1
        self._candidates, self._drafted = candidates, candidates if window else 1
        self._states: dict[int, _State] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The prompt is read when a draft is asked for."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [self._extended(*job) for job in zip(contexts, budgets, drafts)]

    def observe(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            state = self._states.get(result.sequence_id)
            if state is not None:
                state.observe(result)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The new sequence reads its own text; what the parent saw beyond it is not its to know."""

    def forget(self, sequence_id: int) -> None:
        self._states.pop(sequence_id, None)

    def _extended(self, context: Context, budget: Budget, draft: Draft) -> Draft:
        builder = DraftBuilder(draft, budget)
        if builder.start is None:
            return draft
        state = self._states.get(context.sequence_id)
        if state is None:
            pool = NgramPool(self._levels, self._candidates)
            state = self._states[context.sequence_id] = _State(pool, _Window(self._columns, self._levels))
        state.pool.read(context.tokens)
        last = draft.nodes.tokens[-1] if len(draft) else context.tokens[-1]
        for continuation in state.pool.after(last)[: self._drafted]:
            builder.chain(builder.start, continuation)
        state.asked = None
        if not len(draft):
            state.asked = context
            state.window.move_to(context, state.pool)
            state.window.plant(builder, budget.depth)
        return builder.draft()


class _State:
    """Pool and window of one request, and the round that the window was drafted for."""

    def __init__(self, pool: NgramPool, window: _Window) -> None:
        self.pool, self.window = pool, window
        self.asked: Context | None = None

    def observe(self, result: RoundResult) -> None:
        """Works on the window with the rows of its columns' ends; the logits are not needed after it."""
        context, self.asked = self.asked, None
        if context is None:
            return
        ends = list(self.window.ends(result.draft.nodes))
        if ends:
            for token, continuation in self.window.grow(_guesses(context, result, ends)):
                self.pool.add(token, continuation)


class _Window:
    """Columns of guesses: `columns[j][l]` guesses the token at position `start + j + l` of the text."""

    def __init__(self, width: int, levels: int) -> None:
        self._width, self._most = width, levels
        self._levels = 1  # so far: a window starts with one and gains one per round
        self._start = 0
        self._columns: list[list[int]] = []

    def move_to(self, context: Context, pool: NgramPool) -> None:
        """Drops the columns of positions that are certain now, and fills up at the far end.

        A new column holds what the pool has after the spine's last token, or else tokens from somewhere in the text.
        """
        tokens = context.tokens
        del self._columns[: len(tokens) - self._start]
        self._start = len(tokens)
        while len(self._columns) < self._width:
            last = self._columns[-1][0] if self._columns else tokens[-1]
            found = next(iter(pool.after(last)), None)
            if found is None:
                place = (self._start + len(self._columns)) * _STRIDE
                found = tuple(tokens[(place + level) % len(tokens)] for level in range(self._levels))
            self._columns.append(list(found[: self._levels]))

    def plant(self, builder: DraftBuilder, depth: int) -> None:
        """Drafts the spine, and below each of its tokens the rest of its column, as far as whole columns fit."""
        fitting = min(builder.room // self._levels, depth - self._levels + 1)
        spine = 0
        for column in self._columns[: max(0, fitting)]:
            below = builder.child(spine, column[0])
            assert below is not None, "the budget holds every fitting column"
            builder.chain(below, column[1:])
            spine = below

    def ends(self, nodes: TokenTree) -> Iterator[int]:
        """Rows of the last levels, column by column, up to the first column that was not drafted whole."""
        spine: int | None = 0
        for column in self._columns:
            spine = _child(nodes, spine, column[0])
            end = spine
            for token in column[1:]:
                end = _child(nodes, end, token)
            if end is None:
                return
            yield end

    def grow(self, guesses: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Adds the newest level; once all levels are there, drops the oldest and returns the n-grams it began.

        Columns without a guess are dropped.
        """
        del self._columns[len(guesses) :]
        for column, guess in zip(self._columns, guesses):
            column.append(guess)
        if self._levels < self._most:
            self._levels += 1
            return []
        self._start += 1
        return [(column.pop(0), tuple(column)) for column in self._columns]


def _child(nodes: TokenTree, row: int | None, token: int) -> int | None:
    """The row of the child of `row` with this token."""
    if row is None:
        return None
    return next((node + 1 for node in nodes.children[row] if nodes.tokens[node] == token), None)


def _guesses(context: Context, result: RoundResult, rows: Sequence[int]) -> list[int]:
    """What the text would hold after each row, up to the first row that holds no numbers.

    The best token; where the text follows noise, the best under the noise of its position, among a row's few best
    tokens: the whole law of the row would cost more than the guess is worth.
    """
    sampling = context.sampling
    noisy = context.guarantee is Guarantee.SAME_TEXT and not sampling.greedy
    count = min(_RANKED, sampling.top_k or _RANKED) if noisy else 1
    ids, logits = best_tokens(result.scores.logits[list(rows)], count)
    guesses: list[int] = []
    for row, tokens, values in zip(rows, ids, logits):
        if not np.isfinite(values.max()):
            break
        place = Place(result.draft.nodes.depths[row - 1], row)
        guesses.append(_noisy_best(context, place, tokens, values) if noisy else int(tokens[0]))
    return guesses


def _noisy_best(context: Context, place: Place, tokens: Ids, logits: npt.NDArray[np.floating]) -> int:
    """The best of these tokens, given best first, at the request's temperature and under its noise."""
    order = np.argsort(tokens)
    scaled = (logits - logits[0])[order].astype(np.float64) / context.sampling.temperature
    law = NodeLaw.of_support(int(tokens.max()) + 1, tokens[order], scaled)  # of these tokens alone
    return context.noise.ranked(law, 1, place)[0]
