"""Whether a head fits a target, told by sizes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from head_folders import (
    EAGLE1_CONFIG,
    EAGLE3_CONFIG,
    HIDDEN,
    VOCAB,
    eagle1_state,
    eagle3_state,
    medusa_state,
    whole_vocabulary,
    write,
)

from outrider.errors import ModelLoadError, PairError
from outrider.models.head_fit import check_head, with_positions
from outrider.models.heads import EagleConfig, Head, read_head


def fits(head: Head, **sizes: int) -> None:
    check_head(head, **{"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": 8, **sizes})


def test_the_first_thing_that_does_not_fit_the_target_is_named(tmp_path: Path):
    eagle1 = read_head(write(tmp_path / "1", EAGLE1_CONFIG, eagle1_state()))
    eagle3 = read_head(write(tmp_path / "3", EAGLE3_CONFIG, eagle3_state()))
    medusa = read_head(write(tmp_path / "m", None, medusa_state()))
    for head in (eagle1, eagle3, medusa):
        fits(head)
        with pytest.raises(PairError, match="a vocabulary of 40 tokens, the target has 41"):
            fits(head, vocab_size=41, hidden_size=9)
        with pytest.raises(ModelLoadError, match="hidden states of 8 values, the target has 9"):
            fits(head, hidden_size=9)
    fits(eagle1, num_layers=1)
    with pytest.raises(ModelLoadError, match="reads layer -1 of the 2 of its target by default"):
        fits(eagle3, num_layers=2)
    taps = {**EAGLE3_CONFIG, "eagle_aux_hidden_state_layer_ids": [1, 4, 9]}
    tapped = read_head(write(tmp_path / "3", taps, eagle3_state()))
    fits(tapped, num_layers=9)
    with pytest.raises(ModelLoadError, match="reads layer 9, but the target has 8"):
        fits(tapped)


def test_a_head_of_another_width_needs_embeddings_of_its_own(tmp_path: Path):
    narrow = read_head(write(tmp_path, EAGLE3_CONFIG, eagle3_state(target_hidden=6)))
    with pytest.raises(ModelLoadError, match="is 8 wide and has no embed_tokens"):
        fits(narrow, hidden_size=6)
    own = {
        **whole_vocabulary(eagle3_state(target_hidden=6)),
        "embed_tokens.weight": torch.zeros(VOCAB, HIDDEN),
    }
    del own["lm_head.weight"]
    spoken = read_head(write(tmp_path, {**EAGLE3_CONFIG, "draft_vocab_size": VOCAB}, own))
    with pytest.raises(ModelLoadError, match="is 8 wide and has no lm_head"):
        fits(spoken, hidden_size=6)
    own = {**eagle3_state(target_hidden=6), "embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)}
    fits(read_head(write(tmp_path, EAGLE3_CONFIG, own)), hidden_size=6)


def test_the_position_limit_is_raised_to_that_of_the_target_and_never_lowered(tmp_path: Path):
    head = read_head(write(tmp_path / "3", EAGLE3_CONFIG, eagle3_state()))
    raised = with_positions(head, 8192)
    assert isinstance(raised.config, EagleConfig)
    assert raised.config.arch.max_positions == 8192
    assert raised.tensors is head.tensors
    assert with_positions(raised, 4096) is raised
    medusa = read_head(write(tmp_path / "m", None, medusa_state()))
    assert with_positions(medusa, 8192) is medusa
