"""`HfTarget`: any causal language model of transformers as a target, with its own code and attention."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, RoundResult, Scores, TokenWeights
from outrider.core.tree import TokenTree
from outrider.errors import ConfigError, ModelLoadError, ParameterError
from outrider.models.hf_cache import HfCache, check_rewindable
from outrider.models.hf_layers import LayerList
from outrider.models.hf_load import build_model
from outrider.models.hf_masks import TreeMasks
from outrider.models.hf_probe import check_rollback, takes_tree_masks
from outrider.models.hf_taps import Taps
from outrider.models.hf_weights import token_weights
from outrider.models.load import ModelSource, torch_dtype
from outrider.models.taps import joined_taps

_PREFILL_ROWS = (
    256  # rows per pass of `extend`: bounds activations, and logits where a model gives all of them
)
logger = logging.getLogger("outrider")

_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")


class HfTarget:
    """Fulfils `LayeredTarget` over a transformers model that the caller holds; the model object is left as it is.

    Each sequence has its own forward, so a row is the same beside any neighbours; other widths still differ in
    rounding, and `row_invariant` is False. `supports_trees` is found out at construction, by a small tree.
    Logits are float32 (float64 for a float64 model).
    `taps`: layer ids i; the feature is the hidden state entering layer i, or for i == num_layers the state
    after the last layer, before the final norm.
    """

    row_invariant = False

    def __init__(self, model: Any, taps: Sequence[int] = ()) -> None:
        """Raises `ModelLoadError` naming the class when the model's cache cannot be rewound exactly."""
        check_rewindable(model)
        self.model = model
        self._check_mode()
        self._accepts = _accepted_arguments(model)
        self._config = model.config.get_text_config(decoder=True)
        self.num_layers: int = self._config.num_hidden_layers
        self.taps = joined_taps((), taps, self.num_layers)
        self._taps = Taps(model, self.num_layers, self.taps)
        self._caches: dict[int, HfCache] = {}
        self._scored: dict[int, HfCache] = {}
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.hidden_size: int = self._config.hidden_size
        self.max_length = _shorter(_max_length(self._config), _rope_switch(self._config))
        self.masks = TreeMasks.of_config(self._config, self.dtype, self.device)
        self.vocab_size = check_rollback(self)
        self.supports_trees = "position_ids" in self._accepts and takes_tree_masks(self)

    @staticmethod
    def wrap(model: Any, taps: Sequence[int] = ()) -> HfTarget:
        """A target over a model that the user holds: no reload, no copy, nothing of it changed."""
        return HfTarget(model, taps)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, a tied embedding counted once."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def tap(self, layers: Sequence[int]) -> None:
        """See `TappedTarget.tap`. Raises `ModelLoadError` when the model's list of layers cannot be found."""
        taps = joined_taps(self.taps, layers, self.num_layers)
        self._taps = Taps(self.model, self.num_layers, taps)
        self.taps = taps

    def token_weights(self) -> TokenWeights:
        """See `TappedTarget.token_weights`. Raises `ModelLoadError` for a model without a final RMSNorm."""
        return token_weights(self.model, self.num_layers)

    @torch.no_grad()
    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        """See `TargetModel.extend`. Raises `ParameterError` when a sequence would outgrow the context."""
        for chunk in chunks:
            length = self.cached_length(chunk.sequence_id) + len(chunk.tokens)
            if self.max_length is not None and length > self.max_length:
                raise ParameterError(
                    f"{length} tokens exceed the model's context of {self.max_length}: shorten them"
                )
        return [self._extend(chunk) for chunk in chunks]

    def _extend(self, chunk: Chunk) -> torch.Tensor | None:
        cache = self._open(chunk.sequence_id)
        cache.drop_scratch()
        skip_head = {"logits_to_keep": 1} if "logits_to_keep" in self._accepts else {}
        parts = [self._taps.empty(self.hidden_size, self.dtype, self.device)]
        for start in range(0, len(chunk.tokens), _PREFILL_ROWS):
            tokens = list(chunk.tokens[start : start + _PREFILL_ROWS])
            _, features = self._forward(cache, tokens, skip_head)
            cache.keep(range(len(tokens)))
            parts.append(features)
        tapped = [part for part in parts if part is not None]
        return torch.cat(tapped) if tapped else None

    @torch.no_grad()
    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        """See `TargetModel.score`."""
        self._scored = {}
        return [self._score(context, draft.nodes) for context, draft in zip(contexts, drafts)]

    def _score(self, context: Context, tree: TokenTree) -> Scores:
        cache = self._open(context.sequence_id)
        past = len(context.tokens) - 1
        assert cache.length == past, "the cache holds exactly context.tokens[:-1]"
        cache.drop_scratch()
        logits, features = self.rows(cache, context.tokens[-1], tree)
        self._scored[context.sequence_id] = cache
        return Scores(logits, features)

    def rows(self, cache: HfCache, pending: int, tree: TokenTree) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [n + 1, vocab] and features of the pending token and the nodes; leaves their rows as scratch."""
        return self._forward(cache, [pending, *tree.tokens], self._tree_options(cache, tree))

    def _tree_options(self, cache: HfCache, tree: TokenTree) -> dict[str, Any]:
        if tree.is_chain:
            return {}
        assert self.masks is not None, "a target without tree masks is given chains"
        positions = [cache.length, *(cache.length + depth for depth in tree.depths)]
        return {
            "position_ids": torch.tensor([positions], device=self.device),
            "attention_mask": self.masks.of_tree(tree, cache.length),
        }

    @torch.no_grad()
    def draft_rows(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """See `LayeredTarget.draft_rows`. Raises `ConfigError` naming a class that cannot run some of its layers."""
        self._scored = {}
        return [self._layers(context, tree, layers)[0] for context, tree in zip(contexts, trees)]

    @torch.no_grad()
    def draft_states(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """See `LayeredTarget.draft_states`. Raises as `draft_rows`."""
        self._scored = {}
        return [self._layers(context, tree, layers)[1] for context, tree in zip(contexts, trees)]

    @cached_property
    def _layer_list(self) -> LayerList | None:
        """Where the model keeps its layers: a walk over all its modules, so it is looked for once."""
        return LayerList.of_model(self.model, self.num_layers)

    def _layers(
        self, context: Context, tree: TokenTree, layers: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n + 1, vocab] of some layers, and the hidden states [n + 1, hidden] that they end in."""
        name = type(self.model).__name__
        found = self._layer_list
        if found is None:
            raise ConfigError(
                f"self_draft: {name} has no single list of {self.num_layers} layers to choose from; use target='torch'"
            )
        cache = self._open(context.sequence_id)
        assert cache.length == len(context.tokens) - 1, "the cache holds exactly context.tokens[:-1]"
        cache.drop_scratch()
        try:
            with found.only(layers, self._config), found.states_after(layers[-1]) as states:
                tokens = [context.tokens[-1], *tree.tokens]
                logits = self._run(cache, tokens, self._tree_options(cache, tree))
            return logits, states[0]
        except (AttributeError, IndexError, KeyError, TypeError) as error:  # its layers depend on each other
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"self_draft: {name} cannot run some of its layers alone: {reason[:200]}"
            ) from error
        finally:
            cache.drop_scratch()

    @torch.no_grad()
    def commit(self, results: Sequence[RoundResult]) -> None:
        """See `TargetModel.commit`."""
        for result in results:
            cache = self._scored.pop(result.sequence_id, None)
            assert cache is not None, "commit follows a score of the same sequence"
            if result.emitted:
                cache.keep([0, *(node + 1 for node in result.kept)])
            else:
                cache.drop_scratch()

    def rewind(self, sequence_id: int, length: int) -> None:
        """See `TargetModel.rewind`."""
        self._open(sequence_id).truncate(length)

    @torch.no_grad()
    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        """See `TargetModel.fork`. Copies, so parent and child are independent afterwards."""
        assert sequence_id not in self._caches, "a fork opens a new sequence"
        self._caches[sequence_id] = self._open(parent_id).copy(length)

    def release(self, sequence_id: int) -> None:
        """See `TargetModel.release`."""
        self._caches.pop(sequence_id, None)
        self._scored.pop(sequence_id, None)

    def cached_length(self, sequence_id: int) -> int:
        """See `TargetModel.cached_length`."""
        cache = self._caches.get(sequence_id)
        return cache.length if cache else 0

    def _open(self, sequence_id: int) -> HfCache:
        return self._caches.setdefault(sequence_id, HfCache())

    def _forward(
        self, cache: HfCache, tokens: Sequence[int], options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One forward over the cache's certain tokens; logits [rows, vocab], features [rows, taps, hidden]."""
        with self._taps.listening() as listener:
            logits = self._run(cache, tokens, options)
        return logits, listener.features()

    def _check_mode(self) -> None:
        if self.model.training:
            raise ModelLoadError(
                f"{type(self.model).__name__} is in training mode, where dropout is active: call .eval()"
            )

    def _run(self, cache: HfCache, tokens: Sequence[int], options: Mapping[str, Any]) -> torch.Tensor:
        self._check_mode()  # the caller holds the model and may have changed it since
        ids = torch.tensor([tokens], device=self.device)
        if "position_ids" in self._accepts and "position_ids" not in options:
            positions = torch.arange(cache.length, cache.length + len(tokens), device=self.device)
            options = {**options, "position_ids": positions[None]}
        name = "cache" if "cache" in self._accepts else "past_key_values"
        output = self.model(input_ids=ids, use_cache=True, return_dict=True, **{name: cache.store}, **options)
        logits: torch.Tensor = output.logits[0]
        return logits if logits.dtype == torch.float64 else logits.float()


def _accepted_arguments(model: Any) -> frozenset[str]:
    """Names of what the model's forward takes; refuses a model without a cache of keys and values."""
    names = frozenset(inspect.signature(model.forward).parameters)
    if not names & {"cache", "past_key_values"}:
        raise ModelLoadError(
            f"{type(model).__name__} takes no cache of keys and values, so it cannot be rewound"
        )
    return names


def _rope_switch(config: Any) -> int | None:
    """The length up to which every forward turns positions alike, None where all lengths do.

    Longrope has two sets of factors and picks one by the highest position of a whole forward: past its original length
    a draft would change the rows before it, so no text is written there. Raises `ModelLoadError` without a length.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    tables = [rope, *(table for table in rope.values() if isinstance(table, dict))]
    for table in tables:
        if "longrope" in (table.get("rope_type"), table.get("type")):
            length = table.get("original_max_position_embeddings")
            length = length or getattr(config, "original_max_position_embeddings", None)
            if not isinstance(length, int):
                raise ModelLoadError(
                    "a longrope model without original_max_position_embeddings: add it to the config"
                )
            logger.warning("longrope changes its factors after %d tokens: texts end there", length)
            return length
    return None


def _shorter(first: int | None, second: int | None) -> int | None:
    lengths = [length for length in (first, second) if length is not None]
    return min(lengths, default=None)


def _max_length(config: Any) -> int | None:
    found = [
        value for key in _LENGTH_KEYS if isinstance(value := getattr(config, key, None), int) and value > 0
    ]
    return found[0] if found else None


def load_hf(
    source: ModelSource, *, dtype: str = "auto", device: str = "cpu", taps: Sequence[int] = ()
) -> HfTarget:
    """Loads a folder or a GGUF file into a transformers model and wraps it. Raises `ModelLoadError`."""
    return HfTarget(build_model(source, torch_dtype(source, dtype), torch.device(device)), taps)
