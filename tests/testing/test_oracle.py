"""The oracle: agrees with target law and noise on random requests, and ends texts as the names say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from outrider.core.noise import Place, Purpose, RoundNoise, gumbel
from outrider.core.sampling import SamplingParams
from outrider.core.target_law import TargetLaw
from outrider.errors import ParameterError, ScoreError
from outrider.testing.language import HashedLanguage
from outrider.testing.oracle import OracleText, oracle_text

EOS = 0


def decided(language: HashedLanguage, prompt: list[int], sampling: SamplingParams, seed: int,
            bad_word_ids: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:  # fmt: skip
    """The tokens that `TargetLaw` and `RoundNoise` choose one by one, up to EOS or the cap."""
    stop_ids = frozenset([*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS,))])
    law = TargetLaw(sampling, prompt=prompt, stop_ids=stop_ids, bad_word_ids=bad_word_ids)
    output: list[int] = []
    while len(output) < sampling.max_tokens and not (output and output[-1] in stop_ids):
        context = prompt + output
        noise = RoundNoise(seed, len(context))
        output.append(noise.argmax(law.node(language(context), ()), Place(0, 0)))
        law.append(output[-1:])
    return tuple(output)


def random_sampling(rng: np.random.Generator, vocab: int) -> SamplingParams:
    def maybe(off: Any, value: Any) -> Any:
        return value if rng.random() < 0.4 else off

    return SamplingParams(
        temperature=maybe(0.0, float(rng.uniform(0.2, 2.0))) if rng.random() < 0.5 else 1.0,
        top_p=maybe(1.0, float(rng.uniform(0.1, 1.0))),
        top_k=maybe(None, int(rng.integers(1, vocab))),
        min_p=maybe(0.0, float(rng.uniform(0, 0.3))),
        repetition_penalty=maybe(1.0, float(rng.uniform(0.5, 2.0))),
        presence_penalty=maybe(0.0, float(rng.normal())),
        frequency_penalty=maybe(0.0, float(rng.normal())),
        logit_bias=maybe({}, {int(rng.integers(vocab)): float(rng.normal(0, 5))}),
        stop_token_ids=maybe((), [int(rng.integers(vocab + 3))]),
        min_tokens=maybe(0, int(rng.integers(1, 16))),
        ignore_eos=bool(rng.random() < 0.3),
        no_repeat_ngram_size=maybe(0, int(rng.integers(2, 4))),
        max_tokens=16,
    )


def outcome(decode: Callable[[], tuple[int, ...]]) -> tuple[int, ...] | None:
    """The tokens of a text; None where every token came to be masked."""
    try:
        return decode()
    except ScoreError:
        return None


def random_case(
    rng: np.random.Generator, trial: int
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """One random request: what the oracle writes, and what target law and noise write."""
    vocab = int(rng.choice([6, 12, 60]))
    language = HashedLanguage(vocab, seed=trial, sharpness=float(rng.choice([0.3, 2.0, 5.0])))
    prompt = rng.integers(0, vocab, rng.integers(1, 8)).tolist()
    sampling = random_sampling(rng, vocab)
    words = tuple(tuple(rng.integers(1, vocab, size).tolist()) for size in (1, 2, 3)) if trial % 3 else ()
    seed = int(rng.integers(0, 2**63))

    def by_oracle() -> tuple[int, ...]:
        return oracle_text(language, prompt, sampling, seed, eos_token_ids=[EOS], max_length=None,
                           bad_word_ids=words).token_ids  # fmt: skip

    return outcome(by_oracle), outcome(lambda: decided(language, prompt, sampling, seed, words))


def test_agrees_with_target_law_and_noise_on_random_requests() -> None:
    rng = np.random.default_rng(0)
    texts = set()
    for trial in range(300):
        text, expected = random_case(rng, trial)
        assert text == expected, trial
        texts.add(text)
    assert len(texts) > 250
    assert len({len(text) for text in texts if text is not None}) > 8


def test_its_noise_is_that_of_the_text_bit_for_bit() -> None:
    flat = np.zeros(500)
    flat[EOS] = -1e9
    for seed in (0, 1, 2**63 + 5, 2**64 - 1):
        text = oracle_text(lambda context: flat, [1, 2], SamplingParams(max_tokens=20), seed,
                           eos_token_ids=[], max_length=None)  # fmt: skip
        noise = [gumbel(seed, 2 + step, np.arange(1, 500), Purpose.TEXT) for step in range(20)]
        assert text.token_ids == tuple(1 + int(values.argmax()) for values in noise)


def spelled(script: Sequence[int], prompt_length: int = 1) -> Any:
    """A language that writes the script, greedily, from the token after the prompt."""

    def logits(context: list[int]) -> list[float]:
        row = [0.0] * 30
        row[script[(len(context) - prompt_length) % len(script)]] = 5.0
        return row

    return logits


def letters(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, ([10, 11, 0], "stop"), id="eos"),
        pytest.param({"max_tokens": 2}, ([10, 11], "length"), id="cap before eos"),
        pytest.param({"max_tokens": 3}, ([10, 11, 0], "stop"), id="eos on the cap"),
        pytest.param({"max_tokens": 1}, ([10], "length"), id="cap 1"),
        pytest.param({"ignore_eos": True}, ([10, 11, 0, 20, 21], "length"), id="ignore_eos"),
        pytest.param({"stop_token_ids": [11]}, ([10, 11], "stop"), id="stop token"),
        pytest.param({"ignore_eos": True, "stop_token_ids": [20]}, ([10, 11, 0, 20], "stop"),
                     id="stop token under ignore_eos"),
        pytest.param({"min_tokens": 3}, ([10, 11, 1, 20, 21], "length"), id="eos masked by min_tokens"),
        pytest.param({"min_tokens": 2}, ([10, 11, 0], "stop"), id="min_tokens reached"),
        pytest.param({"stop": "kl"}, ([10, 11], "stop"), id="stop string"),
        pytest.param({"stop": ["zz", "l"], "min_tokens": 1}, ([10, 11], "stop"), id="two stop strings"),
        pytest.param({"stop": "kl", "min_tokens": 2, "ignore_eos": True}, ([10, 11, 0, 20, 21], "length"),
                     id="stop string within min_tokens"),
        pytest.param({"stop": "la", "min_tokens": 2, "ignore_eos": True}, ([10, 11, 0], "stop"),
                     id="stop string across min_tokens"),
        pytest.param({"stop": "u", "max_tokens": 3, "ignore_eos": True}, ([10, 11, 0], "length"),
                     id="stop string past the cap"),
    ],
)  # fmt: skip
def test_texts_end_where_they_should(fields: dict[str, Any], expected: tuple[list[int], str]) -> None:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 5, **fields})
    text = oracle_text(spelled([10, 11, EOS, 20, 21]), [7], sampling, 0, eos_token_ids={EOS}, max_length=None,
                       decode=letters)  # fmt: skip
    assert text == OracleText(tuple(expected[0]), expected[1])


def test_the_context_limit_ends_a_text() -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=50)
    text = oracle_text(spelled([4, 5, 6], 3), [7, 7, 7], sampling, 0, eos_token_ids=[], max_length=6)
    assert text == OracleText((4, 5, 6), "length")


def test_the_whole_context_is_evaluated_at_every_step() -> None:
    seen: list[list[int]] = []

    def logits(context: list[int]) -> list[float]:
        seen.append(list(context))
        return [0.0, 1.0]

    oracle_text(
        logits, [0, 0], SamplingParams(temperature=0.0, max_tokens=3), 0, eos_token_ids=[], max_length=None
    )
    assert seen == [[0, 0], [0, 0, 1], [0, 0, 1, 1]]


def test_rows_without_a_law_and_stop_strings_without_decode_are_errors() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ScoreError):
            oracle_text(lambda context, bad=bad: [0.0, bad], [0], SamplingParams(), 0, eos_token_ids=[],
                        max_length=None)  # fmt: skip
    with pytest.raises(ScoreError):
        oracle_text(lambda context: [0.0, 0.0], [0], SamplingParams(), 0, eos_token_ids=[], max_length=None,
                    bad_word_ids=[[0], [1]])  # fmt: skip
    with pytest.raises(ParameterError, match="decode"):
        oracle_text(
            lambda context: [0.0, 0.0], [0], SamplingParams(stop="x"), 0, eos_token_ids=[], max_length=None
        )
