"""EAGLE-3 training: what is trained is what drafts; who sees what; which tensors learn, and that they do."""

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
    numeric_slope,
    some_texts,
    trained_hits,
    with_random_features,
)

from outrider.errors import ConfigError
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.head_cache import CachedHead, Entries, Guesses
from outrider.models.heads import EagleConfig, read_head
from outrider.train.eagle3 import Eagle3Recipe, eagle3_config, initial_head
from outrider.train.teacher import Lesson, Numbers, Teacher
from outrider.train.texts import Batch, Text

STEPS = 3
THREE = Lesson(steps=STEPS)
TARGET = Arch("llama", LAYERS, HIDDEN, 24, 4, 2, 4, VOCAB, 1e-5, 10000.0, RopeScaling(),
              False, False, False, False, True, 64)  # fmt: skip
MODERN = eagle3_config(TARGET, (1, 2, 3), len(MAP))
PLAIN = replace(MODERN, fc_norm=False, norm_output=False, norm_before_residual=False)
UNCUT = replace(MODERN, draft_vocab=VOCAB, taps=(0, 4, 2), norm_before_fc=True, fc_norm=False)
by_config = pytest.mark.parametrize(
    "config", [PLAIN, MODERN, replace(MODERN, norm_output=False), UNCUT],
    ids=["plain", "all norms", "raw states go on", "uncut, the last tap amid the others"],
)  # fmt: skip


def recipe_of(config: EagleConfig = MODERN, lesson: Lesson = THREE,
              dtype: torch.dtype = torch.float64) -> Eagle3Recipe:  # fmt: skip
    token_map = MAP if config.draft_vocab < VOCAB else None
    head = initial_head(config, WEIGHTS, token_map, seed=0)
    return Eagle3Recipe(head, Teacher(WEIGHTS, LAYERS), lesson, numbers=Numbers(dtype))


def shaken(recipe: Eagle3Recipe) -> Eagle3Recipe:
    """With a layer that adds something, unlike that of an untrained head."""
    made = torch.Generator().manual_seed(4)
    for parameter in recipe.module.parameters():
        parameter.data += torch.randn(parameter.shape, generator=made, dtype=parameter.dtype) * 0.2
    return recipe


def some_batch(recipe: Eagle3Recipe) -> Batch:
    return with_random_features(len(recipe.taps), some_texts())


def drafted_row(head: EagleHead, batch: Batch, text: int, pending: int, depth: int) -> torch.Tensor:
    """Logits [draft vocab] of guess `depth` of a pending position, as drafting along the text works them out."""
    cached, tokens = CachedHead(head), batch.tokens[text].tolist()
    cached.extend([Entries(0, 0, tokens[1 : pending + 1], batch.features[text, :pending])])
    row = cached.pending_rows([0])[0]
    for j in range(depth):
        row = cached.guess([Guesses(0, (tokens[pending + 1 + j],), (j,))])[0][0]
    return row


@by_config
def test_training_computes_what_drafting_does(config: EagleConfig) -> None:
    recipe = shaken(recipe_of(config))
    batch = some_batch(recipe)
    judged, seen = recipe.judge(batch), torch.zeros(STEPS, dtype=torch.int64)
    token_map = MAP if config.draft_vocab < VOCAB else torch.arange(VOCAB)
    for j, step in enumerate(recipe.unroll(batch)):
        for text, pending, row in zip(step.texts, step.pending, step.spoken @ step.matrix.T):
            expected = drafted_row(recipe.head, batch, int(text), int(pending), j)
            torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-9)
            token = batch.tokens[text, pending + 1 + j]
            assert judged.hits[text, pending, j] == (token_map[row.argmax()] == token)
            seen[j] += 1
    assert torch.equal(judged.counts, seen)


def test_losses_and_overlaps_are_against_the_law_of_the_place_before_the_token() -> None:
    recipe = shaken(recipe_of())
    batch = some_batch(recipe)
    judged, decayed = recipe.judge(batch), []
    for j, step in enumerate(recipe.unroll(batch)):
        loss = overlap = torch.zeros((), dtype=torch.float64)
        for text, pending, row in zip(step.texts, step.pending, step.spoken @ step.matrix.T):
            if batch.tokens[text, pending + 1 + j] in MAP:
                state = batch.features[text, pending + j, -1]
                normed = state * (state.square().mean() + WEIGHTS.norm_eps).rsqrt() * WEIGHTS.norm
                p, q = (WEIGHTS.head[MAP].double() @ normed).softmax(0), row.softmax(0)
                loss = loss + (p * (p.log() - q.log())).sum()
                overlap = overlap + torch.minimum(p, q).sum()
        torch.testing.assert_close(judged.losses[j], loss)
        torch.testing.assert_close(judged.overlaps[j], overlap)
        decayed.append(0.8**j * loss / judged.counts[j])
    torch.testing.assert_close(judged.loss, sum(decayed) / (1 + 0.8 + 0.8**2))


def test_guesses_are_judged_where_drafts_are_asked_for() -> None:
    recipe = recipe_of()
    batch = some_batch(recipe)
    for j, step in enumerate(recipe.unroll(batch)):
        wanted = [
            (index, pending)
            for index, text in enumerate(some_texts())
            for pending in range(max(1, len(text.prompt) - 1), len(text.tokens) - 1 - j)
        ]
        assert list(zip(step.texts.tolist(), step.pending.tolist())) == wanted
    assert recipe.judge(batch).counts.tolist() == [9 + 5 + 1 + 12, 8 + 4 + 11, 7 + 3 + 10]


def test_a_guess_knows_nothing_of_what_comes_later() -> None:
    """Guess j of a pending position hangs on the tokens up to it and the j behind it, and on features before it."""
    recipe = shaken(recipe_of())
    batch, text, place = some_batch(recipe), 3, 8
    changed = Batch(batch.tokens.clone(), batch.features.clone(), batch.answered)
    changed.tokens[text, place] = (changed.tokens[text, place] + 1) % VOCAB
    changed.features[text, place:] += 1.0
    for j, (old, new) in enumerate(zip(recipe.unroll(batch), recipe.unroll(changed))):
        differ = (old.spoken != new.spoken).any(1)
        may = (old.texts == text) & (old.pending + j >= place)
        assert not (differ & ~may).any()
        assert differ[may & (old.pending <= place)].all()


@by_config
def test_every_tensor_of_the_head_learns_and_none_of_the_target_s(config: EagleConfig) -> None:
    recipe = shaken(recipe_of(config))
    recipe.judge(some_batch(recipe)).loss.backward()
    trained = dict(recipe.module.named_parameters())
    assert len(trained) >= 10
    assert "embedding" not in recipe.module.state_dict()
    for name, parameter in trained.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("loss", ["kl_div", "ce", "tv"])  # the weights of lk_hybrid pass no gradient
def test_gradients_are_those_of_the_loss(loss: str) -> None:
    recipe = shaken(recipe_of(lesson=Lesson(loss, STEPS)))
    batch = some_batch(recipe)
    recipe.judge(batch).loss.backward()
    for name, parameter in recipe.module.named_parameters():
        assert parameter.grad is not None
        place = int(parameter.grad.abs().argmax())
        slope = numeric_slope(lambda: recipe.judge(batch).loss, parameter.data.view(-1)[place])
        assert slope == pytest.approx(float(parameter.grad.view(-1)[place]), rel=1e-4), name


def test_a_pattern_is_learnt_and_drafted_from_the_files(tmp_path: Path) -> None:
    recipe = recipe_of(dtype=torch.float32)
    batch = counting_batch(len(recipe.taps), known=MAP.tolist())
    before, after = trained_hits(recipe, batch, steps=60)
    assert (before.hits.sum((0, 1)) < 0.5 * before.counts).all()
    assert (after.hits.sum((0, 1)) > 0.95 * after.counts).all()
    assert (after.overlaps > before.overlaps).all()
    recipe.write(tmp_path / "head", "speculators")
    read = read_head(tmp_path / "head")
    head = EagleHead(read, WEIGHTS, num_layers=LAYERS)
    row = drafted_row(head, batch, 0, 3, 2)
    assert read.token_map is not None
    assert read.token_map[row.argmax()] == batch.tokens[0, 6]


def test_chains_stop_at_random_in_training_alone() -> None:
    """Those that go on say what they would have said among all others."""
    recipe = shaken(recipe_of(lesson=Lesson(steps=STEPS, retention=0.5)))
    batch, full = some_batch(recipe), shaken(recipe_of())
    whole = full.unroll(batch)
    torch.manual_seed(1)
    thinned = recipe.unroll(batch)
    assert len(thinned[0].texts) == len(whole[0].texts)
    for j, step in enumerate(thinned):
        places = {
            place: row for row, place in enumerate(zip(whole[j].texts.tolist(), whole[j].pending.tolist()))
        }
        rows = [places[place] for place in zip(step.texts.tolist(), step.pending.tolist())]
        assert 0 < len(rows) <= len(places) * 0.6**j
        torch.testing.assert_close(step.spoken, whole[j].spoken[rows])
    assert recipe.judge(batch).counts.tolist() != full.judge(batch).counts.tolist()
    recipe.module.eval()
    assert torch.equal(recipe.judge(batch).hits, full.judge(batch).hits)


def test_steps_beyond_the_end_of_every_answer_are_of_nothing() -> None:
    recipe = recipe_of(lesson=Lesson(steps=5))
    texts = [Text((3, 1, 4), (1, 5), 0.0, "made"), Text((9, 2), (6,), 0.0, "made")]
    found = recipe.judge(with_random_features(len(recipe.taps), texts))
    assert found.counts.tolist() == [3, 1, 0, 0, 0]
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert all(
        parameter.grad is not None for parameter in recipe.module.parameters() if parameter.requires_grad
    )


def test_a_forward_in_half_precision_is_near() -> None:
    recipe = shaken(recipe_of(dtype=torch.float32))
    batch = some_batch(recipe)
    exact = recipe.judge(batch)
    with torch.autocast("cpu", torch.bfloat16):
        near = recipe.judge(batch)
    near.loss.backward()
    assert near.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)
    assert torch.equal(near.counts, exact.counts)
    assert all(parameter.grad is not None for parameter in recipe.module.parameters())


def test_tokens_outside_the_draft_vocabulary_are_misses_without_loss() -> None:
    recipe = recipe_of()
    batch = counting_batch(len(recipe.taps), known=[3, 4, 6, 9])
    judged = recipe.judge(batch)
    assert not judged.hits.any()
    assert judged.counts.tolist() == [72, 64, 56]
    assert judged.losses.tolist() == judged.overlaps.tolist() == [0, 0, 0]
    assert judged.loss == 0


@pytest.mark.parametrize("form", ["eagle3", "speculators"])
def test_files_hold_the_head(form: str, tmp_path: Path) -> None:
    recipe = recipe_of(dtype=torch.float32)
    recipe.write(tmp_path / "head", form)
    check_files(tmp_path / "head", recipe.trained(torch.bfloat16))


@pytest.mark.parametrize("form", ["eagle3", "speculators"])
@pytest.mark.parametrize(
    "change",
    [{"family": "qwen3", "qk_norm": True}, {"family": "qwen2", "qkv_bias": True}, {"family": "mistral"},
     {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "tied_head": False}],
    ids=["qwen3", "qwen2", "mistral", "every bias"],
)  # fmt: skip
def test_a_head_for_any_target_can_be_written(form: str, change: dict[str, object], tmp_path: Path) -> None:
    recipe = recipe_of(eagle3_config(replace(TARGET, **change), (1, 2, 3), len(MAP)))  # type: ignore[arg-type]
    recipe.write(tmp_path / "head", form, torch.float64)
    check_files(tmp_path / "head", recipe.trained(torch.float64))


def test_unknown_forms_and_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="form must be one of eagle3, speculators, not 'eagel3'; did you mean"
    ):
        recipe_of().write(tmp_path / "head", "eagel3")
    with pytest.raises(ConfigError, match="loss must be one of"):
        recipe_of(lesson=Lesson("kl"))
    with pytest.raises(ConfigError, match="steps must be at least 1, not 0"):
        Lesson(steps=0)
    with pytest.raises(ConfigError, match="retention must be above 0 and at most 1, not 2"):
        Lesson(retention=2)
