"""The scripted head is right as often as asked, and notices callers that are out of step."""

from __future__ import annotations

import pytest
import torch

from outrider.models.head_cache import Entries, Guesses
from outrider.testing.scripted_head import ScriptedHead

VOCAB = 20
TEXT = [(7 * i + i // 3) % VOCAB for i in range(600)]


def features(count: int) -> torch.Tensor:
    return torch.zeros(count, 1, 4)


def made(corrupted: float = 0.3, seed: int = 0) -> ScriptedHead:
    head = ScriptedHead({0: TEXT}, vocab_size=VOCAB, corrupted=corrupted, seed=seed)
    head.extend([Entries(0, 0, TEXT[1:6], features(5))])
    return head


@pytest.mark.parametrize("corrupted", [0.0, 0.3, 1.0])
def test_it_is_right_at_the_chosen_share_of_positions(corrupted: float) -> None:
    head, rows = made(corrupted), []
    for parent, token in enumerate(TEXT[6:500]):
        rows += head.guess([Guesses(0, (token,), (parent,))])
    best = torch.cat(rows).topk(2).indices.tolist()
    right = [pair[0] == token for pair, token in zip(best, TEXT[7:])]
    second = [pair[1] == token for pair, token in zip(best, TEXT[7:]) if pair[0] != token]
    assert sum(right) / len(right) == pytest.approx(1.0 - corrupted, abs=0.05)
    assert not second or sum(second) / len(second) == pytest.approx(0.5, abs=0.1)


def test_a_row_hangs_on_the_position_and_the_seed_alone() -> None:
    one, two = made(), made()
    two.extend([Entries(0, 5, TEXT[6:9], features(3))])
    below = one.guess([Guesses(0, (1, 2), (0, 0))])[0]
    below = one.guess([Guesses(0, (3,), (2,))])[0]
    below = one.guess([Guesses(0, (4,), (3,))])[0]
    assert torch.equal(below[0], two.pending_rows([0])[0])
    others = [made(1.0, seed).pending_rows([0])[0] for seed in range(8)]
    assert len({int(row.argmax()) for row in others}) > 3


def test_past_the_text_it_says_nothing() -> None:
    head = ScriptedHead({0: [1, 2, 3]}, vocab_size=VOCAB)
    head.extend([Entries(0, 0, [2, 3], features(2))])
    assert not head.pending_rows([0])[0].any()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (Entries(0, 5, [19], features(1)), "hold the text's tokens"),
        (Entries(0, 5, TEXT[6:8], features(1)), "7 entries with 5 \\+ 1 features"),
        (Entries(0, 6, TEXT[7:8], features(2)), "from 6 on, but 5 are made"),
        (Entries(0, 5, [], features(0)), "one entry at least"),
    ],
)
def test_entries_out_of_step_are_noticed(entries: Entries, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        made().extend([entries])


def test_guesses_below_nothing_are_noticed() -> None:
    with pytest.raises(AssertionError, match="below a row that exists"):
        made().guess([Guesses(0, (1,), (1,))])
    head = made()
    head.guess([Guesses(0, (1,), (0,))])
    with pytest.raises(AssertionError, match="right after an extend"):
        head.pending_rows([0])
