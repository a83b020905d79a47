"""`outrider inspect` on draft heads, alone and beside a target."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from outrider.models.exit_head import untrained_exit
from outrider.models.head_formats.write import write_head
from outrider.models.heads import ExitConfig
from outrider.models.shipped import PLACE


def save_head(folder, vocab_size: int, hidden_size: int) -> None:
    """Three Medusa heads in the v1 form, though their config speaks of two."""
    state = {}
    for head in range(3):
        state[f"{head}.0.linear.weight"] = torch.zeros(hidden_size, hidden_size)
        state[f"{head}.0.linear.bias"] = torch.zeros(hidden_size)
        state[f"{head}.1.weight"] = torch.zeros(vocab_size, hidden_size)
    save_file(state, folder / "medusa_lm_head.safetensors")
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))


def test_inspect_describes_a_head_and_what_its_files_reveal(outrider, tmp_path) -> None:
    save_head(tmp_path, 256, 8)
    done = outrider("inspect", str(tmp_path), "--json")
    report = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (report["method"], report["heads"], report["vocab_size"]) == ("medusa", 3, 256)
    assert report["findings"] == ["medusa_num_heads is 2, but the file has 3 heads: the tensors count"]
    assert "the file has 3 heads" in outrider("inspect", str(tmp_path)).out
    refused = outrider("inspect", str(tmp_path), "--draft", "toy")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "is a draft head: give the target first" in refused.err


@pytest.mark.parametrize(("vocab_size", "code"), [(256, 0), (255, 1)])
def test_inspect_judges_a_head_by_the_sizes_of_the_target(
    outrider, target, tmp_path, vocab_size, code
) -> None:
    save_head(tmp_path, vocab_size, target.hidden_size)
    done = outrider("inspect", "toy", "--draft", str(tmp_path), "--json")
    assert done.code == code, done.err
    pair = json.loads(done.out)["pair"]
    assert pair["verdict"] == ("incompatible" if code else "compatible")
    assert pair["draft"]["heads"] == 3
    assert (pair["acceptance"] is None) == bool(code)
    assert not code or "a vocabulary of 255 tokens, the target has 256" in pair["first_difference"]


def test_inspect_tells_what_an_exit_head_is_and_how_often_it_is_right(outrider, target, tmp_path) -> None:
    config = ExitConfig(2, target.hidden_size, 8, target.vocab_size, target.vocab_size)
    folder = str(tmp_path / "exit")
    write_head(untrained_exit(config, target.token_weights()), folder, "outrider")
    alone = json.loads(outrider("inspect", folder, "--json").out)
    assert (alone["method"], alone["exit_layer"], alone["draft_vocab"]) == (
        "self_draft",
        2,
        target.vocab_size,
    )
    pair = json.loads(outrider("inspect", "toy", "--draft", folder, "--json").out)["pair"]
    assert pair["verdict"] == "compatible"
    assert len(pair["acceptance"]) == 3


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a target"])
def test_lines_fit_110_columns_and_keep_names_beside_their_figures(outrider, target, beside: bool) -> None:
    head = str(PLACE / "smollm2-135m" / "eagle3")
    arguments = ("inspect", "toy", "--draft", head) if beside else ("inspect", head)
    lines = outrider(*arguments).out.splitlines()
    report = json.loads(outrider(*arguments, "--json").out)
    told = (report["pair"]["draft"] if beside else report)["layer"]
    assert max(map(len, lines)) <= 110
    for name in ("hidden", "rope_theta", "max_positions"):
        assert any(f"{name} {told[name]}" in line for line in lines)
    assert sum(line.startswith(" ") for line in lines) > 1, "what does not fit goes on below"
