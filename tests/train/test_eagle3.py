"""EAGLE-3 training: what is trained is what drafts; who sees what; which tensors learn, and that they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.core.records import TokenWeights
from outrider.errors import ConfigError
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.head_cache import CachedHead, Entries, Guesses
from outrider.models.heads import EagleConfig, read_head
from outrider.train.eagle3 import Eagle3Recipe, Unrolling, eagle3_config
from outrider.train.texts import Batch, Text, batch_of

VOCAB, HIDDEN, LAYERS, STEPS = 30, 16, 4, 3
TARGET = Arch("llama", LAYERS, HIDDEN, 24, 4, 2, 4, VOCAB, 1e-5, 10000.0, RopeScaling(),
              False, False, False, False, True, 64)  # fmt: skip
MAP = torch.tensor([0, 1, 2, 5, 7, 8, 11, 12, 20, 29])
MODERN = eagle3_config(TARGET, (1, 2, 3), len(MAP))
PLAIN = replace(MODERN, fc_norm=False, norm_output=False, norm_before_residual=False)
UNCUT = replace(MODERN, draft_vocab=VOCAB, taps=(0, 4, 2), norm_before_fc=True, fc_norm=False)
by_config = pytest.mark.parametrize(
    "config", [PLAIN, MODERN, replace(MODERN, norm_output=False), UNCUT],
    ids=["plain", "all norms", "raw states on", "uncut, last tap in between"],
)  # fmt: skip


def some_weights() -> TokenWeights:
    made = torch.Generator().manual_seed(3)
    embedding, head = torch.randn(2, VOCAB, HIDDEN, generator=made)
    return TokenWeights(embedding, head, 1 + 0.1 * torch.randn(HIDDEN, generator=made), 1e-5)


WEIGHTS = some_weights()


def recipe_of(config: EagleConfig = MODERN, loss: str = "kl_div", dtype: torch.dtype = torch.float64,
              steps: int = STEPS) -> Eagle3Recipe:  # fmt: skip
    token_map = MAP if config.draft_vocab < VOCAB else None
    return Eagle3Recipe(
        config, WEIGHTS, Unrolling(steps, loss), num_layers=LAYERS, token_map=token_map, dtype=dtype
    )


def some_texts() -> list[Text]:
    made = torch.Generator().manual_seed(5)
    lengths = ((4, 9), (1, 6), (7, 1), (2, 12))
    return [
        Text(*(tuple(torch.randint(VOCAB, (n,), generator=made).tolist()) for n in pair), 0.0, "made")
        for pair in lengths
    ]


def some_batch(recipe: Eagle3Recipe, texts: list[Text] | None = None) -> Batch:
    texts = some_texts() if texts is None else texts
    made = torch.Generator().manual_seed(7)
    shape = (len(recipe.taps), HIDDEN)
    features = [torch.randn(len(t.tokens), *shape, generator=made, dtype=torch.float64) for t in texts]
    return batch_of(texts, features)


def drafted_rows(head: EagleHead, batch: Batch, text: int, pending: int, steps: int) -> torch.Tensor:
    """Logits over the draft vocabulary as drafting along the text works them out, [steps, draft vocab]."""
    cached, tokens = CachedHead(head), batch.tokens[text].tolist()
    cached.extend([Entries(0, 0, tokens[1 : pending + 1], batch.features[text, :pending])])
    rows = cached.pending_rows([0])
    for j in range(1, steps):
        rows.append(cached.guess([Guesses(0, (tokens[pending + j],), (j - 1,))])[0][0])
    return torch.stack(rows)


@by_config
def test_training_computes_what_drafting_does(config: EagleConfig) -> None:
    recipe = recipe_of(config)
    batch = some_batch(recipe)
    hits, checked = recipe.judge(batch).hits, 0
    token_map = MAP if config.draft_vocab < VOCAB else torch.arange(VOCAB)
    for j, step in enumerate(recipe.unroll(batch)):
        logits = step.spoken @ step.matrix.T
        for text, pending, row in zip(step.texts.tolist(), step.pending.tolist(), logits):
            expected = drafted_rows(recipe.head, batch, text, pending, j + 1)[j]
            torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-9)
            token = batch.tokens[text, pending + 1 + j]
            assert hits[text, pending, j] == (token_map[row.argmax()] == token)
            checked += 1
    assert checked == sum(recipe.judge(batch).counts.tolist())


def test_guesses_are_judged_where_drafts_are_asked_for() -> None:
    recipe = recipe_of()
    batch = some_batch(recipe)
    for j, step in enumerate(recipe.unroll(batch)):
        wanted = [
            (text, pending)
            for text, row in enumerate(some_texts())
            for pending in range(max(1, len(row.prompt) - 1), len(row.tokens) - 1 - j)
        ]
        assert list(zip(step.texts.tolist(), step.pending.tolist())) == wanted
    assert recipe.judge(batch).counts.tolist() == [9 + 5 + 1 + 12, 8 + 4 + 11, 7 + 3 + 10]
