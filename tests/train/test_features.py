"""Features: the target's hidden states, the same however much of them is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_target import ARCH, save_target

from outrider import LLM
from outrider.core.protocols import Chunk
from outrider.drafters.setup import tapped
from outrider.train.features import Features
from outrider.train.texts import Text

TEXTS = [
    Text((1, 2, 3), (4, 5), 0.0, "a"),
    Text((6,), (7, 8, 9, 10), 0.7, "a"),
    Text((11, 12), (13,), 1.0, "a"),
]
TAPS = (2, 0, ARCH.layers)
TOKEN_BYTES = len(TAPS) * ARCH.hidden * 2


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    return LLM(save_target(tmp_path / "tiny"), target="torch", dtype="float32")


@pytest.mark.parametrize("room", [0, 6 * TOKEN_BYTES, 1 << 20])
def test_a_batch_holds_what_the_target_computes(llm: LLM, room: int) -> None:
    target = tapped(llm.target)
    target.tap((1,))  # somebody else's
    features = Features(target, TEXTS, TAPS, room)
    assert features.lengths() == [5, 5, 3]
    for _ in range(2):  # once computed, once kept as far as there is room
        batch = features.batch([1, 0, 2])
        assert batch.tokens.tolist() == [[6, 7, 8, 9, 10], [1, 2, 3, 4, 5], [11, 12, 13, 0, 0]]
        assert batch.answered.tolist() == [
            [False, *[True] * 4],
            [False] * 3 + [True] * 2,
            [False, False, True, False, False],
        ]
        for row, text in enumerate((TEXTS[1], TEXTS[0], TEXTS[2])):
            [states] = target.extend([Chunk(99, text.tokens)])
            target.release(99)
            assert states is not None
            columns = [target.taps.index(tap) for tap in TAPS]
            assert torch.equal(batch.features[row, : len(text.tokens)], states[:, columns].to(torch.bfloat16))
            assert not batch.features[row, len(text.tokens) :].any()


def test_no_more_is_kept_than_there_is_room_for(llm: LLM) -> None:
    features = Features(tapped(llm.target), TEXTS, TAPS, 8 * TOKEN_BYTES)
    features.batch([0, 1, 2])
    assert sum(states.numel() * 2 for states in features._kept.values()) == 8 * TOKEN_BYTES  # texts 0 and 2
    assert tapped(llm.target).cached_length(-1) == 0, "the target's caches are free again"
