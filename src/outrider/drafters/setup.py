"""`DrafterSetup`: what a drafter's factory may use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from outrider.config import SpeculativeConfig
from outrider.core.protocols import TappedTarget, TargetModel
from outrider.drafters.calibration import Prompts
from outrider.drafters.growth import GrowthSettings, SampleMethod
from outrider.errors import ConfigError
from outrider.models.borrowed_load import MappedModel
from outrider.models.heads import Head
from outrider.models.row_costs import FREE, DraftCosts, RowCosts, draft_costs, expected_costs

_LOG = logging.getLogger(__name__)


def tapped(target: TargetModel) -> TappedTarget:
    """The target as one whose hidden states can be read. Raises `ConfigError` where they cannot."""
    if not isinstance(target, TappedTarget):
        raise ConfigError(
            f"the drafter reads hidden states, which {type(target).__name__} does not show: use another method"
        )
    return target


@dataclass(frozen=True)
class DrafterSetup:
    """The settings, the loaded target, and how to get what they name.

    `load_draft` loads the configured draft model, checked against the target; `load_head` reads the configured head;
    `prompts` are short texts that a draft is checked on, as the target's tokens: without any it is not.
    """

    config: SpeculativeConfig
    target: TargetModel
    load_draft: Callable[[], TargetModel | MappedModel]
    load_head: Callable[[], Head]
    prompts: Callable[[], Prompts] = tuple

    @property
    def sample_method(self) -> SampleMethod:
        """How a draft model's rows become tokens."""
        return SampleMethod(self.config.draft_sample_method or "probabilistic")

    @property
    def row_costs(self) -> RowCosts:
        """What rows cost, for drafts that are cut to what is worth it; nothing where `cut_drafts` is false."""
        return FREE.rows if self.config.cut_drafts is False else expected_costs(self.target)

    def costs(self, weight_bytes: int | None) -> DraftCosts:
        """What drafts of a model cost that reads so many bytes of weights in a forward; see `row_costs`."""
        if self.config.cut_drafts is False:
            return FREE
        if weight_bytes is None:
            _LOG.info("the draft's size is not known: a forward of it counts as a tenth of the target's pass")
        return draft_costs(self.target, weight_bytes)

    def growth(self, weight_bytes: int | None) -> GrowthSettings:
        """How drafts of such a model grow."""
        return GrowthSettings(self.sample_method, self.config.max_model_len, self.costs(weight_bytes))

    def children(self, method: str) -> int:
        """Children per node: one where the target takes no trees."""
        return self.config.children(method) if self.target.supports_trees else 1
