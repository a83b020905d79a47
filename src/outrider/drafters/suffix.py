"""`SuffixDrafter`: goes on with what followed the end of the text where it occurred before, by counts."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from outrider.core.records import Budget, Context, Draft, RoundResult
from outrider.drafters.builder import DraftBuilder
from outrider.drafters.suffix_automaton import Guess, Match, SuffixAutomaton
from outrider.drafters.suffix_corpus import SuffixCorpus
from outrider.errors import ConfigError
from outrider.models.row_costs import RowCosts

# Best on greedy texts of SmolLM2-135M where a drafted row costs 4 % of a pass; the optimum is flat in both.
_DOUBT = 2.5  # times that a context of one token is taken to have been followed by something unseen
_OFFSET = 4  # tokens that a draft may be deeper than its match times the factor

_COSTS = RowCosts.linear(0.04)
_SURE = 0.9  # shorter contexts are not asked about a guess this likely
_SIBLINGS = 16  # followers of a context that a tree chooses from


class SuffixDrafter:
    """Suffix decoding (SuffixDecoding 2411.04975, SAM-Decoding 2411.10666) over the text of each request.

    Every context that ends the text, from `max_tree_depth` tokens down to one, guesses what followed it most often.
    The likeliest guess is drafted and the next one made below it, while the estimated chance that the whole path is
    kept is at least `min_token_prob`; of all these as many are drafted as promise most tokens per cost of the pass
    (`costs`). A draft goes at most `max_spec_factor` tokens deep per token of its match, and four deeper. With `topk`
    above 1 and a budget of more nodes than levels it is a tree, grown best first. All tokens are point masses.

    A request drafts from its own prompt and output alone, or, with a corpus that is `shared`, also from what ended
    requests wrote, not from their prompts: an output is taken in when its request is forgotten. Of the drafts from its
    own text and from theirs the one with more expected tokens is proposed.

    Below a given chain it matches on the text with that chain; a given tree it leaves alone. Work per round is
    O(new tokens + drafted tokens). Memory is at most `suffix_automaton.BYTES_PER_TOKEN` for each token of the open
    requests and of at most `SuffixCorpus.most_tokens` shared ones. Raises `ConfigError`.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, *, max_tree_depth: int = 24, max_spec_factor: float = 1.0, min_token_prob: float = 0.1,
                 topk: int = 1, shared: SuffixCorpus | None = None, costs: RowCosts = _COSTS) -> None:  # fmt: skip
        for name, count in (("suffix_decoding_max_tree_depth", max_tree_depth), ("topk", topk)):
            if count < 1:
                raise ConfigError(f"{name} must be at least 1, not {count}")
        if max_spec_factor < 0 or not 0 <= min_token_prob <= 1:
            raise ConfigError(
                f"suffix_decoding_max_spec_factor {max_spec_factor} must be at least 0, and "
                f"suffix_decoding_min_token_prob {min_token_prob} between 0 and 1"
            )
        self._longest, self._topk = max_tree_depth, topk
        self._factor, self._floor, self._costs = max_spec_factor, min_token_prob, costs
        self._texts: dict[int, SuffixAutomaton] = {}
        self._written: dict[int, list[int]] = {}
        self._shared = shared

    @property
    def memory_bytes(self) -> int:
        """Bytes held for the open requests and the shared outputs, within a few percent."""
        own = sum(text.memory_bytes for text in self._texts.values())
        if self._shared is None:
            return own
        return own + sum(map(sys.getsizeof, self._written.values())) + self._shared.memory_bytes

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The text is read when a draft is asked for."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        return [self._extended(*job) for job in zip(contexts, budgets, drafts)]

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Notes what is written, where outputs are shared; the text is read when a draft is asked for."""
        if self._shared is not None:
            for result in results:
                self._written.setdefault(result.sequence_id, []).extend(result.emitted)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """The new sequence reads its own text, the shared part of it too."""

    def forget(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)
        written = self._written.pop(sequence_id, None)
        if self._shared is not None and written is not None:
            self._shared.add(written)

    def _extended(self, context: Context, budget: Budget, draft: Draft) -> Draft:
        builder = DraftBuilder(draft, budget)
        if builder.start is None:
            return draft
        branches = self._topk > 1 and budget.nodes > budget.depth
        best = _Plan((), (), ())
        for text, match in self._matches(context, draft.nodes.tokens):
            depth = min(int(self._factor * text.followed(match).length) + _OFFSET, budget.depth - len(draft))
            if branches:
                plan = self._tree(text, match, depth, builder.room)
            else:
                plan = self._chain(text, match, depth)
            best = max(best, plan, key=lambda plan: plan.expected)
        rows = [builder.start]
        count = self._costs.worthwhile(best.chances, rows=1 + len(draft))
        for token, parent in zip(best.tokens[:count], best.parents):
            row = builder.child(rows[parent], token)
            if row is None:
                break
            rows.append(row)
        return builder.draft()

    def _matches(self, context: Context, drafted: Sequence[int]) -> Iterator[tuple[SuffixAutomaton, Match]]:
        """The end of the text with what is drafted, in the text itself and in what others wrote."""
        text = self._texts.get(context.sequence_id)
        if text is None:
            text = self._texts[context.sequence_id] = SuffixAutomaton(self._longest)
        text.read(context.tokens[text.tokens_read :])
        match = text.end
        for token in drafted:
            match = text.after(match, token)
        yield text, match
        if self._shared is not None:
            tail = [*context.tokens[-self._longest :], *drafted]
            yield from ((others, others.find(tail)) for others in self._shared)

    def _chain(self, text: SuffixAutomaton, match: Match, depth: int) -> _Plan:
        """The likeliest token, then the likeliest below it, and so on."""
        tokens: list[int] = []
        chances: list[float] = []
        chance = 1.0
        while len(tokens) < depth:
            token, share = _likeliest(text, match)
            chance *= share
            if token is None or chance < self._floor:
                break
            tokens.append(token)
            chances.append(chance)
            match = text.after(match, token)
        return _Plan(tuple(tokens), tuple(range(len(tokens))), tuple(chances))

    def _tree(self, text: SuffixAutomaton, match: Match, depth: int, room: int) -> _Plan:
        """The likeliest nodes first, whatever their depth; each node with its `topk` likeliest children."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        queue: list[tuple[float, int, int, int, Match, int]] = []
        order = itertools.count()  # of equal chances the first found goes first
        row, chance, level = 0, 1.0, 0
        while len(tokens) < room:
            if level < depth:
                for token, share in _shares(text, match, self._topk):
                    if chance * share >= self._floor:
                        heapq.heappush(queue, (-chance * share, next(order), row, token, match, level + 1))
            if not queue:
                break
            worth, _, parent, token, match, level = heapq.heappop(queue)
            match = text.after(match, token)
            tokens.append(token)
            parents.append(parent)
            row, chance = len(tokens), -worth
            chances.append(chance)
        return _Plan(tuple(tokens), tuple(parents), tuple(chances))


class _Plan(NamedTuple):
    """Tokens to draft: `parents[i]` is 0 for where the draft starts, j + 1 for the j-th of the tokens."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    chances: tuple[float, ...]  # that each of them is kept, all above it included

    @property
    def expected(self) -> float:
        """How many of them will be kept."""
        return sum(self.chances)


def _chance(guess: Guess) -> float:
    """The chance that a guess is right: its share of what followed, less where little did or the context is short."""
    return guess.times / (guess.total + _DOUBT / guess.length)


def _likeliest(text: SuffixAutomaton, match: Match) -> tuple[int | None, float]:
    """The likeliest follower of the match and its chance to be right; None where nothing ever followed."""
    likeliest, highest = None, 0.0
    for guess in text.guesses(match):
        chance = _chance(guess)
        if chance > highest:
            likeliest, highest = guess.token, chance
            if chance > _SURE:
                break
    return likeliest, highest


def _shares(text: SuffixAutomaton, match: Match, most: int) -> list[tuple[int, float]]:
    """The likeliest followers of the match, likeliest first, each with its chance to be right."""
    chances: dict[int, float] = {}
    for guess in text.children(match, _SIBLINGS):
        chances[guess.token] = max(_chance(guess), chances.get(guess.token, 0.0))
    shares, left = [], 1.0
    for token in sorted(chances, key=lambda token: -chances[token])[:most]:
        shares.append((token, chances[token] * left))  # a sibling counts where those before it are wrong
        left -= shares[-1][1]
    return shares
