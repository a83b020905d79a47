"""Draft models are measured on their target's texts: what is told is what a greedy chain keeps."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from outrider.drafters.calibration import calibration_texts
from outrider.drafters.head_check import check_model_at_load
from outrider.drafters.model_measure import kept_by_model
from outrider.testing.toy import ToyTarget

VOCAB = 7
PROMPTS = tuple(
    tuple(row) for row in torch.randint(VOCAB, (4, 5), generator=torch.Generator().manual_seed(1)).tolist()
)


def chain_kept(target: ToyTarget, draft: ToyTarget, tokens: tuple[int, ...], pending: int) -> int:
    """How many tokens of a greedy chain of three are the target's."""
    text, kept = list(tokens[: pending + 1]), 0
    while kept < 3:
        guess = int(np.argmax(draft.logits_of(text)))
        if guess != int(np.argmax(target.logits_of(text))):
            break
        text.append(guess)
        kept += 1
    return kept


@pytest.mark.parametrize("noise", [0.0, 1.0, 3.0])
def test_what_is_measured_is_what_a_greedy_chain_keeps(noise: float) -> None:
    target = ToyTarget(VOCAB, seed=4)
    draft = target.imitation(noise)
    texts, _ = calibration_texts(target, PROMPTS, ())
    wanted = [
        chain_kept(target, draft, text.tokens, pending)
        for text in texts
        for pending in range(text.start - 1, len(text.tokens) - 3)
    ]
    assert kept_by_model(draft, texts, None).tolist() == wanted
    assert (sum(wanted) == 3 * len(wanted)) == (noise == 0.0)
    assert draft.open_sequences == ()


def test_columns_stand_for_the_tokens_of_the_map() -> None:
    target = ToyTarget(VOCAB, seed=4)
    texts, _ = calibration_texts(target, PROMPTS, ())

    class Turned(ToyTarget):
        """The same model with its columns in another order."""

        def score(self, contexts, drafts):  # type: ignore[no-untyped-def]
            scores = super().score(contexts, drafts)
            return [type(one)(one.logits.flip(-1), None) for one in scores]

    backwards = tuple(range(VOCAB))[::-1]
    assert (kept_by_model(Turned(VOCAB, seed=4), texts, backwards) == 3).all()


def test_the_log_says_how_often_and_warns_of_a_model_that_never_is(caplog: pytest.LogCaptureFixture) -> None:
    target = ToyTarget(VOCAB, seed=4)
    with caplog.at_level(logging.INFO):
        found = check_model_at_load(target, target, None, PROMPTS)
    assert found is not None
    assert found.by_position == (1.0, 1.0, 1.0)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    constant = ToyTarget.from_table({(): [1.0, *[0.0] * (VOCAB - 1)]})
    never = ToyTarget.from_table({(): [0.0, 1.0, *[0.0] * (VOCAB - 2)]})
    with caplog.at_level(logging.INFO):
        found = check_model_at_load(constant, never, None, PROMPTS)
    assert found is not None
    assert found.rate == 0.0
    assert "use one that speaks as the target does" in caplog.text


def test_a_draft_model_that_cannot_read_the_texts_is_not_measured() -> None:
    target = ToyTarget(VOCAB, seed=4)
    assert check_model_at_load(target, ToyTarget(VOCAB, max_length=10), None, PROMPTS) is None
    assert check_model_at_load(target, ToyTarget(2), None, PROMPTS) is None
    assert check_model_at_load(target, target, None, ()) is None
