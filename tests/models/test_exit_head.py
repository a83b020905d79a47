"""Exit heads: the forward, heads that add nothing, what files hold, and what does not fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.core.records import TokenWeights
from outrider.errors import ModelLoadError, PairError
from outrider.models.exit_head import ExitHead, exit_shapes, untrained_exit
from outrider.models.head_fit import check_head
from outrider.models.head_formats.read import is_head
from outrider.models.head_formats.write import write_head
from outrider.models.heads import ExitConfig, Head, read_head
from outrider.models.linear import Linear

HIDDEN, VOCAB = 8, 40
MAP = torch.tensor([3, 0, 7, 20, 31])
CONFIG = ExitConfig(exit_layer=2, hidden=HIDDEN, intermediate=12, vocab_size=VOCAB, draft_vocab=len(MAP))
WHOLE = replace(CONFIG, draft_vocab=VOCAB)


def weights() -> TokenWeights:
    made = torch.Generator().manual_seed(1)
    embedding, head = torch.randn(2, VOCAB, HIDDEN, generator=made, dtype=torch.float64)
    norm = 1.0 + 0.3 * torch.randn(HIDDEN, generator=made, dtype=torch.float64)
    return TokenWeights(embedding, head, norm, 1e-5)


def random_head(config: ExitConfig = CONFIG, dtype: torch.dtype = torch.float64) -> Head:
    made = torch.Generator().manual_seed(2)
    tensors = {
        name: torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)
        for name, shape in exit_shapes(config).items()
    }
    return Head(config, tensors, MAP if config.draft_vocab < VOCAB else None, name="random head")


def states(count: int) -> torch.Tensor:  # [count, hidden]
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 4.0


def plain_row(head: Head, state: list[float]) -> list[float]:
    """The head on one state, number by number."""
    token = weights()

    def normed(x: list[float], name: str) -> list[float]:
        size = math.sqrt(sum(v * v for v in x) / HIDDEN + token.norm_eps)
        return [v / size * g for v, g in zip(x, head.tensors[name].tolist())]

    def product(matrix: torch.Tensor, x: list[float]) -> list[float]:
        return [sum(w * v for w, v in zip(row, x)) for row in matrix.tolist()]

    seen = normed(state, "block_norm.weight")
    gate, up = (product(head.tensors[f"{name}_proj.weight"], seen) for name in ("gate", "up"))
    inner = [g / (1.0 + math.exp(-g)) * u for g, u in zip(gate, up)]
    added = product(head.tensors["down_proj.weight"], inner)
    rows = token.head if head.token_map is None else token.head[head.token_map]
    return product(rows, normed([x + y for x, y in zip(state, added)], "norm.weight"))


@pytest.mark.parametrize("config", [CONFIG, WHOLE], ids=["draft vocabulary", "whole vocabulary"])
@pytest.mark.parametrize("swap", [False, True], ids=["as it trains", "with swapped products"])
def test_the_forward_is_that_of_the_formula(config: ExitConfig, swap: bool) -> None:
    head = random_head(config)
    module = ExitHead(head, weights(), dtype=torch.float64)
    if swap:
        module.swap_products(Linear)
    rows = module(states(4))
    wanted = torch.tensor([plain_row(head, state) for state in states(4).tolist()], dtype=torch.float64)
    torch.testing.assert_close(rows, wanted)


def test_an_untrained_head_says_what_the_target_would_if_it_ended_there() -> None:
    token, seen = weights(), states(5)
    rows = ExitHead(untrained_exit(CONFIG, token, MAP), token)(seen)
    scale = torch.rsqrt(seen.square().mean(1, keepdim=True) + token.norm_eps)
    torch.testing.assert_close(
        rows.double(), (seen * scale * token.norm) @ token.head[MAP].T, atol=1e-4, rtol=1e-4
    )


def test_all_but_the_target_s_rows_is_trained() -> None:
    token = weights()
    module = ExitHead(random_head(), token, dtype=torch.float64)
    module(states(4)).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert (parameter.grad is None) == (name == "lm_head.weight"), name
    assert {name: tuple(tensor.shape) for name, tensor in module.tensors().items()} == exit_shapes(CONFIG)


@pytest.mark.parametrize("config", [CONFIG, WHOLE], ids=["draft vocabulary", "whole vocabulary"])
def test_files_hold_the_head(tmp_path: Path, config: ExitConfig) -> None:
    head = random_head(config, torch.bfloat16)
    write_head(head, tmp_path / "head", "outrider", target="some-target")
    read = read_head(tmp_path / "head")
    assert (read.config, read.method, read.findings) == (config, "self_draft", ())
    assert (read.token_map is None) == (head.token_map is None)
    assert head.token_map is None or torch.equal(read.token_map, head.token_map)  # type: ignore[arg-type]
    assert read.tensors.keys() == head.tensors.keys()
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in head.tensors.items())
    assert is_head(tmp_path / "head")
    assert json.loads((tmp_path / "head" / "config.json").read_text())["target"] == "some-target"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"exit_layer": None}, "config.json has no exit_layer"),
        ({"exit_layer": 0}, "exit_layer must be a whole number above 0, not 0"),
        ({"hidden_size": 9}, "block_norm.weight"),
        ({"draft_vocab_size": 4}, "5 draft ids, but the output matrix has 4 rows"),
        ({"vocab_size": 20}, "t2d must hold 20 truth values"),
    ],
)
def test_a_config_that_does_not_fit_its_tensors_is_named(
    tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    write_head(random_head(), tmp_path / "head", "outrider")
    path = tmp_path / "head" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(ModelLoadError, match=says):
        read_head(tmp_path / "head")


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    write_head(random_head(), tmp_path / "head", "outrider")
    path = tmp_path / "head" / "model.safetensors"
    state = load_file(path)
    save_file({**state, "extra.weight": torch.zeros(1)}, path)
    with pytest.raises(ModelLoadError, match=r"'extra\.weight'.*no part of an exit head"):
        read_head(tmp_path / "head")
    save_file({name: tensor for name, tensor in state.items() if name != "norm.weight"}, path)
    with pytest.raises(ModelLoadError, match=r"'norm\.weight' is missing"):
        read_head(tmp_path / "head")


def test_other_forms_have_no_place_for_it(tmp_path: Path) -> None:
    for form in ("eagle3", "medusa_vllm"):
        with pytest.raises(ModelLoadError, match=f"form '{form}' cannot hold this head"):
            write_head(random_head(), tmp_path / "head", form)


def test_the_first_thing_that_does_not_fit_the_target_is_named() -> None:
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": 3}
    check_head(random_head(), **sizes)
    with pytest.raises(PairError, match="a vocabulary of 40 tokens, the target has 41"):
        check_head(random_head(), **{**sizes, "vocab_size": 41})
    with pytest.raises(ModelLoadError, match="hidden states of 8 values, the target has 9"):
        check_head(random_head(), **{**sizes, "hidden_size": 9})
    with pytest.raises(ModelLoadError, match="reads what 2 layers make, and the target has 2"):
        check_head(random_head(), **{**sizes, "num_layers": 2})
    wider = replace(CONFIG, intermediate=13)
    with pytest.raises(ModelLoadError, match=r"down_proj.weight must be \(8, 13\), not \(8, 12\)"):
        ExitHead(replace(random_head(), config=wider), weights())
