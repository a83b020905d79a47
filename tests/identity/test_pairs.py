"""Pairs of models from files: a vocabulary that differs is refused, and the draft runs where it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_folder import letters, save_model

from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.errors import PairError
from outrider.pairing import load_draft

PROMPT = [40, 41, 42, 43]


@pytest.fixture
def target(tmp_path: Path) -> str:
    save_model(tmp_path / "target", 256, letters())
    return str(tmp_path / "target")


def test_two_swapped_ids_are_refused_at_load_by_their_id(target: str, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    save_model(draft, 256, letters(7, 9))
    for method in ("draft_model", ["ngram", "draft_model"]):
        with pytest.raises(PairError, match=r"draft.*does not share the target's vocabulary: id 7 is"):
            LLM(target, speculative_config={"method": method, "model": str(draft)})


def test_a_draft_of_the_same_vocabulary_is_loaded(target: str) -> None:
    llm = LLM(target, dtype="float32", speculative_config={"method": "draft_model", "model": target})
    done = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=20))[0]
    assert done.stats.num_accepted_draft_tokens > 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_draft_runs_where_it_is_told_and_changes_no_text(target: str, dtype: str) -> None:
    settings = {"method": "draft_model", "model": target, "draft_dtype": dtype, "draft_device": "cpu"}
    llm = LLM(target, dtype="float32", speculative_config=settings)
    draft = load_draft(SpeculativeConfig.of(settings), llm.tokenizer, llm.target, None)
    assert draft.dtype == getattr(torch, dtype)  # type: ignore[attr-defined]
    assert draft.device == torch.device("cpu")  # type: ignore[attr-defined]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=40) for t in (0.0, 0.8)]
    plain = llm.with_speculation(None).generate([PROMPT] * 2, params)
    fast = llm.generate([PROMPT] * 2, params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert all(c.stats.num_accepted_draft_tokens > 10 for c in fast)
