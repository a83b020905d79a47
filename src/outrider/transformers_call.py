"""`generate_with`: one call for a transformers model that the caller holds, with Transformers' spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.config import SpeculativeConfig
from outrider.core.completion import Completion
from outrider.core.sampling import SamplingParams
from outrider.errors import ConfigError
from outrider.intake import Prompt
from outrider.llm import LLM, SpeculativeSettings


def generate_with(hf_model: Any, tokenizer: Any, prompts: Prompt | Sequence[Prompt],
                  params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                  speculative_config: SpeculativeSettings = None, **assistant: Any) -> list[Completion]:  # fmt: skip
    """Generates with a transformers model the caller holds, in one call.

    Also takes Transformers' spellings: `assistant_model`, `num_assistant_tokens`, `prompt_lookup_num_tokens`,
    `assistant_early_exit`. They cannot be mixed with `speculative_config`.
    """
    assistant = {name: value for name, value in assistant.items() if value is not None}
    if assistant and speculative_config is not None:
        raise ConfigError(
            f"{', '.join(assistant)} cannot be mixed with speculative_config: use one of the two"
        )
    config = _from_assistant_names(assistant) if assistant else SpeculativeConfig.of(speculative_config)
    return LLM.from_model(hf_model, tokenizer, speculative_config=config).generate(prompts, params)


def _from_assistant_names(given: Mapping[str, Any]) -> SpeculativeConfig:
    known = ("assistant_model", "num_assistant_tokens", "prompt_lookup_num_tokens", "assistant_early_exit")
    for name in given:
        if name not in known:
            raise ConfigError(f"generate_with: unknown argument {name!r}; known: {', '.join(known)}")
    ways = [name for name in known if name != "num_assistant_tokens" and name in given]
    if len(ways) > 1:
        raise ConfigError(f"{' and '.join(ways)} contradict each other: choose one way to draft")
    tokens = given.get("num_assistant_tokens")
    if not ways:
        raise ConfigError(
            f"num_assistant_tokens needs one of {', '.join(k for k in known if k != 'num_assistant_tokens')}"
        )
    settings: dict[str, Any] = {"num_speculative_tokens": tokens} if tokens is not None else {}
    if ways[0] == "assistant_model":
        settings.update(method="draft_model", model=given["assistant_model"])
    elif ways[0] == "assistant_early_exit":
        settings.update(method="self_draft", assistant_early_exit=given["assistant_early_exit"])
    else:
        if tokens is not None:
            raise ConfigError(
                "num_assistant_tokens contradicts prompt_lookup_num_tokens: both are the draft's length"
            )
        settings.update(method="ngram", num_speculative_tokens=given["prompt_lookup_num_tokens"])
    return SpeculativeConfig.of(settings)
