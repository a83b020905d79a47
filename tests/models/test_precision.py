"""The error between two targets: what it counts, over which positions, and what it leaves behind."""

from __future__ import annotations

import pytest
import torch

from outrider.core.records import Context, Draft
from outrider.models.precision import Text, law_error
from outrider.testing.toy import ToyTarget

VOCAB = 13
TEXTS = (Text((1, 2, 3), (4, 5, 6, 7)), Text((5,), (1, 1, 2)), Text((9, 8), tuple(range(12)) * 4))


def toy(seed: int = 3) -> ToyTarget:
    return ToyTarget(VOCAB, seed=seed, sharpness=2.0)


def law(target: ToyTarget, tokens: tuple[int, ...]) -> torch.Tensor:
    """[vocab] float64: the law after `tokens`, each from a cache of its own."""
    from outrider.core.protocols import Chunk

    target.extend([Chunk(0, tokens[:-1])])
    logits = target.score([Context.of(tokens)], [Draft.chain(())])[0].logits[0].double().clone()
    target.release(0)
    return torch.softmax(logits, dim=-1)


@pytest.mark.parametrize("positions", [1, 5, 7, 30, 55])
def test_it_is_the_mean_over_the_first_positions_of_the_answers(positions: int) -> None:
    reference, other = toy(), toy(4)
    places = [text.prompt + text.answer[:i] for text in TEXTS for i in range(len(text.answer))][:positions]
    pairs = [(law(reference, place), law(other, place)) for place in places]
    kl = sum(float((p * (p / q).log()).sum()) for p, q in pairs) / positions
    top1 = sum(int(p.argmax() == q.argmax()) for p, q in pairs) / positions
    found = law_error(toy(), toy(4), TEXTS, positions)
    assert found is not None
    assert found.positions == positions
    assert found.kl_nats == pytest.approx(kl, rel=1e-5)
    assert kl > 0.01
    assert found.top1 == top1


def test_a_target_has_no_error_against_itself() -> None:
    one = toy()
    found = law_error(one, one, TEXTS, 100)
    assert found is not None
    assert (found.kl_nats, found.top1, found.positions) == (0.0, 1.0, 55)


def test_texts_beyond_the_positions_are_never_asked_for() -> None:
    def endless():
        yield TEXTS[0]
        raise AssertionError("four positions were enough")

    found = law_error(toy(), toy(), endless(), 4)
    assert found is not None
    assert found.positions == 4


def test_no_position_is_no_error() -> None:
    assert law_error(toy(), toy(), (), 4) is None
    assert law_error(toy(), toy(), (Text((1,), ()),), 4) is None


def test_nothing_is_left_open() -> None:
    reference, other = toy(), toy(4)
    law_error(reference, other, TEXTS, 50)
    for target in (reference, other):
        assert all(target.cached_length(2**62 + i) == 0 for i in range(2))
