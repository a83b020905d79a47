"""A transformers model wrapped as it is, and `generate_with` in either spelling."""

from __future__ import annotations

import pytest
import torch
from worded import EOS, GREEDY, VOCAB, tokenizer

from outrider import LLM, generate_with
from outrider.errors import ConfigError, ModelLoadError


@pytest.fixture(scope="module")
def tiny() -> tuple[object, object]:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                         eos_token_id=EOS, bos_token_id=None, initializer_range=0.4)  # fmt: skip
    backend = tokenizer()._backend
    return LlamaForCausalLM(config).eval(), PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>"
    )


def test_a_transformers_model_is_wrapped_as_it_is(tiny: tuple[object, object]) -> None:
    model, words = tiny
    before = {k: v.clone() for k, v in model.state_dict().items()}  # type: ignore[attr-defined]
    plain = LLM.from_model(model, words).generate("w3 w4 w5", GREEDY)[0]
    ids = torch.tensor([[3, 4, 5]])
    reference = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, 3:]  # type: ignore[attr-defined]
    assert list(plain.token_ids) == reference.tolist()
    assert plain.guarantee == "same_text up to rounding ties"
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())  # type: ignore[attr-defined]


@pytest.mark.parametrize("held", [None, "some/model", 7])
def test_what_is_no_loaded_model_is_not_wrapped(tiny: tuple[object, object], held: object) -> None:
    with pytest.raises(ModelLoadError, match=f"wraps a loaded transformers model, not {type(held).__name__}"):
        LLM.from_model(held, tiny[1])
    with pytest.raises(ModelLoadError, match="wraps a loaded transformers model"):
        generate_with(held, tiny[1], "w3", GREEDY)


@pytest.mark.parametrize(
    "assistant",
    [
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": "itself", "num_assistant_tokens": 3},
        {"assistant_early_exit": 1},
        {"speculative_config": {"method": "ngram"}},
        {},
    ],
)
def test_generate_with_takes_either_spelling(
    tiny: tuple[object, object], assistant: dict[str, object]
) -> None:
    model, words = tiny
    given = {k: model if v == "itself" else v for k, v in assistant.items()}
    [plain] = LLM.from_model(model, words).generate("w3 w4 w5", GREEDY)
    [done] = generate_with(model, words, "w3 w4 w5", GREEDY, **given)  # type: ignore[arg-type]
    assert done.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"assistant_modle": 1}, "unknown argument 'assistant_modle'"),
        ({"prompt_lookup_num_tokens": 3, "assistant_early_exit": 1}, "contradict each other"),
        ({"num_assistant_tokens": 3}, "num_assistant_tokens needs one of"),
        ({"prompt_lookup_num_tokens": 3, "num_assistant_tokens": 3}, "contradicts prompt_lookup_num_tokens"),
        ({"prompt_lookup_num_tokens": 3, "speculative_config": {"method": "ngram"}}, "cannot be mixed"),
    ],
)
def test_contradicting_assistant_names_are_refused(
    tiny: tuple[object, object], given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_with(*tiny, "w3", GREEDY, **given)  # type: ignore[arg-type]
