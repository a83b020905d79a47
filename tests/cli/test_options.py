"""Flags and JSON together make the settings; what disagrees is refused."""

from __future__ import annotations

import json

import pytest

from outrider.cli.options import speculative_settings
from outrider.errors import ConfigError


def test_flags_and_json_add_up() -> None:
    given = {
        "speculative_config": '{"prompt_lookup_max": 7, "num_speculative_tokens": 6}',
        "method": "ngram, draft_model",
        "num_speculative_tokens": 6,
        "draft_model": "folder",
    }
    assert speculative_settings(given) == {
        "prompt_lookup_max": 7,
        "num_speculative_tokens": 6,
        "method": ["ngram", "draft_model"],
        "model": "folder",
    }


@pytest.mark.parametrize("method", ['"ngram"', '["ngram"]'])
def test_a_flag_that_repeats_the_json_is_welcome(method: str) -> None:
    given = {"speculative_config": f'{{"method": {method}}}', "method": "ngram"}
    assert speculative_settings(given) == {"method": "ngram"}


@pytest.mark.parametrize(
    ("key", "inside", "flag", "parameter", "outside"),
    [
        ("num_speculative_tokens", 8, "--num-speculative-tokens", "num_speculative_tokens", 4),
        ("method", "none", "--method", "method", "ngram"),
        ("method", ["ngram", "draft_model"], "--method", "method", "draft_model,ngram"),
        ("model", "a", "--draft-model", "draft_model", "b"),
        ("tree_budget", 8, "--tree-budget", "tree_budget", 9),
        ("topk", 2, "--topk", "topk", 3),
        ("num_steps", 2, "--num-steps", "num_steps", 3),
        ("guarantee", "same_text", "--guarantee", "guarantee", "same_distribution"),
    ],
)
def test_a_flag_that_contradicts_the_json_is_refused_naming_both(
    key, inside, flag, parameter, outside
) -> None:
    with pytest.raises(ConfigError) as raised:
        speculative_settings({"speculative_config": json.dumps({key: inside}), parameter: outside})
    assert f"{flag} {outside}" in str(raised.value)
    assert json.dumps({key: inside}) in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--speculative-config", "{method: ngram}"], "--speculative-config is not valid JSON"),
        (["--speculative-config", '["ngram"]'], "must be a JSON object"),
        (["--speculative-config", '{"topk": NaN}'], "NaN is not a number of JSON"),
        (["--speculative-config", '{"topk": 1, "topk": 2}'], "key 'topk' occurs twice"),
        (["--speculative-config", '{"num_speculative_token": 3}'], "did you mean 'num_speculative_tokens'?"),
        (["--speculative-config", '{"adaptive": true}'], "'adaptive' is not supported yet"),
        (["--method", "ngram,"], "empty name"),
        (["--num-speculative-tokens", "3"], "needs a method"),
        (["--method", "ngram", "--tree-budget", "8"], "not to ngram"),
        (["--method", "ngram", "--guarantee", "same_speed"], "guarantee must be one of"),
        (["--temperature", "nan"], "temperature must be a finite number"),
        (["--temperature", "-1"], "temperature must be"),
        (["--top-p", "0"], "top_p must be above 0"),
        (["--repetition-penalty", "0"], "repetition_penalty must be above 0"),
        (["--logit-bias", "{5: 1}"], "--logit-bias is not valid JSON"),
        (["--logit-bias", '{"word": 1}'], "logit_bias must map token ids"),
        (["--stop-token-ids", "1,x"], "--stop-token-ids must be token ids"),
        (["--stop", ""], "stop must be non-empty strings"),
        (["--min-tokens", "9", "--max-tokens", "8"], "min_tokens 9 is above max_tokens 8"),
        (["--logprobs", "2"], "--logprobs needs --json"),
    ],
)
def test_bad_settings_are_one_line_before_any_model_is_looked_for(outrider, arguments, told) -> None:
    failed = outrider("generate", "no-such-model", "hello", *arguments)
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("error: ")
    assert failed.err.count("\n") == 1
    assert told in failed.err
