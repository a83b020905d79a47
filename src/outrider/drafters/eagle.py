"""`EagleDrafter`: drafts with an EAGLE head on the target's own features, in chains and trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.growth import UNCUT, Growth, GrowthSettings, ScoreRows
from outrider.drafters.rows import DraftRows, DraftVocabulary
from outrider.models.head_cache import DraftHead, Entries, Guesses

_BACKLOG = 256  # features that may wait for a draft to be asked for; more are taken in at once


class EagleDrafter:
    """Drafts with `head`, which keeps a cache of certain entries per sequence.

    A feature exists once its token was scored: with the tokens x_0 .. x_m, x_m pending, those of x_0 .. x_(m-1) do.
    They wait until a draft is asked for, so that rounds without one cost nothing, or until there are more than 256.
    Below the pending token the head feeds on its own states; what it made of them is dropped after the round.

    A sequence that outgrows the head's positions (or `max_length`, where that is shorter), or holds a token beyond its
    vocabulary, is drafted for no longer; one whose features are not known, such as a text of a single token, is not
    drafted for in this round. `limits` counts such rounds by reason.
    """

    def __init__(self, head: DraftHead, *, target_vocab_size: int, topk: int = 1,
                 settings: GrowthSettings = UNCUT) -> None:  # fmt: skip
        self.head = head
        self.taps = head.taps
        self.limits: Counter[str] = Counter()
        self._window = settings.window(head.max_length)
        self._growth = Growth(target_vocab_size, topk, settings.sample_method, settings.costs)
        token_map = head.token_map
        self._vocabulary = None if token_map is None else DraftVocabulary(token_map, target_vocab_size)
        self._known: dict[int, _Known] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """Features of prompt tokens wait for the first draft, or are taken in when they are many."""
        known = self._known.setdefault(context.sequence_id, _Known())
        if self._window is not None and len(context.tokens) > self._window:
            self._close(context.sequence_id, known)
        if not known.closed:
            known.read(context)
            known.wait(features)
            self._take_in_long_backlogs([context.sequence_id])

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        allowed = [self._allowed(*job) for job in zip(contexts, budgets, drafts)]
        return self._growth.propose(contexts, allowed, drafts, self._ready)

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts which guesses were kept; features of what became certain wait for the next draft."""
        self._growth.observe(results)
        for result in results:
            known = self._known.get(result.sequence_id)
            if known is not None and not known.closed:
                known.append(result)
        self._take_in_long_backlogs([result.sequence_id for result in results])

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        parent = self._known.get(parent_id)
        if parent is None:
            return
        child = self._known[sequence_id] = parent.fork(length)
        if child.held:
            self.head.fork(parent_id, sequence_id, child.held)

    def forget(self, sequence_id: int) -> None:
        self._growth.forget(sequence_id)
        if self._known.pop(sequence_id, None) is not None:
            self.head.release(sequence_id)

    def _allowed(self, context: Context, budget: Budget, draft: Draft) -> Budget:
        """The budget within the head's positions; depth 0 where the head cannot, or need not, be asked."""
        known = self._known.setdefault(context.sequence_id, _Known())
        if not known.closed:
            known.read(context)
        depth, room = budget.depth, budget.nodes - len(draft)
        if not draft.nodes.is_chain or room <= 0 or len(draft) >= depth:
            return Budget(0, 0)
        if self._window is not None and len(context.tokens) >= self._window:
            return self._ended(context, known, "draft_context_window")
        if known.largest >= self.head.vocab_size:
            return self._ended(context, known, "draft_vocabulary")
        if known.closed or known.featured != len(context.tokens) - 1 or known.featured == 0:
            return self._skipped("draft_features")
        if max(draft.nodes.tokens, default=0) >= self.head.vocab_size:
            return self._skipped("draft_vocabulary")
        if self._window is not None:
            depth = min(depth, self._window - len(context.tokens))
        return Budget(depth, budget.nodes) if depth > len(draft) else self._skipped("draft_context_window")

    def _skipped(self, reason: str) -> Budget:
        self.limits[reason] += 1
        return Budget(0, 0)

    def _ended(self, context: Context, known: _Known, reason: str) -> Budget:
        self._close(context.sequence_id, known)
        return self._skipped(reason)

    def _close(self, sequence_id: int, known: _Known) -> None:
        known.close()
        self.head.release(sequence_id)

    def _take_in_long_backlogs(self, sequence_ids: Sequence[int]) -> None:
        long: list[Entries] = []
        for sequence_id in sequence_ids:
            known = self._known.get(sequence_id)
            if known is None or known.waited <= _BACKLOG:
                continue
            if known.lags or known.largest >= self.head.vocab_size:
                self._close(sequence_id, known)
            else:
                long.append(known.taken_in(sequence_id, known.made))
        if long:
            self.head.extend(long)

    def _ready(self, contexts: Sequence[Context]) -> ScoreRows:
        rows = self._rows_of([context.sequence_id for context in contexts])
        return lambda some, trees, wanted: self._scored(
            [rows[context.sequence_id] for context in some], trees, wanted
        )

    def _rows_of(self, sequence_ids: Sequence[int]) -> dict[int, _Rows]:
        """What each sequence has certain is taken in; the row of its pending token is known from then on."""
        known = [self._known[sequence_id] for sequence_id in sequence_ids]
        self.head.extend(
            [one.taken_in(i, min(one.made, one.featured - 1)) for i, one in zip(sequence_ids, known)]
        )
        return {i: _Rows(i, row) for i, row in zip(sequence_ids, self.head.pending_rows(sequence_ids))}

    def _scored(
        self, rows: Sequence[_Rows], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
    ) -> Sequence[torch.Tensor | DraftRows]:
        """The rows asked for; every node is guessed once, after its parent."""
        jobs = list(zip(rows, trees, wanted))
        while asked := [one for one, tree, some in jobs if one.lacks(tree, some)]:
            for one, found in zip(asked, self.head.guess([one.asked for one in asked])):
                one.add(found)
        answers = [one.wanted for one in rows]
        return answers if self._vocabulary is None else list(map(self._vocabulary.rows, answers))


@dataclass
class _Known:
    """A sequence as the drafter knows it. Features of the first `held` positions are the head's, others wait."""

    tokens: list[int] = field(default_factory=list)
    largest: int = 0  # of the tokens
    held: int = 0
    made: int = 0  # entries of the head that hold this text's tokens
    waiting: list[torch.Tensor] = field(default_factory=list)  # [n, taps, hidden] each
    waited: int = 0
    closed: bool = False

    @property
    def featured(self) -> int:
        """Positions whose features are known."""
        return self.held + self.waited

    @property
    def lags(self) -> bool:
        """Whether the token after the last feature is still unknown: in a fork, until its context was seen."""
        return len(self.tokens) <= self.featured

    def read(self, context: Context) -> None:
        self._learn(context.tokens[len(self.tokens) :])

    def wait(self, features: torch.Tensor | None) -> None:
        assert features is not None, "the target is tapped where the head reads"
        self.waiting = [*(part for part in self.waiting if len(part)), features]
        self.waited += len(features)

    def append(self, result: RoundResult) -> None:
        """A round's tokens and features; ignored where features before them were never shown."""
        if len(self.tokens) > self.featured + 1:
            return
        if not self.lags:
            self._learn(result.emitted)
        assert result.features is not None, "the target is tapped where the head reads"
        self.wait(result.features[: len(result.emitted)])

    def taken_in(self, sequence_id: int, start: int) -> Entries:
        """Entries from `start` on as the head shall make them, which holds all features from then on."""
        parts = [part for part in self.waiting if len(part)] or self.waiting
        features = parts[0] if len(parts) == 1 else torch.cat(parts)
        self.held = self.made = self.featured
        self.waiting, self.waited = [features[:0]], 0
        return Entries(sequence_id, start, self.tokens[start + 1 : self.held + 1], features)

    def fork(self, length: int) -> _Known:
        """The first `length` tokens. The last entry among them was made with a token that is the parent's own."""
        child = _Known(closed=self.closed or self.featured < length)
        if not child.closed and self.waiting:
            child._learn(self.tokens[:length])
            child.held = min(self.held, length)
            child.made = min(self.made, child.held, max(0, length - 1))
            child.wait(torch.cat(self.waiting)[: length - child.held])
        return child

    def close(self) -> None:
        self.closed, self.held, self.made = True, 0, 0
        self.waiting, self.waited = [], 0

    def _learn(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.largest = max(self.largest, *tokens) if tokens else self.largest


class _Rows:
    """Rows of one sequence in one round: the pending token's, then a guess's each, in the order they were made."""

    def __init__(self, sequence_id: int, pending: torch.Tensor) -> None:  # [draft vocab]
        self._sequence_id = sequence_id
        self._answers = [pending.unsqueeze(0)]  # of the head, one after the other
        self._count = 1  # of rows
        self._places: dict[tuple[int, ...], int] = {(): 0}  # tokens below the pending one -> row
        self._wanted: list[tuple[int, ...]] = []
        self._new: dict[tuple[int, ...], int] = {}  # the same -> row of the parent

    @property
    def asked(self) -> Guesses:
        """What `lacks` found."""
        tokens = tuple(path[-1] for path in self._new)
        return Guesses(self._sequence_id, tokens, tuple(self._new.values()))

    def lacks(self, tree: TokenTree, wanted: Sequence[int]) -> bool:
        """Looks for nodes on the way to rows asked for that have none while their parents do; whether there are any."""
        places, new = self._places, dict[tuple[int, ...], int]()
        self._wanted = [tree.path_tokens(row - 1 if row else None) for row in wanted]
        for path in self._wanted:
            if path not in places:
                while path[:-1] not in places:
                    path = path[:-1]
                new[path] = places[path[:-1]]
        self._new = new
        return bool(new)

    def add(self, found: torch.Tensor) -> None:  # [n, draft vocab]
        """The rows of what was asked for."""
        self._places |= zip(self._new, range(self._count, self._count + len(found)))
        self._answers.append(found)
        self._count += len(found)

    @property
    def wanted(self) -> torch.Tensor:  # [rows, draft vocab]
        """The rows last asked for, none of which is lacking."""
        rows = [self._places[path] for path in self._wanted]
        newest = self._answers[-1]
        if rows == [*range(self._count - len(newest), self._count)]:
            return newest  # as in every level that a drafter grows: nothing is copied
        return torch.cat(self._answers)[rows]
