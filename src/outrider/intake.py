"""Intake: turns what a caller passes (texts, ids, settings) into checked `Request`s."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.noise import choice_seed, fresh_seed
from outrider.core.records import Guarantee, Request
from outrider.core.sampling import SamplingParams
from outrider.errors import ParameterError
from outrider.text import TextTracker, Tokenizer, bad_word_ids

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Limits:
    """What the target allows: ids below `vocab_size`, texts up to `max_length` tokens (None: no limit)."""

    vocab_size: int
    max_length: int | None


class Intake:
    """Builds requests for one engine: encodes, checks against the limits, numbers, seeds."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits, guarantee: Guarantee) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._guarantee = guarantee
        # Starts at random, so that two engines on one target never give one number to two sequences.
        self._ids = itertools.count(secrets.randbits(62))

    def requests(self, prompt: Prompt, sampling: SamplingParams) -> list[Request]:
        """One request per choice of `sampling.n`. Raises `ParameterError` naming what cannot be honoured."""
        tokens = self._encoded(prompt)
        self._check_tokens(tokens)
        self._check_room(tokens)
        self._check_sampling(sampling)
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        words = bad_word_ids(self._tokenizer, sampling.bad_words)
        return [
            Request(next(self._ids), tokens, sampling, choice_seed(seed, choice), self._guarantee,
                    frozenset(self._tokenizer.eos_token_ids), words)
            for choice in range(sampling.n)
        ]  # fmt: skip

    def scored(self, token_ids: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """A new sequence id, and the tokens of a text that is only scored: it may fill the context.

        Raises `ParameterError` for anything but a list of token ids that fit.
        """
        if isinstance(token_ids, (str, bytes, bytearray)) or not isinstance(token_ids, Sequence):
            raise ParameterError(f"token_ids must be a list of token ids, not {type(token_ids).__name__}")
        for token in token_ids:
            if type(token) is not int:
                raise ParameterError(f"token_ids must hold whole numbers, not {token!r:.60}")
        tokens, limit = tuple(token_ids), self._limits.max_length
        self._check_tokens(tokens)
        if limit is not None and len(tokens) > limit:
            raise ParameterError(f"{len(tokens)} tokens exceed the context of {limit}: shorten them")
        return next(self._ids), tokens

    def tracker(self, sampling: SamplingParams) -> TextTracker:
        """A text tracker for one request of these settings."""
        return TextTracker(self._tokenizer, sampling.stop_strings, sampling.min_tokens)

    def _encoded(self, prompt: Prompt) -> tuple[int, ...]:
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return tuple(int(token) for token in tokens)

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        vocab_size = self._limits.vocab_size
        if not tokens:
            raise ParameterError("the prompt is empty: it must hold at least one token")
        outside = next((t for t in tokens if not 0 <= t < vocab_size), None)
        if outside is not None:
            raise ParameterError(
                f"prompt token id {outside} is outside the vocabulary of {vocab_size} tokens"
            )

    def _check_room(self, tokens: Sequence[int]) -> None:
        limit = self._limits.max_length
        if limit is not None and len(tokens) >= limit:
            raise ParameterError(
                f"the prompt holds {len(tokens)} tokens and the context {limit}: shorten the prompt to {limit - 1}"
            )

    def _check_sampling(self, sampling: SamplingParams) -> None:
        vocab_size = self._limits.vocab_size
        for name, ids in (("stop_token_ids", sampling.stop_token_ids), ("logit_bias", sampling.logit_bias)):
            wrong = next((t for t in ids if t >= vocab_size), None)
            if wrong is not None:
                raise ParameterError(
                    f"{name}: token id {wrong} is outside the vocabulary of {vocab_size} tokens"
                )
        if sampling.logprobs is not None and sampling.logprobs > vocab_size:
            raise ParameterError(
                f"logprobs {sampling.logprobs} is above the vocabulary of {vocab_size} tokens"
            )


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether the caller passed a single one."""
    if isinstance(prompts, str):
        return [prompts], True
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Sequence):
        raise ParameterError(f"a prompt is a text or a list of token ids, not {type(prompts).__name__}")
    if prompts and all(isinstance(p, int) and not isinstance(p, bool) for p in prompts):
        return [list(prompts)], True  # type: ignore[arg-type]
    for index, prompt in enumerate(prompts):
        ids = not isinstance(prompt, str)
        if ids and not (isinstance(prompt, Sequence) and all(type(t) is int for t in prompt)):
            raise ParameterError(f"prompt {index} must be a text or a list of token ids, not {prompt!r:.60}")
    return list(prompts), False  # type: ignore[arg-type]


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One setting per prompt: the default, one for all, or a list of the same length."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ParameterError(f"params must be SamplingParams or a list of them, not {type(params).__name__}")
    if len(params) != count:
        raise ParameterError(f"{len(params)} params for {count} prompts: pass one for all, or one each")
    return list(params)
