"""A cacheless second opinion on what `same_text` means: plain decoding, one token at a time, by naive code.

Nothing here calls the round, the rules, the target law or the noise of `outrider.core`: a text on which both
agree was reached by two independent roads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.core.sampling import SamplingParams
from outrider.errors import ParameterError, ScoreError

_WORD = 2**64
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class OracleText:
    """The tokens of a text, its stop token included, and why it ended: "stop" or "length"."""

    token_ids: tuple[int, ...]
    finish_reason: str


def oracle_text(
    logits_of: Callable[[list[int]], Sequence[float]],
    prompt: Sequence[int],
    sampling: SamplingParams,
    seed: int,
    *,
    eos_token_ids: Collection[int],
    max_length: int | None,
    decode: Callable[[list[int]], str] | None = None,
    bad_word_ids: Sequence[Sequence[int]] = (),
) -> OracleText:
    """The text that plain decoding writes for this prompt and seed.

    `logits_of` maps the whole context to the raw logits [vocab] that follow it; it is asked once per token.
    A text ends with "stop" at an EOS id (not under ignore_eos), at one of `stop_token_ids`, or when a stop
    string is complete in `decode(output)`; with "length" at max_tokens or when prompt and output fill
    `max_length`. A stop string that is complete within the first `min_tokens` tokens does not end it. Stop
    strings need `decode` (`ParameterError`). Raises `ScoreError` where no token can be chosen.
    """
    stop_strings = [sampling.stop] if isinstance(sampling.stop, str) else list(sampling.stop)
    if stop_strings and decode is None:
        raise ParameterError(f"stop strings {stop_strings!r} need a decode function: pass decode")
    stop_ids = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_token_ids))
    output: list[int] = []
    while True:
        context = [*prompt, *output]
        if len(output) == sampling.max_tokens or (max_length is not None and len(context) >= max_length):
            return OracleText(tuple(output), "length")
        scores = [float(logit) for logit in logits_of(context)]
        _process(scores, list(prompt), output, sampling, stop_ids, bad_word_ids)
        output.append(_choose(scores, sampling, seed, len(context)))
        if output[-1] in stop_ids or (decode and _stopped(output, stop_strings, sampling.min_tokens, decode)):
            return OracleText(tuple(output), "stop")


def _stopped(
    output: list[int], stops: list[str], min_tokens: int, decode: Callable[[list[int]], str]
) -> bool:
    """Whether a stop string ends in the text that follows the first `min_tokens` tokens."""
    if not stops or len(output) <= min_tokens:
        return False
    text = decode(output)
    free = len(decode(output[:min_tokens])) if min_tokens else 0
    return any(text.find(stop, max(0, free + 1 - len(stop))) >= 0 for stop in stops)


def _process(
    scores: list[float],
    prompt: list[int],
    output: list[int],
    sampling: SamplingParams,
    stop_ids: set[int],
    bad_word_ids: Sequence[Sequence[int]],
) -> None:
    """Masks, bias and penalties, in place, one token after another."""
    if any(math.isnan(score) or score == math.inf for score in scores):
        raise ScoreError("the target returned NaN or +inf logits")
    context, n = prompt + output, sampling.no_repeat_ngram_size
    banned = [word[-1] for word in bad_word_ids if [*output, 0][-len(word) : -1] == list(word[:-1])]
    if n:
        banned += [
            context[start + n - 1]
            for start in range(len(context) - n + 1)
            if context[start : start + n - 1] == context[len(context) - n + 1 :]
        ]
    if len(output) < sampling.min_tokens:
        banned += sorted(stop_ids)
    for token in banned:
        if token < len(scores):
            scores[token] = -math.inf
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    for token in sorted(set(context)):
        if token < len(scores):
            score, penalty = scores[token], sampling.repetition_penalty
            scores[token] = score / penalty if score > 0 else score * penalty
    for token in sorted(set(output)):
        if token < len(scores):
            scores[token] -= sampling.frequency_penalty * output.count(token)
            scores[token] -= sampling.presence_penalty


def _choose(scores: list[float], sampling: SamplingParams, seed: int, position: int) -> int:
    """The token with the largest noisy score; of equals the lowest id."""
    peak = max(scores)
    if not math.isfinite(peak):
        raise ScoreError(f"no token can be chosen at position {position}: the largest score is {peak}")
    if sampling.temperature == 0.0:
        return scores.index(peak)
    cooled = [(score - peak) / sampling.temperature for score in scores]
    tokens = _support(cooled, sampling)
    uniforms = np.array([_uniform(seed, position, token) for token in tokens])
    noisy = np.array([cooled[token] for token in tokens]) - np.log(-np.log(uniforms))
    best = max(range(len(tokens)), key=lambda index: (noisy[index], -index))
    return tokens[best]


def _support(scores: list[float], sampling: SamplingParams) -> list[int]:
    """The tokens that min_p, then top_k, then top_p leave; a token tied with one that stays, stays."""
    tokens = [token for token, score in enumerate(scores) if score > -math.inf]
    if sampling.min_p > 0.0:
        best = max(scores)
        tokens = [token for token in tokens if math.exp(scores[token] - best) >= sampling.min_p]
    if sampling.top_k is not None and sampling.top_k < len(tokens):
        last = sorted((scores[token] for token in tokens), reverse=True)[sampling.top_k - 1]
        tokens = [token for token in tokens if scores[token] >= last]
    if sampling.top_p < 1.0:
        ranked = sorted((scores[token] for token in tokens), reverse=True)
        needed = sampling.top_p * math.fsum(math.exp(score) for score in ranked)
        reached, last = 0.0, ranked[0]
        for score in ranked:
            last = score
            reached += math.exp(score)
            if reached >= needed:
                break
        tokens = [token for token in tokens if scores[token] >= last]
    return tokens


def _uniform(seed: int, position: int, token: int) -> float:
    """The number in (0, 1) that belongs to a token of the text: 53 bits of a chain of splitmix64 steps.

    The chain takes in the seed, the position, the purpose (0: the text) and the token, a golden-ratio step
    for each unit; the lowest of the 2^53 values is raised to one so that no logarithm is infinite.
    """
    state = _splitmix(seed)
    state = _splitmix(state + position * _STEP)
    state = _splitmix(state)  # the purpose of a text's noise is 0
    return max(_splitmix(state + token * _STEP) >> 11, 1) / 2**53


def _splitmix(state: int) -> int:
    """One output of the splitmix64 generator (Steele, Lea, Flood 2014) from the given state."""
    z = (state + _STEP) % _WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORD
    return z ^ (z >> 31)
