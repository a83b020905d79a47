"""`ScriptedDrafter`: drafts the text that each sequence will write, with a chosen share of errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from outrider.core.law import POINT_MASS, Law
from outrider.core.noise import uniform
from outrider.core.records import Budget, Context, Draft, Group, RoundResult
from outrider.core.tree import TokenTree

Script = Mapping[int, Sequence[int]] | Callable[[Context], Sequence[int]]
"""The whole text, prompt included, by sequence id or found from the context."""

Claim = Callable[[tuple[int, ...]], Law]
"""The law that siblings, in drawing order, are said to come from."""


def point_masses(siblings: tuple[int, ...]) -> Law:
    """The honest claim: these tokens were chosen without chance."""
    return POINT_MASS


class ScriptedDrafter:
    """Drafts the next tokens of a known text, so that tests of exactness have drafts that do get accepted.

    At a share `corrupted` of the positions (which ones depends on the seed and the position alone) every
    drafted token is wrong. With `width` above 1 each level has that many siblings, the right one at a place
    that varies; the next level hangs below it. `claim` attaches laws other than point masses, one group per
    level: true only if the caller's script was drawn from them.

    Below a given chain it goes on where the chain ends; a given tree it leaves alone. Past the end of the
    text it drafts nothing.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, text_of: Script, *, vocab_size: int, corrupted: float = 0.0, seed: int = 0,
                 width: int = 1, claim: Claim = point_masses) -> None:  # fmt: skip
        assert 0.0 <= corrupted <= 1.0, f"corrupted is a share, not {corrupted}"
        assert 1 <= width < vocab_size, f"width {width} leaves no wrong token among {vocab_size}"
        self._text_of, self._vocab_size = text_of, vocab_size
        self._corrupted, self._seed, self._width, self._claim = corrupted, seed, width, claim
        self._texts: dict[int, Sequence[int]] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """Needs nothing of the prompt."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [self._extended(*job) for job in zip(contexts, budgets, drafts)]

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Needs nothing of what became certain."""

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The new sequence looks its own text up."""

    def forget(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)

    def siblings(self, position: int, right: int) -> tuple[int, ...]:
        """The tokens drafted at an absolute position where the text has the token `right`."""
        corrupt, spot, start = uniform(self._seed, position, np.arange(3), purpose=0)
        first = int(start * self._vocab_size)
        walk = ((first + step) % self._vocab_size for step in range(self._width + 1))
        wrong = tuple(token for token in walk if token != right)[: self._width]
        if corrupt < self._corrupted:
            return wrong
        place = int(spot * self._width)
        return (*wrong[:place], right, *wrong[place : self._width - 1])

    def _text(self, context: Context) -> Sequence[int]:
        text = self._texts.get(context.sequence_id)
        if text is None:
            known = self._text_of
            text = known(context) if callable(known) else known.get(context.sequence_id, ())
            self._texts[context.sequence_id] = text
        return text

    def _extended(self, context: Context, budget: Budget, draft: Draft) -> Draft:
        if not draft.nodes.is_chain:
            return draft
        text = self._text(context)
        tokens, parents, groups = list(draft.nodes.tokens), list(draft.nodes.parents), list(draft.groups[:-1])
        parent = len(tokens) - 1 if tokens else None
        start = len(context.tokens)
        for position in range(start + len(draft), min(start + budget.depth, len(text))):
            siblings = self.siblings(position, text[position])[: budget.nodes - len(tokens)]
            if not siblings:
                break
            first = len(tokens)
            groups += [()] * (0 if parent is None else parent + 1 - len(groups))
            groups.append((Group(self._claim(siblings), tuple(range(first, first + len(siblings)))),))
            tokens += siblings
            parents += [parent] * len(siblings)
            parent = first + (siblings.index(text[position]) if text[position] in siblings else 0)
        if len(tokens) == len(draft):
            return draft
        groups += [()] * (len(tokens) + 1 - len(groups))
        return Draft(TokenTree(tuple(tokens), tuple(parents)), tuple(groups))
