"""Batches: every text once an epoch, within the token limit, little padding, the same at every start."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from outrider.train.order import batches, epoch_batches, packed

LENGTHS = [20 + (37 * index * index) % 380 for index in range(900)]


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_holds_every_text_once_within_the_limit(epoch: int) -> None:
    found = epoch_batches(LENGTHS, 2048, seed=3, epoch=epoch)
    assert sorted(index for batch in found for index in batch) == list(range(900))
    assert all(len(batch) * max(LENGTHS[index] for index in batch) <= 2048 for batch in found)


def test_texts_of_a_batch_are_of_similar_length() -> None:
    found = epoch_batches(LENGTHS, 2048, seed=3, epoch=0)
    padded = sum(len(batch) * max(LENGTHS[index] for index in batch) for batch in found)
    assert padded < 1.1 * sum(LENGTHS)


def test_long_and_short_batches_come_mixed() -> None:
    found = epoch_batches(LENGTHS, 2048, seed=3, epoch=0)
    means = [sum(LENGTHS[index] for index in batch) / len(batch) for batch in found]
    rises = sum(after > before for before, after in pairwise(means))
    assert 0.35 < rises / (len(means) - 1) < 0.65


def test_epochs_and_seeds_differ_and_a_later_start_sees_the_same() -> None:
    first, second = (epoch_batches(LENGTHS, 2048, seed=3, epoch=epoch) for epoch in (0, 1))
    assert first != second
    assert first != epoch_batches(LENGTHS, 2048, seed=4, epoch=0)
    assert list(islice(batches(LENGTHS, 2048, 3), len(first) + 5)) == first + second[:5]


def test_a_text_beyond_the_limit_is_a_batch_of_its_own() -> None:
    assert packed([0, 1, 2, 3], [5, 5, 90, 5], 12) == [(0, 1), (2,), (3,)]
    assert packed([], [], 12) == []
