"""Sampling settings: normalised once, and refused with the field's name."""

from __future__ import annotations

import math

import pytest

from outrider.core.sampling import RequestSpeculation, SamplingParams
from outrider.errors import ParameterError


def test_top_k_off_has_three_spellings() -> None:
    assert [SamplingParams(top_k=k).top_k for k in (None, 0, -1, 5)] == [None, None, None, 5]


def test_openai_and_vllm_spell_logprobs_differently() -> None:
    assert SamplingParams(logprobs=True, top_logprobs=3).logprobs == 3
    assert SamplingParams(logprobs=True).logprobs == 0
    assert SamplingParams(logprobs=2).logprobs == 2
    assert SamplingParams(logprobs=False).logprobs is None


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="x").stop == ("x",)


def test_a_negative_seed_is_taken_modulo_2_to_the_64() -> None:
    assert SamplingParams(seed=-1).seed == 2**64 - 1


def test_a_request_may_shorten_its_drafts_or_switch_them_off() -> None:
    assert RequestSpeculation().cap(4) == 4
    assert SamplingParams(speculative={"n_max": 2}).speculative.cap(4) == 2  # type: ignore[union-attr]
    assert SamplingParams(speculative={"off": True}).speculative.cap(4) == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"temperature": -0.1}, "temperature must be at least 0"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.1}, "top_p must be between 0 and 1"),
        ({"top_k": -2}, "top_k must be at least 1"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"frequency_penalty": None}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {1.7: 1}}, "1.7 is no token id"),
        ({"logit_bias": {True: 1}}, "True is no token id"),
        ({"logit_bias": {math.inf: 1}}, "inf is no token id"),
        ({"logit_bias": {"1": 1, 1: 2}}, "names token 1 twice"),
        ({"temperature": 10**400}, "temperature must be a finite number"),
        ({"seed": 10**5000}, "an integer of 16610 bits"),
        ({"speculative": {1: 2}}, "unknown key 1; known: off, n_max, "),
        ({"stop": ["fine", "x\ud800"]}, "stop: 'x\\ud800' is not valid Unicode (a lone surrogate)"),
        ({"bad_words": ["\ud800"]}, "bad_words: '\\ud800' is not valid Unicode"),
        ({"seed": 2**64}, "seed"),
        ({"stop": [""]}, "stop must be non-empty strings"),
        ({"stop": 3}, "stop"),
        ({"stop_token_ids": "12"}, "stop_token_ids must be a list"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens 9 is above max_tokens 8"),
        ({"logprobs": -1}, "logprobs"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"n": 0}, "n must be at least 1"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported yet"),
        ({"guided_regex": "a+"}, "guided_regex is not supported yet"),
        ({"speculative": {"of": True}}, "unknown key 'of'; did you mean 'off'?"),
        ({"speculative": {"method": "ngram"}}, "'method' cannot be chosen per request yet"),
        ({"speculative": 3}, "speculative must be a mapping"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError) as error:
        SamplingParams.from_mapping(fields)
    assert message in str(error.value)


def test_an_unknown_field_names_the_nearest_known_one() -> None:
    with pytest.raises(
        ParameterError, match="unknown sampling parameter 'temprature'; did you mean 'temperature'"
    ):
        SamplingParams.from_mapping({"temprature": 1})
