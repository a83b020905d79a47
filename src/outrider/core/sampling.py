"""`SamplingParams`: what a request asks of the text, checked once at the border."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from outrider.errors import ParameterError, nearest_or_all, shown

_SEED_LIMIT = 1 << 64


@dataclass(frozen=True)
class RequestSpeculation:
    """What one request asks of speculation: off, or fewer tokens than the engine is set to draft."""

    off: bool = False
    n_max: int | None = None

    @staticmethod
    def from_mapping(options: Mapping[str, Any]) -> RequestSpeculation:
        """Reads `{"off": ..., "n_max": ...}`. Raises `ParameterError` on any other key."""
        known = ("off", "n_max", "n_min", "method")
        for key in options:
            if key not in known:
                raise ParameterError(f"speculative: unknown key {key!r}{nearest_or_all(key, known)}")
        for key in ("method", "n_min"):
            if options.get(key) is not None:
                raise ParameterError(f"speculative: {key!r} cannot be chosen per request yet; remove it")
        off = options.get("off", False)
        if not isinstance(off, bool):
            raise ParameterError(f"speculative: off must be true or false, not {off!r}")
        n_max = options.get("n_max")
        if n_max is not None:
            n_max = _integer("speculative.n_max", n_max, at_least=0)
        return RequestSpeculation(off, n_max)

    def cap(self, depth: int) -> int:
        """The draft length this request allows when the engine would draft `depth` tokens."""
        if self.off:
            return 0
        return depth if self.n_max is None else min(depth, self.n_max)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings with vLLM's and OpenAI's spellings; frozen, validated at construction.

    `top_k` None, 0 or -1 is off. `logprobs` is the number of alternatives to report beside each emitted
    token (0: the token alone; None: none); `True` with `top_logprobs` is OpenAI's spelling of the same.
    Logprobs are in nats, of the raw model law. Raises `ParameterError` naming the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    max_tokens: int = 128
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | bool | None = None
    top_logprobs: int | None = None
    bad_words: Sequence[str] = ()
    no_repeat_ngram_size: int = 0
    response_format: Any = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    speculative: RequestSpeculation | Mapping[str, Any] = RequestSpeculation()

    def __post_init__(self) -> None:
        for name in ("response_format", "guided_regex", "guided_grammar"):
            if getattr(self, name) is not None:
                raise ParameterError(f"{name} is not supported yet: remove it")
        put = self._put
        put("n", _integer("n", self.n, at_least=1))
        put("temperature", _number("temperature", self.temperature, 0.0, math.inf))
        put("top_p", _number("top_p", self.top_p, 0.0, 1.0))
        if self.top_p == 0.0:
            raise ParameterError(
                "top_p must be above 0 and at most 1, not 0.0; for greedy text set temperature=0"
            )
        put("top_k", _top_k(self.top_k))
        put("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        put("repetition_penalty", _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf))
        if self.repetition_penalty == 0.0:
            raise ParameterError("repetition_penalty must be above 0, not 0.0; 1.0 switches it off")
        for name in ("presence_penalty", "frequency_penalty"):
            put(name, _number(name, getattr(self, name), -math.inf, math.inf))
        put("logit_bias", _logit_bias(self.logit_bias))
        if self.seed is not None:
            put(
                "seed",
                _integer("seed", self.seed, at_least=-(_SEED_LIMIT >> 1), below=_SEED_LIMIT) % _SEED_LIMIT,
            )
        put("stop", _strings("stop", self.stop))
        put("bad_words", _strings("bad_words", self.bad_words))
        put(
            "stop_token_ids",
            tuple(_integer("stop_token_ids", t, at_least=0) for t in _items(self, "stop_token_ids")),
        )
        put("max_tokens", _integer("max_tokens", self.max_tokens, at_least=1))
        put("min_tokens", _integer("min_tokens", self.min_tokens, at_least=0))
        if self.min_tokens > self.max_tokens:
            raise ParameterError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        if not isinstance(self.ignore_eos, bool):
            raise ParameterError(f"ignore_eos must be true or false, not {self.ignore_eos!r}")
        put("logprobs", _logprobs(self.logprobs, self.top_logprobs))
        put("no_repeat_ngram_size", _integer("no_repeat_ngram_size", self.no_repeat_ngram_size, at_least=0))
        if isinstance(self.speculative, Mapping):
            put("speculative", RequestSpeculation.from_mapping(self.speculative))
        elif not isinstance(self.speculative, RequestSpeculation):
            raise ParameterError(
                f"speculative must be a mapping such as {{'off': true}}, not {self.speculative!r}"
            )

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @staticmethod
    def from_mapping(options: Mapping[str, Any]) -> SamplingParams:
        """Builds the record from a mapping; an unknown key is a `ParameterError` naming the nearest known, or all."""
        known = [f.name for f in dataclasses.fields(SamplingParams)]
        for key in options:
            if key not in known:
                raise ParameterError(f"unknown sampling parameter {key!r}{nearest_or_all(key, known)}")
        return SamplingParams(**options)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def speculation(self) -> RequestSpeculation:
        """`speculative` as the record it was normalised to."""
        assert isinstance(self.speculative, RequestSpeculation)
        return self.speculative

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as the tuple it was normalised to."""
        assert isinstance(self.stop, tuple)
        return self.stop


def _integer(name: str, value: Any, *, at_least: int, below: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        else:
            raise ParameterError(f"{name} must be an integer, not {value!r}")
    if value < at_least or (below is not None and value >= below):
        bound = f"at least {at_least}" if below is None else f"between {at_least} and {below - 1}"
        raise ParameterError(f"{name} must be {bound}, not {shown(value)}")
    return int(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise ParameterError(f"{name} must be a finite number, not {shown(value)}")
    if not low <= value <= high:
        bound = f"between {low:g} and {high:g}" if high < math.inf else f"at least {low:g}"
        raise ParameterError(f"{name} must be {bound}, not {shown(value)}")
    return float(value)


def _top_k(value: Any) -> int | None:
    if value is None or value in (0, -1):
        return None
    return _integer("top_k", value, at_least=1)


def _logprobs(logprobs: Any, top_logprobs: Any) -> int | None:
    if top_logprobs is not None:
        if logprobs is None or logprobs is False:
            raise ParameterError("top_logprobs needs logprobs=True")
        return _integer("top_logprobs", top_logprobs, at_least=0)
    if logprobs is None or logprobs is False:
        return None
    return 0 if logprobs is True else _integer("logprobs", logprobs, at_least=0)


def _logit_bias(value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise ParameterError(f"logit_bias must map token ids to numbers, not {value!r}")
    pairs: dict[int, float] = {}
    for key, bias in value.items():
        if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:  # as JSON spells ids
            key = int(key)
        if isinstance(key, bool) or not isinstance(key, int):
            raise ParameterError(f"logit_bias must map token ids to numbers; {key!r:.60} is no token id")
        token = _integer("logit_bias token", key, at_least=0)
        if token in pairs:
            raise ParameterError(f"logit_bias names token {token} twice")
        pairs[token] = _number(f"logit_bias of token {token}", bias, -math.inf, math.inf)
    return MappingProxyType(pairs)


def _items(params: SamplingParams, name: str) -> Sequence[Any]:
    value = getattr(params, name)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ParameterError(f"{name} must be a list, not {value!r}")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, Sequence) or any(not isinstance(s, str) or not s for s in items):
        raise ParameterError(f"{name} must be non-empty strings, not {value!r}")
    for item in items:
        try:
            item.encode()
        except UnicodeEncodeError:
            raise ParameterError(
                f"{name}: {item[:40]!r} is not valid Unicode (a lone surrogate); clean it"
            ) from None
    return tuple(items)
