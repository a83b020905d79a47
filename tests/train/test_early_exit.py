"""Early-exit training: what is trained is what drafts, that it learns, and what its files draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_guesses import (
    HIDDEN,
    LAYERS,
    MAP,
    VOCAB,
    WEIGHTS,
    check_files,
    counting_batch,
    some_texts,
    trained_hits,
    with_random_features,
)
from tiny_target import ARCH, save_target

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.exit_head import untrained_exit
from outrider.models.heads import ExitConfig
from outrider.models.load import resolve
from outrider.train.early_exit import EarlyExitRecipe
from outrider.train.recipes import TrainTarget, recipe_for
from outrider.train.settings import DraftShape, TrainSettings
from outrider.train.teacher import Lesson, Numbers, Teacher

STEPS = 3
CONFIG = ExitConfig(2, HIDDEN, 24, VOCAB, len(MAP))


def recipe_of(dtype: torch.dtype = torch.float64) -> EarlyExitRecipe:
    head = untrained_exit(CONFIG, WEIGHTS, MAP, seed=1)
    return EarlyExitRecipe(head, Teacher(WEIGHTS, LAYERS), Lesson(steps=STEPS), numbers=Numbers(dtype))


def shaken(recipe: EarlyExitRecipe) -> EarlyExitRecipe:
    """With another block than one that adds nothing."""
    made = torch.Generator().manual_seed(4)
    for parameter in recipe.module.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape, generator=made, dtype=parameter.dtype) * 0.3
    return recipe


def test_guess_j_of_a_pending_token_is_what_the_row_j_places_on_says() -> None:
    recipe = shaken(recipe_of())
    batch = with_random_features(2, some_texts())
    judged, counts = recipe.judge(batch), torch.zeros(STEPS, dtype=torch.int64)
    assert recipe.taps == (2, LAYERS)
    with torch.no_grad():
        best = MAP[recipe.head(batch.features[:, :, 0].flatten(0, 1)).argmax(1)].view_as(batch.tokens)
    for text, answered in enumerate(batch.answered.tolist()):
        for pending in range(len(answered)):
            for step in range(STEPS):
                about = range(pending + 1, pending + 2 + step)
                counted = about[-1] < len(answered) and all(answered[place] for place in about)
                counts[step] += counted
                right = counted and int(best[text, about[-1] - 1]) == int(batch.tokens[text, about[-1]])
                assert bool(judged.hits[text, pending, step]) == right
    assert torch.equal(judged.counts, counts)


def test_the_target_s_rows_are_not_trained_and_all_else_is() -> None:
    recipe = shaken(recipe_of())
    recipe.judge(with_random_features(2, some_texts())).loss.backward()
    for name, parameter in recipe.module.named_parameters():
        if name == "lm_head.weight":
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_a_pattern_is_learnt() -> None:
    before, after = trained_hits(recipe_of(torch.float32), counting_batch(2, known=MAP.tolist()), steps=150)
    assert (before.hits.sum((0, 1)) < 0.5 * before.counts).all()
    assert (after.hits.sum((0, 1)) > 0.95 * after.counts).all()


def test_files_hold_the_head(tmp_path: Path) -> None:
    recipe = shaken(recipe_of(torch.float32))
    recipe.write(tmp_path / "head", "outrider")
    check_files(tmp_path / "head", recipe.trained(torch.bfloat16))
    with pytest.raises(ConfigError, match="form must be one of outrider, not 'transformers'"):
        recipe.write(tmp_path / "other", "transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("targets") / "tiny")


def fresh(folder: str, layers: int) -> EarlyExitRecipe:
    """What a run on this target starts from, over its whole vocabulary."""
    llm = LLM(folder, target="torch", dtype="float32")
    settings = TrainSettings(
        DraftShape("draft_model", ARCH.vocab_size, early_exit=layers), (Path("p"),), Path("o")
    )
    target = TrainTarget(resolve(folder), ARCH, llm.target.token_weights(), ())  # type: ignore[attr-defined]
    recipe = recipe_for(settings, target, [], None)
    assert isinstance(recipe, EarlyExitRecipe)
    return recipe


@pytest.mark.parametrize("layers", [0, 3])
def test_an_exit_that_leaves_nothing_out_is_refused(folder: str, layers: int) -> None:
    with pytest.raises(ConfigError, match="early_exit must"):
        fresh(folder, layers)


@pytest.mark.parametrize("kind", ["torch", "hf", pytest.param("native", marks=pytest.mark.native)])
@pytest.mark.parametrize("topk", [1, 2])
def test_an_untrained_head_drafts_what_the_layers_alone_do(
    folder: str, tmp_path: Path, kind: str, topk: int
) -> None:
    fresh(folder, 1).write(tmp_path / "head", "outrider", torch.float32)
    shape = {"method": "self_draft", "topk": topk, "num_speculative_tokens": 3, "cut_drafts": False}
    with_head = {**shape, "model": str(tmp_path / "head"), "draft_dtype": "float32", "check_draft": False}
    llm = LLM(folder, target=kind, dtype="float32", speculative_config={**shape, "assistant_early_exit": 1})
    sampling = [SamplingParams(temperature=t, seed=3, max_tokens=24, ignore_eos=True) for t in (0.0, 0.8)]
    alone, headed, plain = (
        each.generate([[5, 6, 7, 8]] * 2, sampling)
        for each in (llm, llm.with_speculation(with_head), llm.with_speculation(None))
    )
    assert [c.token_ids for c in headed] == [c.token_ids for c in plain]
    assert [c.stats for c in headed] == [c.stats for c in alone]
    assert all(c.stats.num_draft_tokens > 10 for c in headed)


@pytest.mark.parametrize("guarantee", ["same_text", "same_distribution"])
def test_a_trained_head_changes_no_greedy_text(folder: str, tmp_path: Path, guarantee: str) -> None:
    shaken(fresh(folder, 2)).write(tmp_path / "head", "outrider")
    settings = {"method": "self_draft", "model": str(tmp_path / "head"), "guarantee": guarantee, "topk": 2}
    llm = LLM(folder, target="torch", dtype="float32", speculative_config=settings)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompts = [[5, 6, 7, 8], [9, 10, 11]]
    assert [c.token_ids for c in llm.generate(prompts, sampling)] == [
        c.token_ids for c in llm.with_speculation(None).generate(prompts, sampling)
    ]
