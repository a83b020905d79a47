"""`ToyTarget`: a float64 language model of no weight that checks every caller's bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from outrider.core.law import Floats
from outrider.core.protocols import Chunk
from outrider.core.records import Context, Draft, RoundResult, Scores, TokenWeights
from outrider.core.tree import TokenTree
from outrider.models.taps import joined_taps
from outrider.testing.language import BlurredLanguage, HashedLanguage, Language, TableLanguage

_HIDDEN = 16  # size of the tapped features
_NORM_EPS = 1e-6


class ToyTarget:
    """A `LayeredTarget` and `TappedTarget`: logits are a pure function of the tokens, the cache is the list of them.

    Every call asserts what the protocol demands of its caller: a cache that holds exactly
    `context.tokens[:-1]`, a `commit` only of what the last `score` scored, of nodes on one path, and of
    nothing that another call has overwritten since. `calls` counts the calls by name, and the rows scored.

    `taps` are the layers whose features (float32 [n, taps, 16]) `extend` and `score` return. `draft_rows`
    blurs the logits by `noise_scale` times the share of layers left out; `draft_states` of the first layers are the
    features tapped behind them.
    """

    row_invariant = True
    hidden_size = _HIDDEN

    def __init__(self, vocab_size: int, *, seed: int = 0, order: int = 2, sharpness: float = 2.0,
                 noise_scale: float = 2.0, max_length: int | None = None, num_layers: int = 4,
                 taps: Sequence[int] = (), supports_trees: bool = True, dtype: torch.dtype = torch.float64,
                 language: Language | None = None) -> None:  # fmt: skip
        self.vocab_size, self.max_length, self.num_layers = vocab_size, max_length, num_layers
        self.taps, self.supports_trees = tuple(taps), supports_trees
        self.calls: Counter[str] = Counter()
        self._language = language or HashedLanguage(vocab_size, seed, order, sharpness)
        self._thoughts = HashedLanguage(vocab_size, seed + 1, order)
        self._noise_scale, self._dtype, self._seed = noise_scale, dtype, seed
        self._cached: dict[int, list[int]] = {}
        self._scored: dict[int, tuple[int, Draft]] = {}  # scratch: the pending token and what hangs below it

    @staticmethod
    def from_table(table: Mapping[tuple[int, ...], Sequence[float]], *,
                   max_length: int | None = None) -> ToyTarget:  # fmt: skip
        """A target with the probabilities of a table, such as `{(): (.5, .3, .2), (0, 1): (0, 0, 1)}`."""
        language = TableLanguage(table)
        return ToyTarget(language.vocab_size, language=language, max_length=max_length)

    def imitation(self, noise: float, *, seed: int = 1, vocab_size: int | None = None,
                  max_length: int | None = None, supports_trees: bool = True) -> ToyTarget:  # fmt: skip
        """A model that speaks like this one, less clearly: a draft model. `noise` 0 is the same law."""
        size = vocab_size or self.vocab_size
        language = BlurredLanguage(self._language, size, noise, seed)
        return ToyTarget(size, language=language, max_length=max_length, supports_trees=supports_trees)

    def logits_of(self, tokens: Sequence[int]) -> Floats:  # [vocab]
        """The logits of the token after `tokens`, float64: the plain function, for oracles."""
        return self._language(tokens)

    def tap(self, layers: Sequence[int]) -> None:
        """See `TappedTarget.tap`."""
        self.taps = joined_taps(self.taps, layers, self.num_layers)

    def token_weights(self) -> TokenWeights:
        """Random matrices, the same at every call; the logits do not come from them."""
        rng = np.random.default_rng((self._seed, 3))
        embedding, head = rng.standard_normal((2, self.vocab_size, _HIDDEN)) / np.sqrt(_HIDDEN)
        norm = torch.ones(_HIDDEN, dtype=torch.float64)
        return TokenWeights(torch.from_numpy(embedding), torch.from_numpy(head), norm, _NORM_EPS)

    def extend(self, chunks: Sequence[Chunk]) -> list[torch.Tensor | None]:
        self.calls["extend"] += 1
        return [self._extend(chunk) for chunk in chunks]

    def score(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Scores]:
        self.calls["score"] += 1
        assert len(contexts) == len(drafts), f"{len(contexts)} contexts but {len(drafts)} drafts"
        assert len({c.sequence_id for c in contexts}) == len(contexts), "one row per sequence"
        self._scored.clear()
        return [self._score(context, draft) for context, draft in zip(contexts, drafts)]

    def commit(self, results: Sequence[RoundResult]) -> None:
        self.calls["commit"] += 1
        for result in results:
            assert result.sequence_id in self._scored, (
                f"sequence {result.sequence_id}: commit without its score"
            )
            pending, draft = self._scored.pop(result.sequence_id)
            assert result.draft == draft, "the committed draft is the scored one"
            path = draft.nodes.path(result.kept[-1]) if result.kept else ()
            assert result.kept == path, f"kept nodes {result.kept} are not a path from the pending token"
            kept = [draft.nodes.tokens[node] for node in result.kept]
            assert list(result.emitted[: len(kept)]) == kept, "what is kept was emitted"
            self._cached[result.sequence_id] += [pending, *kept]

    def rewind(self, sequence_id: int, length: int) -> None:
        self.calls["rewind"] += 1
        self._scored.pop(sequence_id, None)
        cached = self._cached[sequence_id]
        assert 0 <= length <= len(cached), f"rewind to {length} of {len(cached)} cached tokens"
        del cached[length:]

    def fork(self, parent_id: int, sequence_id: int, length: int) -> None:
        self.calls["fork"] += 1
        assert sequence_id not in self._cached, f"sequence {sequence_id} is already open"
        parent = self._cached[parent_id]
        assert 0 <= length <= len(parent), f"fork at {length} of {len(parent)} cached tokens"
        self._cached[sequence_id] = parent[:length]

    def release(self, sequence_id: int) -> None:
        self.calls["release"] += 1
        self._scored.pop(sequence_id, None)
        self._cached.pop(sequence_id, None)

    def cached_length(self, sequence_id: int) -> int:
        return len(self._cached.get(sequence_id, ()))

    @property
    def open_sequences(self) -> tuple[int, ...]:
        """Sequences that hold a cache: empty when every request was released."""
        return tuple(self._cached)

    def draft_rows(self, contexts: Sequence[Context], trees: Sequence[TokenTree],
                   layers: Sequence[int]) -> list[torch.Tensor]:  # fmt: skip
        self.calls["draft_rows"] += 1
        blur = self._noise_scale * (1.0 - len(set(layers)) / self.num_layers)
        language = BlurredLanguage(self._language, self.vocab_size, blur, self._seed + 2)
        return [
            self._tensor([language(text) for text in texts])
            for texts in self._drafted(contexts, trees, layers)
        ]

    def draft_states(self, contexts: Sequence[Context], trees: Sequence[TokenTree],
                     layers: Sequence[int]) -> list[torch.Tensor]:  # fmt: skip
        self.calls["draft_states"] += 1
        return [self._states(texts, (len(layers),))[:, 0] for texts in self._drafted(contexts, trees, layers)]

    def _drafted(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], layers: Sequence[int]
    ) -> list[list[list[int]]]:
        """The texts of the rows of each draft, for some layers that there are."""
        assert all(0 <= layer < self.num_layers for layer in layers), (
            f"layers {list(layers)} of {self.num_layers}"
        )
        for context, tree in zip(contexts, trees):
            self._check(context, tree)
            self._scored.pop(context.sequence_id, None)  # the scratch rows of a score are overwritten
        return [_texts(context, tree) for context, tree in zip(contexts, trees)]

    def _extend(self, chunk: Chunk) -> torch.Tensor | None:
        self._scored.pop(chunk.sequence_id, None)
        assert all(0 <= token < self.vocab_size for token in chunk.tokens), f"tokens beyond {self.vocab_size}"
        cached = self._cached.setdefault(chunk.sequence_id, [])
        start = len(cached)
        cached += chunk.tokens
        assert self.max_length is None or len(cached) <= self.max_length, (
            f"{len(cached)} > {self.max_length} tokens"
        )
        return self._features([cached[: end + 1] for end in range(start, len(cached))])

    def _score(self, context: Context, draft: Draft) -> Scores:
        self._check(context, draft.nodes)
        self._scored[context.sequence_id] = (context.tokens[-1], draft)
        texts = _texts(context, draft.nodes)
        self.calls["rows"] += len(texts)
        return Scores(self._tensor([self._language(text) for text in texts]), self._features(texts))

    def _check(self, context: Context, tree: TokenTree) -> None:
        """Asserts the invariant between rounds, and that nodes fit vocabulary and context limit."""
        assert context.sequence_id in self._cached, f"sequence {context.sequence_id} was never opened"
        cached = self._cached[context.sequence_id]
        assert cached == context.tokens[:-1], (
            f"sequence {context.sequence_id}: cached {cached}, but the context is {list(context.tokens)}"
        )
        assert all(0 <= token < self.vocab_size for token in (context.tokens[-1], *tree.tokens)), (
            "unknown token"
        )
        assert self.supports_trees or tree.is_chain, "this target takes chains only"
        longest = len(context.tokens) + max(tree.depths, default=0)
        assert self.max_length is None or longest <= self.max_length, f"{longest} > {self.max_length} tokens"

    def _features(self, texts: Sequence[Sequence[int]]) -> torch.Tensor | None:  # [n, taps, hidden]
        return self._states(texts, self.taps) if self.taps else None

    def _states(self, texts: Sequence[Sequence[int]], taps: Sequence[int]) -> torch.Tensor:
        """What each layer makes of the thoughts after some texts, [n, taps, hidden]."""
        thoughts = [self._thoughts.state(text) for text in texts]
        states = [[np.cos(thought * (tap + 1)) for tap in taps] for thought in thoughts]
        return torch.tensor(np.array(states).reshape(len(texts), len(taps), _HIDDEN), dtype=torch.float32)

    def _tensor(self, rows: Sequence[Floats]) -> torch.Tensor:  # [n, vocab]
        return torch.from_numpy(np.stack(rows)).to(self._dtype)


def _texts(context: Context, tree: TokenTree) -> list[list[int]]:
    """The text that each row follows: the context, then the context with each node's path."""
    texts = [list(context.tokens)]
    for token, parent in zip(tree.tokens, tree.parents):
        texts.append([*texts[0 if parent is None else parent + 1], token])
    return texts
