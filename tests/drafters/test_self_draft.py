"""Self-drafting: the layers asked for, on the target's own cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.config import SpeculativeConfig
from outrider.core.protocols import Chunk, Drafter, TargetModel
from outrider.core.records import EMPTY_DRAFT, Budget, Context
from outrider.drafters.registry import build_drafter
from outrider.drafters.self_draft import SelfDrafter
from outrider.drafters.setup import DrafterSetup
from outrider.errors import ConfigError, ModelLoadError, PairError
from outrider.models.exit_head import ExitHead, exit_shapes
from outrider.models.heads import ExitConfig, Head, MedusaConfig
from outrider.models.medusa_head import untrained_head
from outrider.pairing import load_head
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


VOCAB = 12


def exit_of(target: ToyTarget, exit_layer: int = 2) -> Head:
    """A random exit head that speaks of half the vocabulary."""
    config = ExitConfig(exit_layer, target.hidden_size, 8, target.vocab_size, target.vocab_size // 2)
    made = torch.Generator().manual_seed(4)
    tensors = {name: torch.randn(shape, generator=made) for name, shape in exit_shapes(config).items()}
    return Head(config, tensors, torch.arange(0, target.vocab_size, 2), name="h")


def built(target: TargetModel, head: Head, **settings: Any) -> Drafter:
    config = SpeculativeConfig.of(
        {"method": "self_draft", "model": head, "check_draft": False, "cut_drafts": False, **settings}
    )
    return build_drafter(DrafterSetup(config, target, lambda: target, lambda: load_head(config)))


@pytest.mark.parametrize("topk", [1, 3])
def test_an_exit_head_speaks_of_the_states_behind_its_layers(topk: int) -> None:
    target, text = ToyTarget(VOCAB), (1, 2, 3)
    head = exit_of(target)
    module = ExitHead(head, target.token_weights())
    target.extend([Chunk(0, text[:-1])])
    drafter = built(target, head, topk=topk, draft_dtype="float32")
    [draft] = drafter.propose([Context.of(text)], [Budget(3, 3 * topk)], [EMPTY_DRAFT])
    assert len(draft) == 3 * topk
    assert target.calls["draft_states"] > 1
    assert target.calls["draft_rows"] == target.calls["score"] == 0
    [states] = target.draft_states([Context.of(text)], [draft.nodes], range(2))
    best = module(states).topk(topk, dim=1).indices * 2
    for row, children in enumerate(draft.nodes.children):
        if children:
            tokens = [draft.nodes.tokens[node] for node in children]
            assert tokens == best[row, : len(tokens)].tolist()


def test_an_exit_head_keeps_the_contract() -> None:
    check_drafter(
        lambda target: built(target, exit_of(target), topk=2), lambda: ToyTarget(VOCAB, sharpness=4.0)
    )  # type: ignore[arg-type]


def test_the_layers_of_an_exit_head_are_its_own() -> None:
    target = ToyTarget(VOCAB)
    assert built(target, exit_of(target), assistant_early_exit=2).layers == (0, 1)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="assistant_early_exit is 3, but head 'h' was trained for 2 layers"):
        built(target, exit_of(target), assistant_early_exit=3)
    with pytest.raises(ModelLoadError, match="reads what 4 layers make, and the target has 4"):
        built(target, exit_of(target, 4))
    with pytest.raises(PairError, match="a vocabulary of 12 tokens, the target has 16"):
        built(ToyTarget(16), exit_of(target))
    medusa = untrained_head(MedusaConfig(1, 1, 16, VOCAB, VOCAB), target.token_weights())
    with pytest.raises(ConfigError, match="is a head for method 'medusa', not 'self_draft'"):
        built(target, medusa)
