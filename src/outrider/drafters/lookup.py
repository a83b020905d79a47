"""`NgramDrafter`: copies what followed the last tokens when they occurred before (prompt lookup)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Mapping, Sequence

import torch

from outrider.core.law import POINT_MASS
from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.drafters.values import GivenChains, NodeValues
from outrider.errors import ConfigError
from outrider.models.row_costs import RowCosts

_FREE = RowCosts.linear(0.0)
_LARGEST, _FAR = 5, 1  # n-grams of this size and more, and places from this on, are told apart no further
_PRIORS: Mapping[Hashable, float] = {
    **{(size, 0): chance for size, chance in enumerate((0.35, 0.48, 0.48, 0.6, 0.78), start=1)},
    **{(size, 1): chance for size, chance in enumerate((0.6, 0.7, 0.72, 0.72, 0.93), start=1)},
}
"""How often a copied token was right where the one before it was: SmolLM2, answers to 72 Spec-Bench questions."""


class NgramDrafter:
    """Prompt lookup decoding (Saxena 2023): finds the last n tokens earlier in the text and copies on.

    The longest n that occurs wins (`max_ngram` down to `min_ngram`), and of its occurrences the most recent
    that something follows. A copy that reaches the end of the text goes on with what it has copied itself,
    since the match then says that the text repeats. With `costs` it goes on as long as it promises more tokens per
    cost of the pass, by how far copies held in this text so far. All drafted tokens are point masses.

    Below a given chain it matches on the text with that chain; a given tree it leaves alone. Work per round
    is O(new tokens + copied tokens), memory one entry per position and n. Raises `ConfigError` on an empty
    range.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, min_ngram: int = 2, max_ngram: int = 5, costs: RowCosts = _FREE) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ConfigError(
                f"prompt_lookup_min {min_ngram} and prompt_lookup_max {max_ngram}: need 1 <= min <= max"
            )
        self._sizes = tuple(range(max_ngram, min_ngram - 1, -1))
        self._costs = costs
        self._copiers: dict[int, _Copier] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The text is read when a draft is asked for."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [self._extended(*job) for job in zip(contexts, budgets, drafts)]

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts how far copies held; the text is read when a draft is asked for."""
        for result in results:
            copier = self._copiers.get(result.sequence_id)
            if copier is not None:
                copier.observe(result)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The new sequence reads its own text, the shared part of it too."""

    def forget(self, sequence_id: int) -> None:
        self._copiers.pop(sequence_id, None)

    def _extended(self, context: Context, budget: Budget, draft: Draft) -> Draft:
        room = min(budget.depth, budget.nodes) - len(draft)
        if room <= 0 or not draft.nodes.is_chain:
            return draft
        copier = self._copiers.get(context.sequence_id)
        if copier is None:
            copier = self._copiers[context.sequence_id] = _Copier(_Index(self._sizes))
        copied = copier.copied(context.tokens, draft.nodes.tokens, room, self._costs)
        if not copied:
            return draft
        if not len(draft):
            return Draft.chain(copied)
        laws = [groups[0].law for groups in draft.groups[:-1]]
        return Draft.chain((*draft.nodes.tokens, *copied), laws + [POINT_MASS] * len(copied))


class _Copier:
    """One text's index, and how often copies held, by the size of the match before them and the place in the copy."""

    def __init__(self, index: _Index) -> None:
        self._index = index
        self._values = NodeValues(_PRIORS)
        self._expected: tuple[int, ...] = ()  # the copy last found, whole, behind what it was given
        self._start = 0
        self._size = 0
        self._given = GivenChains()

    def copied(self, tokens: Sequence[int], drafted: Sequence[int], room: int, costs: RowCosts) -> list[int]:
        """What follows the last occurrence of the end of `tokens + drafted`, as far as it is worth its rows."""
        self._index.catch_up(tokens)
        self._size, copied = self._index.continuation(tokens, drafted, room)
        self._expected, self._start = (*drafted, *copied), len(drafted)
        above = self._given.chance(len(drafted))
        steps = (self._values.chance(self._kind(place)) for place in range(len(copied)))
        chances = list(itertools.accumulate(steps, operator.mul, initial=above))[1:]
        promised, rows = 1.0 + len(drafted) * above, 1 + len(drafted)
        return copied[: costs.worthwhile(chances, promised=promised, rows=rows)]

    def observe(self, result: RoundResult) -> None:
        """How far the copy would have held, drafted or not: so it is tried again once it holds."""
        self._given.observe(result, self._start)
        for place, (token, emitted) in enumerate(zip(self._expected, result.emitted)):
            if place >= self._start:
                self._values.count(self._kind(place - self._start), kept=token == emitted)
            if token != emitted:
                break
        self._expected, self._start = (), 0

    def _kind(self, place: int) -> tuple[int, int]:
        return min(self._size, _LARGEST), min(place, _FAR)


class _Index:
    """Where each n-gram of one text ended last, among the ends that a token follows."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._last_end: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in sizes}
        self._indexed = 0  # n-grams that end before this position are in

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Takes in the n-grams that have got a follower since the last call."""
        stop, longest = len(tokens) - 1, next(iter(self._last_end))
        start = max(0, self._indexed - longest + 1)
        recent = tokens[start:stop]
        for size, ends in self._last_end.items():
            for end in range(max(self._indexed - start, size - 1), stop - start):
                ends[tuple(recent[end - size + 1 : end + 1])] = start + end
        self._indexed = max(self._indexed, stop)

    def continuation(self, tokens: Sequence[int], drafted: Sequence[int], room: int) -> tuple[int, list[int]]:
        """Up to `room` tokens that follow the last occurrence of the end of `tokens + drafted`, or none.

        Before them the size of the n-gram that was found, 0 for none.
        """
        longest = next(iter(self._last_end))
        tail = [*tokens[max(0, len(tokens) - 2 * longest) :], *drafted]
        offset = len(tokens) + len(drafted) - len(tail)
        for size, ends in self._last_end.items():
            if size >= len(tail):
                continue
            key = tail[-size:]
            end = self._end_in_draft(tail, key, len(drafted), offset)
            if end is None:
                end = ends.get(tuple(key))
            if end is not None:
                return size, _copied(tokens, drafted, end + 1, room)
        return 0, []

    @staticmethod
    def _end_in_draft(tail: list[int], key: list[int], drafted: int, offset: int) -> int | None:
        """The last end of `key` among the positions that only the draft gives a follower."""
        for end in range(len(tail) - 2, len(tail) - 2 - drafted, -1):
            if end + 1 >= len(key) and tail[end + 1 - len(key) : end + 1] == key:
                return offset + end
        return None


def _copied(tokens: Sequence[int], drafted: Sequence[int], start: int, room: int) -> list[int]:
    """`room` tokens from `start` on, repeating what lies between there and the end when it is short."""
    copied = [*tokens[start : start + room], *drafted[max(0, start - len(tokens)) :]][:room]
    period = len(copied)
    return [copied[place % period] for place in range(room)]
