"""`SpeculativeConfig`: the frozen engine settings, with vLLM's spellings, checked once at the border."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from outrider.errors import ConfigError, nearest_or_all, shown

BUILT_IN_METHODS = (
    "none", "ngram", "suffix", "recycling", "lookahead", "draft_model", "self_draft", "medusa", "eagle", "eagle3",
)  # fmt: skip
AUTO = "auto"
"""Stands for the best list of methods of the loaded model, which is known once it is loaded."""
FUTURE_KEYS = ("adaptive",)

# Keys that mean something to some methods only; anywhere else they are misplaced.
HEAD_METHODS = ("medusa", "eagle", "eagle3")
MODEL_METHODS = ("draft_model", *HEAD_METHODS)
"""Methods that draft with a `model`; only one of them in a list."""
_WITH_MODEL = (*MODEL_METHODS, "self_draft")
"""Those, and the method that may: the target's own layers, with an exit head or without."""
_SAMPLING = ("self_draft", *MODEL_METHODS)
_OWNERS: Mapping[str, tuple[str, ...]] = {
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "assistant_early_exit": ("self_draft",),
    "skip_layers": ("self_draft",),
    "suffix_decoding_max_tree_depth": ("suffix",),
    "suffix_decoding_max_spec_factor": ("suffix",),
    "suffix_decoding_min_token_prob": ("suffix",),
    "suffix_share_requests": ("suffix",),
    "suffix_decoding_max_cached_requests": ("suffix",),
    "recycling_successors": ("recycling",),
    "max_window_size": ("lookahead",),
    "max_ngram_size": ("lookahead",),
    "max_verification_set_size": ("lookahead",),
    "model": _WITH_MODEL,
    "revision": _WITH_MODEL,
    "max_model_len": MODEL_METHODS,
    "draft_device": _WITH_MODEL,
    "draft_dtype": _WITH_MODEL,
    "check_draft": _WITH_MODEL,
    "draft_sample_method": _SAMPLING,
    "num_steps": ("recycling", *_SAMPLING),
    "topk": ("suffix", "recycling", *_SAMPLING),
    "tree_budget": ("suffix", "recycling", *_SAMPLING),
}
MOST_DRAFTED = 1024
"""No draft is deeper, wider or larger than this: far beyond what any target scores at a profit."""
MOST_CHILDREN = 64
"""No node of a draft has more children, and no level expands more nodes: the draft model scores each of them."""
_MOST_COUNTED = 2**31 - 1
_DRAFT_SIZES = (
    "num_speculative_tokens", "num_steps", "topk", "tree_budget", "prompt_lookup_min", "prompt_lookup_max",
    "recycling_successors", "max_window_size", "max_ngram_size", "max_verification_set_size",
)  # fmt: skip
_COUNTS = (
    *_DRAFT_SIZES, "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "assistant_early_exit",
    "max_model_len",
)  # fmt: skip
_RECYCLING_NODES = 8
_DEPTHS: Mapping[str, int] = {"ngram": 8, "suffix": 8}
"""Default draft lengths. That of `lookahead` follows from its window; those of all other methods are 4."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "draft_sample_method": ("probabilistic", "greedy"),
    "guarantee": ("same_text", "same_distribution"),
    "rejection_sample_method": ("standard", "block", "traversal"),
}


@dataclass(frozen=True)
class SpeculativeConfig:
    """Engine settings of speculation. `methods` is `method` as a tuple; None means the documented default.

    Raises `ConfigError` for unknown, misplaced, contradicting or not yet supported settings, naming the key.
    """

    method: str | Sequence[str] = "none"
    model: Any = None
    num_speculative_tokens: int | None = None
    revision: str | None = None
    max_model_len: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None
    suffix_share_requests: bool | None = None
    suffix_decoding_max_cached_requests: int | None = None
    recycling_successors: int | None = None
    max_window_size: int | None = None
    max_ngram_size: int | None = None
    max_verification_set_size: int | None = None
    assistant_early_exit: int | None = None
    skip_layers: Sequence[int] | None = None
    num_steps: int | None = None
    topk: int | None = None
    tree_budget: int | None = None
    draft_sample_method: str | None = None
    draft_device: str | None = None
    draft_dtype: str | None = None
    check_draft: bool | None = None
    cut_drafts: bool | None = None
    guarantee: str = "same_text"
    rejection_sample_method: str | None = None
    num_speculative_tokens_per_batch_size: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        methods = tuple(self.method) if isinstance(self.method, (list, tuple)) else (self.method,)
        if any(not isinstance(name, str) for name in methods):
            raise ConfigError(f"method must be a name or a list of names, not {self.method!r}")
        object.__setattr__(self, "method", methods[0] if len(methods) == 1 else methods)
        self._check_methods()
        self._check_values()
        self._check_owners()
        self._check_contradictions()

    @staticmethod
    def of(settings: Mapping[str, Any] | SpeculativeConfig | None) -> SpeculativeConfig:
        """Reads a mapping (left as it is); None is plain decoding. An unknown key names the nearest known, or all."""
        if settings is None:
            return SpeculativeConfig()
        if isinstance(settings, SpeculativeConfig):
            return settings
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"speculative_config must be a mapping such as {{'method': 'ngram'}}, not {settings!r}"
            )
        known = [f.name for f in fields(SpeculativeConfig)]
        for key in settings:
            if key in FUTURE_KEYS:
                raise ConfigError(f"speculative_config: {key!r} is not supported yet; remove it")
            if key not in known:
                raise ConfigError(f"speculative_config: unknown key {key!r}{nearest_or_all(key, known)}")
        given = dict(settings)
        if "method" not in given:
            given["method"] = implied_method(given)
        return SpeculativeConfig(**given)

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.method,) if isinstance(self.method, str) else tuple(self.method)

    @property
    def lacks_model(self) -> bool:
        """Whether a method drafts with a `model` and none is named: a shipped one may serve."""
        return self.model is None and any(name in MODEL_METHODS for name in self.methods)

    @property
    def exit_head(self) -> Any:
        """The `model` that `self_draft` drafts with; None without one, and where it is that of another method."""
        others = any(name in MODEL_METHODS for name in self.methods)
        return None if others or "self_draft" not in self.methods else self.model

    @property
    def names_head(self) -> bool:
        """Whether `model` is a head: a method's own, or an exit head."""
        return self.exit_head is not None or any(name in HEAD_METHODS for name in self.methods)

    @property
    def depth(self) -> int:
        """K: how many tokens deep a draft may go."""
        if self.methods == ("none",):
            return 0
        for value in (self.num_speculative_tokens, self.num_steps):
            if value is not None:
                return value
        return min(MOST_DRAFTED, max(self._default_depth(name) for name in self.methods))

    @property
    def longest(self) -> int:
        """The deepest draft of any batch size."""
        return max(
            self.depth, *(depth for _, _, depth in self.num_speculative_tokens_per_batch_size or ()), 0
        )

    def children(self, name: str) -> int:
        """Children per expanded node of a method: 1 drafts chains."""
        if self.topk is not None:
            return self.topk
        if name == "recycling":
            return self.recycling_successors or 8
        return 2 if self.tree_budget is not None else 1

    @property
    def drafts_trees(self) -> bool:
        """Whether a draft may branch."""
        return any(name == "lookahead" or self.children(name) > 1 for name in self.methods)

    @property
    def nodes(self) -> int:
        """How many nodes a draft may hold."""
        if self.tree_budget is not None:
            return self.tree_budget
        return min(MOST_DRAFTED, max(self._default_nodes(name) for name in self.methods))

    @property
    def window(self) -> tuple[int, int, int]:
        """Lookahead's window columns W, n-gram size N and candidates G."""
        return self.max_window_size or 5, self.max_ngram_size or 3, self.max_verification_set_size or 4

    def _default_depth(self, name: str) -> int:
        columns, size, _ = self.window
        return max(4, columns + size - 2) if name == "lookahead" else _DEPTHS.get(name, 4)

    def _default_nodes(self, name: str) -> int:
        columns, size, candidates = self.window
        if name == "lookahead":
            return (size - 1) * (columns + candidates)
        if name == "recycling":
            return self.depth if self.children(name) == 1 else max(self.depth, _RECYCLING_NODES)
        return self.depth * self.children(name)

    def _check_methods(self) -> None:
        if not self.methods:
            raise ConfigError("method is an empty list; use 'none' for plain decoding")
        for name in self.methods:
            if name == AUTO and len(self.methods) > 1:
                raise ConfigError(
                    f"method {list(self.methods)!r}: 'auto' chooses a list itself and stands alone"
                )
        if len(self.methods) > 1 and ("none" in self.methods or len(set(self.methods)) < len(self.methods)):
            raise ConfigError(
                f"method {list(self.methods)!r}: a list names each drafter once, and not 'none'"
            )

    def _check_values(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is None:
                continue
            least = 2 if name == "max_ngram_size" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, not {shown(value)}")
            most = _MOST_COUNTED
            if name in _DRAFT_SIZES:
                most = MOST_CHILDREN if name == "topk" else MOST_DRAFTED
            if value > most:
                raise ConfigError(f"{name} must be at most {most}, not {shown(value)}")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if (value is not None or name == "guarantee") and value not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        for name in ("suffix_share_requests", "check_draft", "cut_drafts"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise ConfigError(f"{name} must be true or false, not {value!r}")
        self._check_suffix_values()
        if self.skip_layers is not None:
            object.__setattr__(self, "skip_layers", _layer_list(self.skip_layers))
        schedule = self.num_speculative_tokens_per_batch_size
        if schedule is not None:
            object.__setattr__(self, "num_speculative_tokens_per_batch_size", _schedule(schedule))

    def _check_suffix_values(self) -> None:
        for name, highest in (
            ("suffix_decoding_max_spec_factor", 1e6),
            ("suffix_decoding_min_token_prob", 1.0),
        ):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= highest
            ):
                raise ConfigError(f"{name} must be a number from 0 to {highest:g}, not {shown(value)}")

    def _check_owners(self) -> None:
        own_names = [name for name in self.methods if name not in BUILT_IN_METHODS]
        for key, owners in _OWNERS.items():
            if getattr(self, key) is not None and not own_names and not set(owners) & set(self.methods):
                raise ConfigError(
                    f"{key} belongs to method {' or '.join(owners)}, not to {', '.join(self.methods)}"
                )
        needing = [name for name in self.methods if name in MODEL_METHODS]
        if len(needing) > 1:
            raise ConfigError(
                f"methods {' and '.join(needing)} both need 'model', which names one: keep one of them"
            )
        for key in ("num_speculative_tokens", "num_speculative_tokens_per_batch_size"):
            if self.methods == ("none",) and getattr(self, key) is not None:
                raise ConfigError(f"{key} needs a method that drafts; method is 'none'")

    def _check_contradictions(self) -> None:
        self._check_self_draft()
        low, high = self.prompt_lookup_min or 2, self.prompt_lookup_max or max(5, self.prompt_lookup_min or 0)
        if low > high:
            raise ConfigError(f"prompt_lookup_min {low} is above prompt_lookup_max {high}")
        steps, tokens = self.num_steps, self.num_speculative_tokens
        if steps is not None and tokens is not None and steps != tokens:
            raise ConfigError(
                f"num_steps {steps} contradicts num_speculative_tokens {tokens}: both are the draft's depth"
            )
        if self.drafts_trees and self.rejection_sample_method == "block":
            raise ConfigError(
                "rejection_sample_method 'block' judges chains; use 'traversal' or 'standard' with a tree"
            )
        if self.rejection_sample_method is not None and self.guarantee == "same_text":
            raise ConfigError(
                "rejection_sample_method needs guarantee 'same_distribution'; same_text matches tokens"
            )

    def _check_self_draft(self) -> None:
        if "self_draft" not in self.methods:
            return
        head, first = self.exit_head, self.assistant_early_exit
        if head is not None and self.skip_layers is not None:
            raise ConfigError("skip_layers contradicts 'model': an exit head reads the target's first layers")
        if head is None and (first is None) == (self.skip_layers is None):
            raise ConfigError(
                "method 'self_draft' needs either assistant_early_exit or skip_layers, or an exit head as 'model'"
            )
        for key in ("revision", "draft_device", "draft_dtype", "check_draft"):
            if getattr(self, key) is not None and self.methods == ("self_draft",) and head is None:
                raise ConfigError(f"{key} is for an exit head, and self_draft has none: name one as 'model'")


def implied_method(given: Mapping[str, Any]) -> str:
    """The method that a lone `model` or method-specific key leaves no doubt about."""
    for key, owners in _OWNERS.items():
        if given.get(key) is not None and (len(owners) == 1 or key == "model"):
            return owners[0]
    return "none"


def _layer_list(value: Any) -> tuple[int, ...]:
    good = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not good or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value):
        raise ConfigError(f"skip_layers must be a list of layer numbers, not {shown(value)}")
    return tuple(value)


def _schedule(value: Any) -> tuple[tuple[int, int, int], ...]:
    """`[[start, end, K], ...]`: batch sizes from start to end draft K tokens."""
    name = "num_speculative_tokens_per_batch_size"
    message = f"{name} must be [[start, end, K], ...] without overlap, not {shown(value)}"
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(message)
    rows: list[tuple[int, int, int]] = []
    for entry in value:
        if not isinstance(entry, Sequence) or len(entry) != 3 or any(type(v) is not int for v in entry):
            raise ConfigError(message)
        start, end, depth = entry
        if not (1 <= start <= end and 0 <= depth <= MOST_DRAFTED) or (rows and start <= rows[-1][1]):
            raise ConfigError(message)
        rows.append((start, end, depth))
    return tuple(rows)
