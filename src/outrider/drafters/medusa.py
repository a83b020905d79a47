"""`MedusaDrafter`: drafts every depth at once from the hidden state of the newest cached token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from outrider.core.law import POINT_MASS, Drawn, DrawnWithoutReplacement, Law
from outrider.core.noise import Place
from outrider.core.records import Budget, Context, Draft, Guarantee, RoundResult
from outrider.drafters.asking import Asking
from outrider.drafters.growth import UNCUT, GrowthSettings, SampleMethod
from outrider.drafters.plant import Plant
from outrider.drafters.rank_tree import Ranks, likeliest_tree, node_chances
from outrider.drafters.rows import DraftVocabulary, HostRows, likeliest, siblings
from outrider.drafters.values import GivenChains, NodeValues
from outrider.errors import ConfigError, ScoreError

# How often a child was kept whose parent was, before a text has shown its own share. The paper's first head is right
# with its first rank in some 60 % of the places, with one of its first five in over 80 % (2401.10774, 2.1.2). Heads
# further on are right less often: at this rate the likeliest tree of 63 nodes keeps about 1.5 of them a pass, as
# others measured of the paper's (2503.01840, table 1: Vicuna 13B at temperature 0).
_FIRST, _NEXT_RANK, _NEXT_HEAD = 0.6, 0.25, 0.75


class Heads(Protocol):
    """Heads on one hidden state, as `MedusaHeads`: head i speaks of the token i + 2 places after the state's own."""

    @property
    def count(self) -> int:
        """How many heads there are."""

    @property
    def row_invariant(self) -> bool:
        """Whether the rows of a state are bitwise equal whatever states stand beside it."""

    @property
    def token_map(self) -> torch.Tensor | None:
        """The target's ids [draft vocab] of the columns of rows; None where column i is token i."""

    def __call__(self, states: torch.Tensor, count: int) -> torch.Tensor:
        """Logits [n, count, draft vocab] of the first `count` heads, from states [n, hidden]."""


class MedusaDrafter:
    """Drafts with Medusa heads (2401.10774); of a sequence it keeps one hidden state, and that of its prompt's end.

    Between rounds the newest state is that of the token before the pending one: the target's own head speaks of the
    pending token from it, so head i speaks of the token i + 1 places after the pending one, whatever is drafted in
    between. `tap` is the target's number of layers: the state before its final norm, which the heads apply.

    The shape of a tree is settled before any token is chosen, by the measured chance of each head's ranks in this
    text (`likeliest_tree`, `NodeValues`). Tokens come from the law of the request, with all its processors, applied
    to the head's row:
    * temperature 0 and `SampleMethod.GREEDY`: the most probable, point masses;
    * `same_text`: the best under the noise that the target will use (docs/exactness.md), point masses;
    * `same_distribution`: drawn from the law that the draft claims.

    A draft is no deeper than there are heads. There is none where the state is not known: behind a prompt of one token,
    and for one round after a fork at a place whose state was not kept; nor past `max_length` tokens. `limits` counts
    such rounds by reason. Raises `ConfigError` on a `topk` below 1.
    """

    def __init__(self, heads: Heads, *, tap: int, target_vocab_size: int, topk: int = 1,
                 settings: GrowthSettings = UNCUT) -> None:  # fmt: skip
        """One forward makes all of a draft's rows."""
        if topk < 1:
            raise ConfigError(f"topk must be at least 1, not {topk}")
        self.taps = (tap,)
        self.limits: Counter[str] = Counter()
        self._heads, self._window, self._costs = heads, settings.window(None), settings.costs
        self._vocab_size, self._topk, self._sample_method = target_vocab_size, topk, settings.sample_method
        token_map = heads.token_map
        self._vocabulary = None if token_map is None else DraftVocabulary(token_map, target_vocab_size)
        self._priors: dict[Hashable, float] = {
            (depth, rank): _FIRST * _NEXT_HEAD**depth * _NEXT_RANK**rank
            for depth in range(heads.count)
            for rank in range(topk)
        }
        self._known: dict[int, _Known] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        assert features is not None, "the target is tapped before its final norm"
        known = self._of(context.sequence_id)
        if len(features):
            known.newest = known.prompt = _Read(known.newest.length + len(features), features[-1, 0].clone())

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        grown = list(drafts)
        allowed = [self._allowed(*job) for job in zip(contexts, budgets, drafts)]
        shapes = [self._shape(*job) for job in zip(contexts, allowed, drafts)]
        asked = [i for i, shape in enumerate(shapes) if shape]
        rows = self._rows([contexts[i] for i in asked], [allowed[i].depth for i in asked])
        for i, logits in zip(asked, rows):
            known = self._of(contexts[i].sequence_id)
            plant = Plant(contexts[i], allowed[i], drafts[i], known.given.chance(known.below))
            self._grow(plant, logits, shapes[i])
            grown[i], known.kinds = plant.draft(), plant.kinds
            known.asking.grown(plant, self._costs, levels=1)
        return grown

    def observe(self, results: Sequence[RoundResult]) -> None:
        for result in results:
            assert result.features is not None, "the target is tapped before its final norm"
            known = self._of(result.sequence_id)
            kept = len(result.kept)  # their features follow that of the token that was pending
            known.newest = _Read(known.newest.length + 1 + kept, result.features[kept, 0].clone())
            known.given.observe(result, known.below)
            known.asking.observe(result)
            known.values.observe(result, known.kinds)
            known.kinds, known.below = {}, 0

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        parent = self._known.get(parent_id) or _Known(NodeValues({}))
        seen = next(
            (read for read in (parent.newest, parent.prompt) if read.length == length), _Read(length, None)
        )
        self._known[sequence_id] = _Known(NodeValues(self._priors), seen, seen)

    def forget(self, sequence_id: int) -> None:
        self._known.pop(sequence_id, None)

    def _of(self, sequence_id: int) -> _Known:
        known = self._known.get(sequence_id)
        if known is None:
            known = self._known[sequence_id] = _Known(NodeValues(self._priors))
        return known

    def _allowed(self, context: Context, budget: Budget, draft: Draft) -> Budget:
        """The budget as far as the heads reach; depth 0 where they cannot, or need not, be asked."""
        known = self._of(context.sequence_id)
        known.kinds, known.below = {}, 0
        depth = min(budget.depth, self._heads.count)
        if not draft.nodes.is_chain or budget.nodes <= len(draft) or depth <= len(draft):
            return Budget(0, 0)
        if self._window is not None:
            depth = min(depth, self._window - len(context.tokens))
        if depth <= len(draft):
            return self._skipped("draft_context_window")
        if known.newest.state is None:
            return self._skipped("draft_features")
        assert known.newest.length == len(context.tokens) - 1, "every round is observed"
        return Budget(depth, budget.nodes)

    def _skipped(self, reason: str) -> Budget:
        self.limits[reason] += 1
        return Budget(0, 0)

    def _rows(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[HostRows]:
        """The rows of each sequence, one per depth, the same in any batch."""
        states = [self._of(context.sequence_id).newest.known() for context in contexts]
        with torch.no_grad():
            if states and self._heads.row_invariant:
                found = list(self._heads(torch.stack(states), max(depths)))
            else:
                found = [self._heads(state[None], depth)[0] for state, depth in zip(states, depths)]
        known = found if self._vocabulary is None else map(self._vocabulary.rows, found)
        return [HostRows.of(rows, self._vocab_size) for rows in known]

    def _shape(self, context: Context, budget: Budget, draft: Draft) -> Mapping[Ranks, int]:
        """The likeliest tree below a given chain, as large as it is worth; empty where there is no room."""
        if budget.depth == 0:
            return {}
        known, start = self._of(context.sequence_id), len(draft)
        if not (self._costs.free or known.asking.asks(start)):
            return {}
        known.below = start
        above = known.given.chance(start)
        heads = range(start, budget.depth)
        chances = [[known.values.chance((head, rank)) for rank in range(self._topk)] for head in heads]
        largest = likeliest_tree(chances, budget.nodes - start)
        worth = self._costs.rows.worthwhile(
            [above * chance for chance in node_chances(largest, chances)],
            promised=1.0 + start * above, rows=1 + start, sunk=self._costs.sunk(1),
        )  # fmt: skip
        return likeliest_tree(chances, worth)

    def _grow(self, plant: Plant, rows: HostRows, shape: Mapping[Ranks, int]) -> None:
        level: list[tuple[Ranks, int]] = [((), plant.frontier[0])]
        while level:
            below: list[tuple[Ranks, int]] = []
            for ranks, row in level:
                head = plant.depths[row]
                tokens, law = self._children(plant, row, rows, shape[ranks])
                kinds = [(head, rank) for rank in range(len(tokens))]
                plant.add(row, tokens, law, [0.0] * len(tokens), kinds)
                new_rows = plant.frontier[len(plant.frontier) - len(tokens) :]
                below += [
                    ((*ranks, rank), new) for rank, new in enumerate(new_rows) if (*ranks, rank) in shape
                ]
            level = below

    def _children(self, plant: Plant, row: int, rows: HostRows, count: int) -> tuple[Sequence[int], Law]:
        """`count` tokens below a row by the logits of its depth; fewer where the law holds fewer."""
        context, head = plant.context, plant.depths[row]
        try:
            law = context.law.node(rows.logits[head], plant.path_tokens(row), rows.columns)
        except ScoreError:
            return (), POINT_MASS  # the target decides here
        if law.greedy:
            best = law.token(0)
            others = siblings(rows, head, best, count - 1).tolist() if count > 1 else ()
            return (best, *map(rows.token, others)), POINT_MASS
        if self._sample_method is SampleMethod.GREEDY:
            return [law.token(index) for index in likeliest(law.logits, count).tolist()], POINT_MASS
        place = Place(head, row)
        if context.guarantee is Guarantee.SAME_TEXT:
            return context.noise.ranked(law, count, place), POINT_MASS
        claim = Drawn(law) if count == 1 else DrawnWithoutReplacement(law)
        return context.noise.draw(law, count, place), claim


@dataclass(frozen=True, eq=False)
class _Read:
    """The hidden state [hidden] of the last of the first `length` tokens; None where it was not seen."""

    length: int = 0
    state: torch.Tensor | None = None

    def known(self) -> torch.Tensor:  # [hidden]
        assert self.state is not None, "asked only where the state was seen"
        return self.state


@dataclass(eq=False)
class _Known:
    """A sequence: its chances, its newest state, the state at its prompt's end, from which siblings start, what is
    known of the nodes drafted last, and how often chains given by others were kept."""

    values: NodeValues
    newest: _Read = _Read()
    prompt: _Read = _Read()
    kinds: Mapping[int, Hashable] = field(default_factory=dict)
    given: GivenChains = field(default_factory=GivenChains)
    asking: Asking = field(default_factory=Asking)
    below: int = 0  # nodes of that chain
