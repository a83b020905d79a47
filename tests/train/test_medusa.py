"""Medusa training: what is trained is what drafts, which tensors learn, and that they do."""

from __future__ import annotations

from dataclasses import replace
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

from outrider.core.records import EMPTY_DRAFT, Budget, Context
from outrider.drafters.medusa import MedusaDrafter
from outrider.errors import ConfigError, ModelLoadError
from outrider.models.heads import MedusaConfig, read_head
from outrider.models.medusa_head import MedusaHeads, untrained_head
from outrider.train.medusa import MedusaRecipe
from outrider.train.output import Output
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Batch

HEADS = 3
WHOLE = MedusaConfig(HEADS, 1, HIDDEN, VOCAB, VOCAB)
CUT = replace(WHOLE, layers=2, draft_vocab=len(MAP), bias=False)
by_config = pytest.mark.parametrize("config", [WHOLE, CUT], ids=["whole vocabulary", "two blocks, cut"])
by_output = pytest.mark.parametrize("output", Output)


def recipe_of(config: MedusaConfig = CUT, output: Output = Output.OWN, loss: str = "kl_div",
              dtype: torch.dtype = torch.float64) -> MedusaRecipe:  # fmt: skip
    token_map = MAP if config.draft_vocab < VOCAB else None
    head = untrained_head(config, WEIGHTS, token_map)
    return MedusaRecipe(head, Teacher(WEIGHTS, LAYERS), Lesson(loss), output=output, numbers=Numbers(dtype))


def shaken(recipe: MedusaRecipe) -> MedusaRecipe:
    """With other blocks than those that change nothing."""
    made = torch.Generator().manual_seed(4)
    for parameter in recipe.module.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape, generator=made, dtype=parameter.dtype) * 0.3
    return recipe


def drafted(heads: MedusaHeads, batch: Batch, text: int, pending: int) -> tuple[int, ...]:
    """The chain drafted greedily at a pending position."""
    drafter = MedusaDrafter(heads, tap=LAYERS, target_vocab_size=VOCAB)
    context = Context.of(batch.tokens[text, : pending + 1].tolist())
    drafter.ingest(context, batch.features[text, :pending])
    [draft] = drafter.propose([context], [Budget(HEADS, HEADS)], [EMPTY_DRAFT])
    return draft.nodes.tokens


@by_config
def test_training_guesses_what_is_drafted(config: MedusaConfig) -> None:
    recipe = shaken(recipe_of(config))
    batch = with_random_features(1, some_texts())
    judged, seen = recipe.judge(batch), torch.zeros(HEADS, dtype=torch.int64)
    token_map = MAP if config.draft_vocab < VOCAB else torch.arange(VOCAB)
    for i, step in enumerate(recipe.speak(batch)):
        for text, pending, row in zip(
            step.texts.tolist(), step.pending.tolist(), step.spoken @ step.matrix.T
        ):
            guess = drafted(recipe.heads, batch, text, pending)[i]
            assert token_map[row.argmax()] == guess
            assert judged.hits[text, pending, i] == (guess == batch.tokens[text, pending + 1 + i])
            seen[i] += 1
    assert torch.equal(judged.counts, seen)
    assert seen.tolist() == [9 + 5 + 1 + 12, 8 + 4 + 11, 7 + 3 + 10]


@by_output
def test_what_is_trained_learns_and_what_is_the_target_s_stays(output: Output) -> None:
    recipe = shaken(recipe_of(output=output))
    recipe.judge(with_random_features(1, some_texts())).loss.backward()
    for name, parameter in recipe.module.named_parameters():
        if output is Output.TARGET and "out" in name:
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@by_output
def test_a_pattern_is_learnt_and_drafted_from_the_files(output: Output, tmp_path: Path) -> None:
    recipe = recipe_of(output=output, dtype=torch.float32)
    batch = counting_batch(1, known=MAP.tolist())
    before, after = trained_hits(recipe, batch, steps=100)
    assert (before.hits.sum((0, 1)) < 0.5 * before.counts).all()
    assert (after.hits.sum((0, 1)) > 0.95 * after.counts).all()
    recipe.write(tmp_path / "heads", "medusa_vllm")
    heads = MedusaHeads(read_head(tmp_path / "heads"), WEIGHTS)
    assert drafted(heads, batch, 0, 3) == tuple(batch.tokens[0, 4:7].tolist())


@by_output
def test_files_hold_the_heads(output: Output, tmp_path: Path) -> None:
    recipe = recipe_of(output=output, dtype=torch.float32)
    recipe.write(tmp_path / "heads", "medusa_vllm")
    check_files(tmp_path / "heads", recipe.trained(torch.bfloat16))


def test_unknown_forms_and_those_without_a_place_for_the_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="form must be one of medusa_vllm, medusa, not 'eagle3'"):
        recipe_of().write(tmp_path / "heads", "eagle3")
    with pytest.raises(ModelLoadError, match="it has a draft vocabulary of its own"):
        recipe_of().write(tmp_path / "heads", "medusa")
