"""Which acceptance rule judges a draft: chosen by the guarantee, the method asked for, and the draft's shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider.core.accept import Block, NoiseMatch, TokenLevel, Traversal
from outrider.core.protocols import AcceptanceRule
from outrider.core.records import Context, Draft, Guarantee
from outrider.errors import ConfigError


class RejectionMethod(str, Enum):
    """`rejection_sample_method`: how `same_distribution` judges."""

    STANDARD = "standard"
    BLOCK = "block"
    TRAVERSAL = "traversal"


@dataclass(frozen=True)
class RuleBook:
    """Picks the rule of each draft. None: block verification for chains, traversal for trees.

    Raises `ConfigError` when block verification was asked for and a tree is drafted.
    """

    method: RejectionMethod | None = None

    def rule_for(self, context: Context, draft: Draft) -> AcceptanceRule:
        if context.guarantee is Guarantee.SAME_TEXT or context.sampling.greedy:
            return NoiseMatch()
        if self.method is RejectionMethod.STANDARD:
            return TokenLevel()
        if self.method is RejectionMethod.BLOCK and not draft.nodes.is_chain:
            raise ConfigError("rejection_sample_method 'block' judges chains, and this drafter drafts trees")
        if self.method is RejectionMethod.TRAVERSAL or not draft.nodes.is_chain:
            return Traversal()
        return Block()
