"""What `HfTarget` finds out at construction: models that cannot rewind, layers that follow no tree mask."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from hf_models import PROMPT, SMALL, VOCAB, close, model, plain, score

from outrider.core.tree import TokenTree
from outrider.errors import ModelLoadError
from outrider.models.hf import HfTarget
from outrider.testing.contract import check_target


def test_a_model_in_training_mode_is_refused() -> None:
    held = copy.deepcopy(model("llama")).train()
    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM.*eval"):
        HfTarget.wrap(held)
    assert held.training


@pytest.mark.parametrize(
    ("class_name", "settings", "message"),
    [
        ("MambaForCausalLM", {"num_hidden_layers": 2, "hidden_size": 16}, "MambaForCausalLM"),
        ("RwkvForCausalLM", {"num_hidden_layers": 2, "hidden_size": 16, "attention_hidden_size": 16}, "Rwkv"),
        (
            "T5ForConditionalGeneration",
            {"d_model": 16, "d_ff": 16, "num_layers": 1, "d_kv": 8, "num_heads": 2},
            "T5",
        ),
    ],
)
def test_models_that_cannot_rewind_are_refused_by_name(
    class_name: str, settings: dict[str, Any], message: str
) -> None:
    kind = getattr(transformers, class_name)
    held = kind(kind.config_class(vocab_size=VOCAB, **settings)).eval()
    with pytest.raises(ModelLoadError, match=message):
        HfTarget.wrap(held)


def test_hybrid_layers_are_refused_by_the_class_of_their_cache() -> None:
    config = transformers.Qwen3NextConfig(
        **{**SMALL, "num_hidden_layers": 2}, layer_types=["linear_attention", "full_attention"],
        num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, head_dim=8,
    )  # fmt: skip
    with torch.device("meta"):
        held = transformers.Qwen3NextForCausalLM(config).eval()
    with pytest.raises(ModelLoadError, match="Qwen3NextForCausalLM"):
        HfTarget.wrap(held)


@pytest.mark.parametrize(("chosen", "named"), [("static", "StaticCache"), ("quantized", "QuantizedCache")])
def test_a_chosen_cache_that_cannot_rewind_is_refused_by_class(chosen: str, named: str) -> None:
    held = copy.deepcopy(model("llama"))
    held.generation_config.cache_implementation = chosen
    with pytest.raises(ModelLoadError, match=named):
        HfTarget.wrap(held)


def test_attention_that_ignores_masks_gets_chains_only() -> None:
    held = copy.deepcopy(model("llama"))
    forward = held.model.forward

    def deaf(*args: Any, **options: Any) -> Any:
        return forward(*args, **{**options, "attention_mask": None})

    held.model.forward = deaf
    target = HfTarget.wrap(held)
    assert not target.supports_trees
    assert close(score(target, PROMPT, TokenTree.chain((4,))).logits, plain("llama", [*PROMPT, 4])[-2:])


def test_windows_that_the_model_applies_by_itself_get_chains_only() -> None:
    config = transformers.GPTNeoConfig(
        vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64, window_size=5,
        attention_types=[[["global", "local"], 1]], initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    held = transformers.GPTNeoForCausalLM(config).double().eval()
    target = HfTarget.wrap(held)
    assert not target.supports_trees
    check_target(lambda: target, tolerance=1e-5)


def test_a_model_whose_forward_fails_is_refused_in_one_line() -> None:
    held = copy.deepcopy(model("llama"))
    held.lm_head = torch.nn.Linear(5, VOCAB).double()
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM") as error:
        HfTarget.wrap(held)
    assert "\n" not in str(error.value)


def test_a_cache_that_forgets_to_rewind_is_refused() -> None:
    held = copy.deepcopy(model("llama"))
    seen: list[torch.Tensor] = []

    def remembering(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.mean(dim=1, keepdim=True))
        return output + sum(seen)

    held.model.embed_tokens.register_forward_hook(remembering)
    with pytest.raises(ModelLoadError, match="rewind"):
        HfTarget.wrap(held)


def test_weights_that_are_not_finite_are_named() -> None:
    held = copy.deepcopy(model("llama"))
    held.model.layers[1].mlp.up_proj.weight.data[3, 2] = float("nan")
    with pytest.raises(
        ModelLoadError, match=r"LlamaForCausalLM.*not finite.*model\.layers\.1\.mlp\.up_proj\.weight"
    ) as said:
        HfTarget.wrap(held)
    assert "rewind" not in str(said.value)


def test_numbers_of_a_configuration_that_are_not_finite_are_told_from_a_failing_rewind() -> None:
    held = copy.deepcopy(model("llama"))
    held.model.norm.variance_epsilon = float("nan")
    with pytest.raises(ModelLoadError, match=r"LlamaForCausalLM.*not finite.*configuration"):
        HfTarget.wrap(held)
