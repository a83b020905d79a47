"""`HfTarget` between its layers: taps, and drafting with some of the layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from hf_models import (
    MODELS,
    PROMPT,
    TREE,
    VOCAB,
    close,
    context,
    drafted,
    model,
    number_of_hooks,
    plain,
    score,
)

from outrider import LLM, SamplingParams
from outrider.core.protocols import Chunk
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError
from outrider.models.hf import HfTarget
from outrider.text import Tokenizer


@torch.no_grad()
def plain_of_layers(name: str, tokens: list[int], layers: Sequence[int]) -> torch.Tensor:
    """Logits [n, vocab] of a model that was built with these layers of the other alone."""
    kind = getattr(transformers, MODELS[name][0])
    whole = model(name)
    config = copy.deepcopy(whole.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [whole.config.layer_types[index] for index in layers]
    small = kind(config).to(torch.float64).eval()
    held = layer_list(whole)
    state = {k: v for k, v in whole.state_dict().items() if not k.startswith(f"{held}.")}
    for place, index in enumerate(layers):
        for key, value in whole.get_submodule(f"{held}.{index}").state_dict().items():
            state[f"{held}.{place}.{key}"] = value
    small.load_state_dict(state)
    return small(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def layer_list(held: Any) -> str:
    return next(name for name, m in held.named_modules() if isinstance(m, torch.nn.ModuleList))


@pytest.mark.parametrize("layers", [(0,), (0, 1), (0, 2), (2,), (1, 2)])
def test_chosen_layers_equal_a_model_built_of_them(name: str, layers: tuple[int, ...]) -> None:
    target = HfTarget.wrap(model(name))
    pending, tree = 7, TREE  # a first token: what the whole model cached before it would differ
    [rows] = target.draft_rows([context([pending])], [tree], layers)
    for leaf in tree.leaves:
        path = [0, *(node + 1 for node in tree.path(leaf))]
        assert close(rows[path], plain_of_layers(name, [pending, *tree.path_tokens(leaf)], layers))


def test_the_first_layers_read_the_cache_that_the_whole_model_wrote(name: str) -> None:
    target = HfTarget.wrap(model(name))
    target.extend([Chunk(0, PROMPT[:-1])])
    [rows] = target.draft_rows([context(PROMPT)], [TokenTree.chain((4, 6))], range(2))
    expected = plain_of_layers(name, [*PROMPT, 4, 6], (0, 1))
    assert close(rows, expected[len(PROMPT) - 1 :])


def test_drafting_with_some_layers_leaves_no_trace(name: str) -> None:
    held = model(name)
    target = HfTarget.wrap(held, taps=(1, 3))
    settings, listed = held.config.to_dict(), held.get_submodule(layer_list(held))
    wanted = score(target, PROMPT, TREE)
    for layers in ((0,), (1, 2), (0, 2), (0, 1, 2)):
        target.draft_rows([context(PROMPT)], [TREE], layers)
        target.draft_states([context(PROMPT)], [TREE], layers)
        assert held.config.to_dict() == settings
        assert held.get_submodule(layer_list(held)) is listed
        assert all(layer.keys.shape[-2] == len(PROMPT) - 1 for layer in target._caches[0].store.layers)
    after = score(target, PROMPT, TREE)
    assert torch.equal(after.logits, wanted.logits)
    assert torch.equal(after.features, wanted.features)
    target.draft_rows([context(PROMPT)], [TREE], (1,))
    target.extend([Chunk(0, [PROMPT[-1]])])
    assert close(score(target, [*PROMPT, 2], TREE).logits[0], plain(name, [*PROMPT, 2])[-1])
    assert number_of_hooks(held) == 0


def test_the_states_of_the_first_layers_are_those_tapped_behind_them(name: str) -> None:
    target = HfTarget.wrap(model(name), taps=(1, 3))
    features = score(target, PROMPT, TREE).features
    assert features is not None
    for column, layers in enumerate((range(1), range(3))):
        [states] = target.draft_states([context(PROMPT)], [TREE], layers)
        assert close(states, features[:, column])


def test_an_empty_cache_is_as_empty_after_drafting_with_later_layers(name: str) -> None:
    target = HfTarget.wrap(model(name))
    target.draft_rows([context([7])], [TREE], (2,))
    assert close(score(target, [7], TREE).logits[0], plain(name, [7])[-1])


def test_a_model_is_restored_when_its_layers_fail() -> None:
    held = copy.deepcopy(model("llama"))
    target = HfTarget.wrap(held)
    listed, first = held.model.layers, held.model.layers[0].forward

    def failing(*args: Any, **options: Any) -> Any:
        raise KeyError("the keys of layer 1")

    held.model.layers[0].forward = failing
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*the keys of layer 1"):
        target.draft_rows([context([7])], [TREE], (0,))
    assert held.model.layers is listed
    held.model.layers[0].forward = first
    assert close(score(target, [7], TREE).logits[0], plain("llama", [7])[-1])


def test_a_model_with_two_lists_of_layers_is_refused_by_its_class() -> None:
    held = copy.deepcopy(model("llama"))
    held.more = torch.nn.ModuleList([torch.nn.Identity() for _ in range(3)])
    target = HfTarget.wrap(held)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*list of 3 layers"):
        target.draft_rows([context([7])], [TREE], (0,))


@pytest.mark.parametrize(
    "settings", [{"assistant_early_exit": 1}, {"skip_layers": [1]}, {"skip_layers": [0]}]
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_drafting_with_some_layers_changes_no_text(family: str, settings: dict[str, Any]) -> None:
    vocabulary = {f"w{index}": index for index in range(VOCAB)}
    words = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0")))
    held = model(family)
    plain_llm = LLM.from_model(held, words)
    config = {"method": "self_draft", "num_speculative_tokens": 3, **settings}
    drafting = LLM.from_model(held, words, speculative_config=config)
    for sampling in (SamplingParams(temperature=0.0, max_tokens=10), SamplingParams(seed=3, max_tokens=10)):
        prompts = [PROMPT, [5, 6], [9]]
        wanted, done = plain_llm.generate(prompts, sampling), drafting.generate(prompts, sampling)
        assert [c.token_ids for c in done] == [c.token_ids for c in wanted]
        assert sum(c.stats.num_draft_tokens for c in done) > 0


def test_features_are_the_states_between_the_layers(name: str) -> None:
    held = model(name)
    target = HfTarget.wrap(held, taps=(0, 2, 3))
    chain = [*PROMPT, 4, 6]
    with torch.no_grad():
        states = held(input_ids=torch.tensor([chain]), output_hidden_states=True).hidden_states
    [prefilled] = target.extend([Chunk(0, PROMPT[:-1])])
    scored = target.score([context(PROMPT)], [drafted(TokenTree.chain((4, 6)))])[0].features
    assert prefilled is not None
    assert scored is not None
    features = torch.cat([prefilled, scored])
    assert features.shape == (len(chain), 3, 32)
    assert close(features[:, 0], states[0][0])
    assert close(features[:, 1], states[2][0])
    norm = next(m for n, m in held.named_modules() if n.endswith((".norm", "ln_f", "final_layer_norm")))
    assert close(norm(features[:, 2]), states[3][0])
    [empty] = target.extend([Chunk(9, [])])
    assert empty is not None
    assert empty.shape == (0, 3, 32)


def test_without_taps_there_are_no_features() -> None:
    target = HfTarget.wrap(model("llama"))
    assert target.extend([Chunk(0, PROMPT[:-1])]) == [None]
    assert score(target, PROMPT, TREE).features is None
    with pytest.raises(ConfigError, match="tap 4"):
        HfTarget.wrap(model("llama"), taps=(4,))
