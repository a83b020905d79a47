"""Pairs of models from files: a vocabulary that differs is refused, and the draft runs where it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_folder import letters, save_model

from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError, PairError
from outrider.models.placement import placement_of
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


@pytest.mark.parametrize("kind", [pytest.param("native", marks=pytest.mark.native), "torch"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", pytest.param("int8", marks=pytest.mark.native)])
@pytest.mark.parametrize("topk", [1, 2])
def test_the_draft_runs_where_it_is_told_and_changes_no_text(
    target: str, kind: str, dtype: str, topk: int
) -> None:
    settings = {
        "method": "draft_model", "model": target, "draft_dtype": dtype, "draft_device": "cpu", "topk": topk,
        "cut_drafts": False,
    }  # fmt: skip
    llm = LLM(target, target=kind, dtype="float32", speculative_config=settings)
    draft = placement_of(load_draft(SpeculativeConfig.of(settings), llm.tokenizer, llm.target, None))
    assert (draft.dtype, draft.device) == (dtype, "cpu")
    params = [SamplingParams(temperature=t, seed=3, max_tokens=40) for t in (0.0, 0.8)]
    plain = llm.with_speculation(None).generate([PROMPT] * 2, params)
    fast = llm.generate([PROMPT] * 2, params)
    assert [c.token_ids for c in fast] == [c.token_ids for c in plain]
    assert all(c.stats.num_accepted_draft_tokens > 10 for c in fast)


@pytest.mark.native
def test_the_draft_takes_the_compiled_decoder_and_torch_keeps_its_threads_unless_told(target: str) -> None:
    settings = {"method": "draft_model", "model": target}
    before = torch.get_num_threads()
    llm = LLM(target, target="torch", threads=before + 1, speculative_config=settings)
    draft = load_draft(SpeculativeConfig.of(settings), llm.tokenizer, llm.target, 1)
    assert (placement_of(draft).target, placement_of(draft).threads) == ("native", 1)
    assert torch.get_num_threads() == before + 1
    LLM(target, target="native", threads=2)
    assert torch.get_num_threads() == 1
    in_torch = {**settings, "draft_dtype": "float64"}
    LLM(target, target="native", threads=2, speculative_config=in_torch)
    assert torch.get_num_threads() == 1, "a draft for torch gets no more beside the compiled decoder"
    torch.set_num_threads(2)
    LLM(target, target="native", speculative_config=in_torch)
    assert torch.get_num_threads() == 2, "nobody told"
    with pytest.raises(ConfigError, match="dtype must be one of"):
        load_draft(SpeculativeConfig.of({**settings, "draft_dtype": "int7"}), llm.tokenizer, llm.target, 1)
