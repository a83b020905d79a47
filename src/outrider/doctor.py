"""What `outrider doctor` measures: what a pass costs, what the machine could do, and what the precision loses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.protocols import TargetModel
from outrider.core.records import Budget
from outrider.core.sampling import SamplingParams
from outrider.drafters.head_check import HeadReport
from outrider.drafters.step_cost import DraftCost, draft_cost
from outrider.errors import ConfigError, ParameterError
from outrider.llm import LLM
from outrider.models.cost import Rates, rates_of, row_costs
from outrider.models.load import ModelSource, load
from outrider.models.placement import Placement, placement_of
from outrider.models.precision import LawError, Text, law_error
from outrider.models.row_costs import bytes_of
from outrider.pairing import load_head
from outrider.text import Tokenizer

WIDTHS = (1, 2, 4, 8, 12, 16)
"""Rows of the passes that are timed."""
POSITIONS = 2000
ANSWER_TOKENS = 128
_PROMPT_FILE = "spec_bench.jsonl"
_BATCH = 8


@dataclass(frozen=True)
class Checkup:
    """All that was measured of one loaded target; `error` is None where no prompt fits the model."""

    placement: Placement
    cost_ms: dict[int, float]
    rates: Rates
    weight_bytes: int | None
    error: LawError | None


@dataclass(frozen=True)
class DraftCheckup:
    """What was measured of the configured drafter; `head` is None for methods that have none."""

    methods: tuple[str, ...]
    model: str | None
    cost: DraftCost
    head: HeadReport | None


@dataclass(frozen=True)
class PromptSet:
    """User messages and where they come from."""

    name: str
    messages: tuple[str, ...]


def question_prompts(fallback: PromptSet) -> PromptSet:
    """The first turns of spec_bench.jsonl in the folder OUTRIDER_PROMPTS, in file order; without it, `fallback`.

    Raises `ConfigError` for a folder that lacks the file or holds another one under its name.
    """
    folder = os.environ.get("OUTRIDER_PROMPTS")
    if not folder:
        return fallback
    path = Path(folder) / _PROMPT_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return PromptSet(
            _PROMPT_FILE, tuple(str(json.loads(line)["turns"][0]) for line in lines if line.strip())
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as Spec-Bench questions ({error}): unset OUTRIDER_PROMPTS or complete the folder"
        ) from None


def reference_of(source: ModelSource, target: TargetModel) -> TargetModel:
    """The float32 model of the same numbers, by the compiled decoder where it runs; `target` itself if it is that."""
    placement = placement_of(target)
    if (placement.target, placement.dtype) == ("native", "float32"):
        return target
    return load(source, dtype="float32", threads=placement.threads)


def greedy_texts(
    reference: TargetModel, tokenizer: Tokenizer, prompts: PromptSet, *, positions: int = POSITIONS,
    answer_tokens: int = ANSWER_TOKENS,
) -> Iterator[Text]:  # fmt: skip
    """Plain greedy answers of `reference` to the prompts in order, until they hold `positions` tokens.

    Prompts that leave no room for an answer are passed over. Written a few at a time, so a caller that stops early
    pays for no more.
    """
    llm = LLM.from_parts(reference, tokenizer)
    sampling = SamplingParams(temperature=0.0, max_tokens=answer_tokens)
    limit = reference.max_length
    asked = [_prompt_ids(tokenizer, message) for message in prompts.messages]
    asked = [ids for ids in asked if ids and (limit is None or len(ids) + answer_tokens <= limit)]
    written = 0
    for start in range(0, len(asked), _BATCH):
        batch = asked[start : start + _BATCH]
        for ids, done in zip(batch, llm.generate(batch, sampling)):
            yield Text(tuple(ids), done.token_ids)
            written += len(done.token_ids)
        if written >= positions:
            return


def checkup(target: TargetModel, tokenizer: Tokenizer, reference: TargetModel, prompts: PromptSet, *,
            positions: int = POSITIONS, answer_tokens: int = ANSWER_TOKENS) -> Checkup:  # fmt: skip
    """Times passes, probes the machine and compares laws, in one go. Raises `ConfigError` on a tiny context."""
    costs = row_costs(target, WIDTHS)
    rates = rates_of(target)
    texts = greedy_texts(reference, tokenizer, prompts, positions=positions, answer_tokens=answer_tokens)
    error = law_error(reference, target, texts, positions)
    return Checkup(placement_of(target), costs, rates, bytes_of(target), error)


def draft_checkup(llm: LLM, prompts: PromptSet) -> DraftCheckup | None:
    """Times drafts of the configured methods and measures their head; None without a method that drafts.

    The drafter goes on from the first prompt, said twice so that methods which copy find something.
    """
    config = llm.config
    if config.depth == 0:
        return None
    tokens = 2 * tuple(_prompt_ids(llm.tokenizer, prompts.messages[0]))
    cost = draft_cost(llm.target, llm.drafter, Budget(config.depth, config.nodes), tokens)
    head = llm.check_head(load_head(config)) if config.names_head else None
    model = config.model if isinstance(config.model, str) else None
    return DraftCheckup(config.methods, model, cost, head)


def _prompt_ids(tokenizer: Tokenizer, message: str) -> Sequence[int]:
    """The message through the chat template; as raw text for a model that has none."""
    try:
        return tokenizer.chat([{"role": "user", "content": message}]).token_ids
    except ParameterError:
        return tokenizer.encode(message)
