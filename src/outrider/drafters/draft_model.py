"""`ModelDrafter`: any language model with the target's tokenizer as the draft model, with its own cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import Budget, Context, Draft, RoundResult, TokenView
from outrider.core.tree import TokenTree
from outrider.drafters.growth import UNCUT, Growth, GrowthSettings, ScoreRows
from outrider.drafters.rows import DraftRows, DraftVocabulary

_RIDING = 16  # certain tokens that may ride along with a draft; more are cached by a forward of their own


class ModelDrafter:
    """Drafts with `lm`, which keeps its own cache, dtype and device.

    The cache is caught up in `propose` alone, so rounds without a draft cost nothing: certain tokens that
    `lm` has not cached ride as a chain above the drafted nodes of the first forward and are committed after
    it. From then on, until the next round, the cache holds exactly `context.tokens[:-1]`.

    Where `lm` takes no trees it drafts chains. A sequence that outgrows the context window of `lm` (or
    `max_length`, where that is shorter), or holds a token beyond its vocabulary, is drafted for no longer;
    `limits` counts such rounds by reason.
    """

    taps: tuple[int, ...] = ()

    def __init__(self, lm: TargetModel, *, target_vocab_size: int, topk: int = 1,
                 vocabulary: DraftVocabulary | None = None,
                 settings: GrowthSettings = UNCUT) -> None:  # fmt: skip
        """`vocabulary`: what the columns of the rows of `lm` are, where it speaks a part of the target's tokens."""
        self.lm, self._vocabulary = lm, vocabulary
        self._window = settings.window(lm.max_length)
        self.limits: Counter[str] = Counter()
        self._growth = Growth(
            target_vocab_size, topk if lm.supports_trees else 1, settings.sample_method, settings.costs
        )
        self._known: dict[int, _Known] = {}

    def ingest(self, context: Context, features: torch.Tensor | None) -> None:
        """The prompt is read when a draft is asked for."""

    def propose(
        self, contexts: Sequence[Context], budgets: Sequence[Budget], drafts: Sequence[Draft]
    ) -> list[Draft]:
        allowed = [self._allowed(*job) for job in zip(contexts, budgets, drafts)]
        return self._growth.propose(contexts, allowed, drafts, self._ready)

    def observe(self, results: Sequence[RoundResult]) -> None:
        """Counts which guesses were kept; the text is read when a draft is asked for."""
        self._growth.observe(results)

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        parent = self._known.get(parent_id)
        if parent is None:
            return
        cached = min(length, parent.cached)
        self.lm.fork(parent_id, sequence_id, cached)
        self._known[sequence_id] = _Known(parent.tokens[:cached], cached)

    def forget(self, sequence_id: int) -> None:
        self._growth.forget(sequence_id)
        if self._known.pop(sequence_id, None) is not None:
            self.lm.release(sequence_id)

    def _allowed(self, context: Context, budget: Budget, draft: Draft) -> Budget:
        """The budget within the draft model's window; depth 0 where it must not, or need not, be asked."""
        depth, room = budget.depth, budget.nodes - len(draft)
        if not draft.nodes.is_chain or room <= 0 or len(draft) >= depth:
            return Budget(0, 0)
        if self._window is not None:
            depth = min(depth, self._window - len(context.tokens))
        if depth <= len(draft):
            return self._refused(context, "draft_context_window")
        if self._has_unknown_token(context, draft):
            return self._refused(context, "draft_vocabulary")
        return Budget(depth, budget.nodes)

    def _refused(self, context: Context, reason: str) -> Budget:
        self.limits[reason] += 1
        self.forget(context.sequence_id)
        return Budget(0, 0)

    def _has_unknown_token(self, context: Context, draft: Draft) -> bool:
        """Whether a token not looked at before lies beyond the draft model's vocabulary."""
        known = self._known.get(context.sequence_id)
        new = context.tokens[len(known.tokens) if known else 0 :]
        return max((*new, *draft.nodes.tokens), default=0) >= self.lm.vocab_size

    def _ready(self, contexts: Sequence[Context]) -> ScoreRows:
        self._read(contexts)
        return self._rows

    def _read(self, contexts: Sequence[Context]) -> None:
        """Takes in what became certain; a prompt or a long backlog is cached at once, for all in one call."""
        chunks = []
        for context in contexts:
            is_new = context.sequence_id not in self._known
            known = self._known.setdefault(context.sequence_id, _Known())
            known.tokens += context.tokens[len(known.tokens) :]
            pending = len(context.tokens) - 1
            if known.cached > pending:  # forked at the very end of a text
                self.lm.rewind(context.sequence_id, pending)
                known.cached = pending
            elif is_new or pending - known.cached > _RIDING:
                chunks.append(Chunk(context.sequence_id, known.tokens[known.cached : pending]))
                known.cached = pending
        if chunks:
            self.lm.extend(chunks)

    def _rows(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]
    ) -> Sequence[torch.Tensor | DraftRows]:
        """The rows asked for, [rows, draft vocab] each; what rode along is cached afterwards."""
        riders = [self._known[context.sequence_id].riders() for context in contexts]
        seen = [self._seen(context) for context in contexts]
        drafts = [_below(riding, tree) for riding, tree in zip(riders, trees)]
        scores = self.lm.score(seen, drafts)
        rows = [
            score.logits[[len(riding) + row for row in asked]]
            for score, riding, asked in zip(scores, riders, wanted)
        ]
        results = []
        for context, riding, draft, score in zip(contexts, riders, drafts, scores):
            if riding:
                nodes = tuple(range(len(riding)))
                results.append(RoundResult(context.sequence_id, riding, nodes, draft, score))
        if results:
            self.lm.commit(results)
        for context in contexts:
            self._known[context.sequence_id].cached = len(context.tokens) - 1
            assert self.lm.cached_length(context.sequence_id) == len(context.tokens) - 1, (
                "draft cache out of step"
            )
        vocabulary = self._vocabulary
        return rows if vocabulary is None else [vocabulary.rows(found) for found in rows]

    def _seen(self, context: Context) -> Context:
        """The context as far as the draft model knows it: what it has cached, and one pending token."""
        known = self._known[context.sequence_id]
        return replace(context, tokens=TokenView(known.tokens, known.cached + 1))


@dataclass
class _Known:
    """A sequence as the draft model knows it: its certain tokens, and how many of them are cached."""

    tokens: list[int] = field(default_factory=list)
    cached: int = 0

    def riders(self) -> tuple[int, ...]:
        """Certain tokens after the one that is pending for the draft model."""
        return tuple(self.tokens[self.cached + 1 :])


def _below(riding: tuple[int, ...], tree: TokenTree) -> Draft:
    """The tree hung below a chain of certain tokens; only its shape matters, so all are point masses."""
    if not riding:
        return Draft.tree(tree.tokens, tree.parents)
    shift = len(riding)
    parents: list[int | None] = [None, *range(shift - 1)]
    parents += [shift - 1 if parent is None else parent + shift for parent in tree.parents]
    return Draft.tree((*riding, *tree.tokens), parents)
