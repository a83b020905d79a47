"""Self-drafting: the layers asked for, on the target's own cache."""

from __future__ import annotations

import pytest

from outrider.core.protocols import Chunk
from outrider.core.records import EMPTY_DRAFT, Budget, Context
from outrider.drafters.self_draft import SelfDrafter
from outrider.errors import ConfigError
from outrider.testing.contract import check_drafter
from outrider.testing.toy import ToyTarget


def test_early_exit_and_skipped_layers_name_the_layers_that_run() -> None:
    target = ToyTarget(8, num_layers=5)
    assert SelfDrafter.early_exit(target, 3).layers == (0, 1, 2)
    assert SelfDrafter.skip(target, [1, 3]).layers == (0, 2, 4)


@pytest.mark.parametrize("layers", [0, 4, 9])
def test_an_exit_that_leaves_nothing_out_is_refused(layers: int) -> None:
    with pytest.raises(ConfigError, match="between 1 and 3"):
        SelfDrafter.early_exit(ToyTarget(8, num_layers=4), layers)


@pytest.mark.parametrize("skipped", [[], [0, 1, 2, 3], [4]])
def test_skipping_none_all_or_unknown_layers_is_refused(skipped: list[int]) -> None:
    with pytest.raises(ConfigError, match="skip_layers"):
        SelfDrafter.skip(ToyTarget(8, num_layers=4), skipped)


def test_all_layers_but_none_of_the_noise_draft_the_text_itself() -> None:
    target = ToyTarget(8, num_layers=4, noise_scale=0.0)
    text = [1, 2, 3]
    target.extend([Chunk(0, text[:-1])])
    (draft,) = SelfDrafter.early_exit(target, 1).propose([Context.of(text)], [Budget(4, 4)], [EMPTY_DRAFT])
    for token in draft.nodes.tokens:
        assert token == int(target.logits_of(text).argmax())
        text.append(token)
    assert len(draft) == 4
    assert target.calls["score"] == 0


def test_a_target_without_trees_gets_chains() -> None:
    target = ToyTarget(8, supports_trees=False)
    target.extend([Chunk(0, [1])])
    (draft,) = SelfDrafter.early_exit(target, 2, topk=3).propose(
        [Context.of([1, 2])], [Budget(3, 9)], [EMPTY_DRAFT]
    )
    assert draft.nodes.is_chain
    assert len(draft) == 3


def test_the_contract_is_kept() -> None:
    check_drafter(
        lambda target: SelfDrafter.early_exit(target, 3, topk=2),  # type: ignore[arg-type]
        lambda: ToyTarget(12, sharpness=4.0),
    )
