"""The toy target: pure laws, and an assertion for every way to mishandle its cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider.core.protocols import Chunk, LayeredTarget
from outrider.core.records import EMPTY_DRAFT, Context, Draft, RoundResult
from outrider.testing.toy import ToyTarget

TREE = Draft.tree([1, 2, 3, 4], [None, None, 1, 1])


def opened(target: ToyTarget, text: list[int], sequence_id: int = 0) -> Context:
    target.extend([Chunk(sequence_id, text[:-1])])
    return Context.of(text, sequence_id=sequence_id)


def test_it_is_a_layered_target() -> None:
    assert isinstance(ToyTarget(8), LayeredTarget)


def test_rows_are_the_logits_of_each_nodes_own_path() -> None:
    target = ToyTarget(8, order=3)
    context = opened(target, [5, 6, 7])
    (scores,) = target.score([context], [TREE])
    for row, path in enumerate([(), (1,), (2,), (2, 3), (2, 4)]):
        np.testing.assert_array_equal(scores.logits[row].numpy(), target.logits_of([5, 6, 7, *path]))


def test_the_last_tokens_alone_decide_and_sharpness_scales() -> None:
    target = ToyTarget(8, order=2, sharpness=1.0)
    np.testing.assert_array_equal(target.logits_of([1, 2, 3]), target.logits_of([7, 2, 3]))
    assert not np.array_equal(target.logits_of([1, 2, 3]), target.logits_of([1, 4, 3]))
    np.testing.assert_allclose(ToyTarget(8, sharpness=3.0).logits_of([1]), 3 * target.logits_of([1]))


def test_a_table_gives_the_row_of_the_longest_key() -> None:
    target = ToyTarget.from_table({(): (0.5, 0.5, 0.0), (1,): (0.2, 0.3, 0.5), (0, 1): (1.0, 0.0, 0.0)})
    np.testing.assert_allclose(np.exp(target.logits_of([2])), (0.5, 0.5, 0.0))
    np.testing.assert_allclose(np.exp(target.logits_of([2, 1])), (0.2, 0.3, 0.5))
    np.testing.assert_allclose(np.exp(target.logits_of([2, 0, 1])), (1.0, 0.0, 0.0))
    broken = ToyTarget.from_table({(): (0.5, 0.5), (1,): (float("nan"), 0.5)})
    assert np.isnan(broken.logits_of([0, 1])).any()


def test_commit_caches_the_pending_token_and_the_kept_path() -> None:
    target = ToyTarget(8)
    context = opened(target, [5, 6])
    (scores,) = target.score([context], [TREE])
    target.commit([RoundResult(0, (2, 4, 7), (1, 3), TREE, scores)])
    assert target.cached_length(0) == 4
    (after,) = target.score([Context.of([5, 6, 2, 4, 7])], [EMPTY_DRAFT])
    np.testing.assert_array_equal(after.logits[0].numpy(), target.logits_of([5, 6, 2, 4, 7]))


def test_features_follow_their_path_and_are_only_there_for_taps() -> None:
    target = ToyTarget(8, taps=(1, 3))
    (prompt,) = target.extend([Chunk(0, [5, 6, 7])])
    assert prompt is not None
    assert prompt.shape == (3, 2, 16)
    (scores,) = target.score([Context.of([5, 6, 7, 1])], [Draft.tree([2, 3], [None, None])])
    (whole,) = target.extend([Chunk(1, [5, 6, 7, 1, 3])])
    assert scores.features is not None
    assert whole is not None
    assert torch.equal(scores.features[2], whole[4])
    assert ToyTarget(8).extend([Chunk(0, [1])]) == [None]


def test_fewer_layers_blur_the_rows_and_all_of_them_do_not() -> None:
    target = ToyTarget(32, num_layers=4)
    context = opened(target, [5, 6])
    clear = torch.from_numpy(target.logits_of([5, 6]).copy())
    errors = [
        float((target.draft_rows([context], [EMPTY_DRAFT.nodes], range(layers))[0][0] - clear).abs().max())
        for layers in (1, 2, 3, 4)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0.0 < errors[-2]


def test_an_imitation_speaks_alike_and_pads_its_vocabulary() -> None:
    target = ToyTarget(16, sharpness=4.0)
    np.testing.assert_array_equal(target.imitation(0.0).logits_of([3]), target.logits_of([3]))
    padded = target.imitation(0.0, vocab_size=20).logits_of([3])
    assert np.isneginf(padded[16:]).all()
    assert target.imitation(0.5, vocab_size=10).logits_of([3]).shape == (10,)


def test_fork_rewind_and_release_move_the_cache() -> None:
    target = ToyTarget(8)
    opened(target, [1, 2, 3, 4])
    target.fork(0, 1, 2)
    target.rewind(0, 1)
    assert (target.cached_length(0), target.cached_length(1), target.cached_length(2)) == (1, 2, 0)
    target.release(0)
    target.release(7)
    assert target.open_sequences == (1,)


def test_a_score_on_a_wrong_cache_is_caught() -> None:
    target = ToyTarget(8)
    opened(target, [1, 2, 3])
    for text in ([1, 2], [1, 2, 3, 4], [1, 5, 3]):
        with pytest.raises(AssertionError, match="cached"):
            target.score([Context.of(text)], [EMPTY_DRAFT])
    with pytest.raises(AssertionError, match="never opened"):
        target.score([Context.of([1], sequence_id=9)], [EMPTY_DRAFT])


def test_a_commit_must_follow_its_score_and_nothing_else() -> None:
    target = ToyTarget(8)
    context = opened(target, [1, 2, 3])
    (scores,) = target.score([context], [TREE])
    result = RoundResult(0, (2, 5), (1,), TREE, scores)
    target.draft_rows([context], [TREE.nodes], [0])
    with pytest.raises(AssertionError, match="without its score"):
        target.commit([result])
    target.score([context], [TREE])
    target.commit([result])
    with pytest.raises(AssertionError, match="without its score"):
        target.commit([result])


def test_a_commit_of_scattered_nodes_is_caught() -> None:
    target = ToyTarget(8)
    context = opened(target, [1, 2, 3])
    (scores,) = target.score([context], [TREE])
    with pytest.raises(AssertionError, match="not a path"):
        target.commit([RoundResult(0, (1, 3, 5), (0, 2), TREE, scores)])


def test_drafts_beyond_vocabulary_context_limit_or_shape_are_caught() -> None:
    target = ToyTarget(8, max_length=4)
    context = opened(target, [1, 2, 3])
    target.score([context], [Draft.chain([4])])
    with pytest.raises(AssertionError, match="> 4 tokens"):
        target.score([context], [Draft.chain([4, 5])])
    with pytest.raises(AssertionError, match="unknown token"):
        target.score([context], [Draft.chain([8])])
    chains = ToyTarget(8, supports_trees=False)
    with pytest.raises(AssertionError, match="chains only"):
        chains.score([opened(chains, [1, 2])], [TREE])
