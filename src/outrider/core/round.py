"""One round: draft, score, accept, commit. Plain decoding is this round with an empty draft.

Invariant between rounds: the target caches exactly `context.tokens[:-1]`; the last token is pending.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outrider.core.protocols import Drafter, TargetModel
from outrider.core.records import EMPTY_DRAFT, Budget, Context, Draft, RoundResult, Scores
from outrider.core.rules import RuleBook
from outrider.core.sequence import Sequence
from outrider.errors import ScoreError


def run_round(target: TargetModel, drafter: Drafter, rules: RuleBook, sequences: Seq[Sequence],
              budgets: Seq[Budget]) -> list[RoundResult]:  # fmt: skip
    """Advances every sequence by at least one token; results in the order of `sequences`.

    A sequence whose scores hold no law (NaN) fails alone: it emits nothing, is aborted with its error, and
    has no result.
    """
    contexts = [sequence.context() for sequence in sequences]
    drafts = drafter.propose(contexts, budgets, [EMPTY_DRAFT] * len(contexts))
    assert all(target.cached_length(c.sequence_id) == len(c.tokens) - 1 for c in contexts), "the invariant"
    assert all(len(d) <= b.nodes for d, b in zip(drafts, budgets)), "drafts keep to their budgets"
    scores = target.score(contexts, drafts)
    results = [
        result
        for sequence, context, draft, score in zip(sequences, contexts, drafts, scores)
        if (result := _judge(rules, sequence, context, draft, score)) is not None
    ]
    target.commit(results)
    drafter.observe(results)
    return results


def _judge(rules: RuleBook, sequence: Sequence, context: Context, draft: Draft,
           scores: Scores) -> RoundResult | None:  # fmt: skip
    """Accepts what the rule accepts; None when the scores hold no law."""
    rule = rules.rule_for(context, draft)
    try:
        verdict = rule.judge(draft, sequence.laws(draft, scores), context.noise)
    except ScoreError as error:
        sequence.fail(error)
        return None
    return sequence.append(draft, verdict, scores)
