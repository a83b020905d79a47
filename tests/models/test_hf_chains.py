"""A transformers model whose attention takes no tree mask: every tree method drafts chains, and one line says so."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hf_models import SMALL, VOCAB, model

from outrider import LLM, SamplingParams
from outrider.core.records import Context, Draft, Scores
from outrider.models.arch import Arch
from outrider.models.eagle_shapes import fresh_head
from outrider.models.heads import EagleConfig, Head, MedusaConfig
from outrider.models.hf import HfTarget
from outrider.models.medusa_head import untrained_head
from outrider.text import Tokenizer

HIDDEN = SMALL["hidden_size"]
PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], [7, 3, 44, 9, 9, 1, 30, 12])


@pytest.fixture
def deaf() -> Any:
    """A llama that ignores the attention mask it is given."""
    held = copy.deepcopy(model("llama"))
    forward = held.model.forward
    held.model.forward = lambda *args, **options: forward(*args, **{**options, "attention_mask": None})
    return held


@pytest.fixture
def words() -> Tokenizer:
    vocabulary = {f"w{index}": index for index in range(VOCAB)}
    return Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0")))


def medusa(held: Any) -> Head:
    shape = MedusaConfig(heads=3, layers=1, hidden=HIDDEN, vocab_size=VOCAB, draft_vocab=VOCAB)
    return untrained_head(shape, HfTarget.wrap(held).token_weights())


def eagle(held: Any) -> Head:
    arch = Arch.from_config({**SMALL, "model_type": "llama", "num_hidden_layers": 1})
    return fresh_head(EagleConfig(False, arch, HIDDEN, VOCAB), seed=1)


TREES = {
    "suffix": ({"topk": 2}, None),
    "recycling": ({}, None),
    "lookahead": ({}, None),
    "medusa": ({"topk": 2, "check_draft": False}, medusa),
    "eagle": ({"tree_budget": 6, "check_draft": False}, eagle),
}


@pytest.mark.parametrize("method", TREES)
def test_tree_methods_draft_chains_and_one_line_says_so(
    method: str,
    deaf: Any,
    words: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings, head = TREES[method]
    given = {"method": method, **settings, **({} if head is None else {"model": head(deaf)})}
    plain = LLM.from_model(deaf, words)
    with caplog.at_level(logging.INFO):
        llm = LLM.from_model(deaf, words, speculative_config=given)
    assert [record.getMessage() for record in caplog.records] == [
        "HfTarget takes no tree mask: drafting chains instead of trees"
    ]
    drafts: list[Draft] = []
    score = HfTarget.score

    def seen(self: HfTarget, contexts: Sequence[Context], given: Sequence[Draft]) -> list[Scores]:
        drafts.extend(given)
        return score(self, contexts, given)

    params = [SamplingParams(temperature=0.0, max_tokens=24), SamplingParams(seed=3, max_tokens=24)]
    wanted = plain.generate(PROMPTS, params)
    monkeypatch.setattr(HfTarget, "score", seen)
    done = llm.generate(PROMPTS, params)
    assert [c.token_ids for c in done] == [c.token_ids for c in wanted]
    assert all(draft.nodes.is_chain for draft in drafts)
    assert max(len(draft) for draft in drafts) >= 2


def test_the_same_methods_draft_trees_where_masks_are_heard(words: Tokenizer) -> None:
    for method, (settings, head) in TREES.items():
        held = model("llama")
        given = {"method": method, **settings, **({} if head is None else {"model": head(held)})}
        assert LLM.from_model(held, words, speculative_config=given).config.drafts_trees
