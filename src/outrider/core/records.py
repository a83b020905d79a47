"""The records that travel through a round: frozen, complete at construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, overload

import torch

from outrider.core.law import POINT_MASS, Drawn, Law, PointMass
from outrider.core.noise import Noise, RoundNoise
from outrider.core.sampling import SamplingParams
from outrider.core.tree import EMPTY_TREE, TokenTree

if TYPE_CHECKING:
    from outrider.core.target_law import TargetLaw


class Guarantee(str, Enum):
    """What a rule keeps: the text itself at a seed, or the distribution of texts."""

    SAME_TEXT = "same_text"
    SAME_DISTRIBUTION = "same_distribution"


class TokenView(Sequence[int]):
    """The first `length` tokens of an append-only log: O(1) to make, valid as long as the log lives."""

    __slots__ = ("_length", "_log")

    def __init__(self, log: list[int], length: int) -> None:
        self._log, self._length = log, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._log[start:stop:step]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._log[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._log[: self._length])


@dataclass(frozen=True)
class Request:
    """One text to write. Token ids only: stop strings and words were resolved at the border."""

    request_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    guarantee: Guarantee
    eos_token_ids: frozenset[int] = frozenset()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def ending_ids(self) -> frozenset[int]:
        """EOS ids that end this text: none under ignore_eos."""
        return frozenset() if self.sampling.ignore_eos else self.eos_token_ids


@dataclass(frozen=True, eq=False)
class Context:
    """What is certain of one request at the start of a round; the last token is pending.

    `law` gives the processed law of any row of logits after this context plus a path; drafters use it to draw by the
    settings of the request. Valid until the sequence grows.
    """

    sequence_id: int
    tokens: TokenView
    sampling: SamplingParams
    noise: Noise
    guarantee: Guarantee
    law: TargetLaw

    @staticmethod
    def of(token_ids: Sequence[int], *, sequence_id: int = 0, seed: int = 0,
           sampling: SamplingParams | None = None, guarantee: Guarantee = Guarantee.SAME_TEXT) -> Context:  # fmt: skip
        """A context outside any engine, greedy unless told otherwise, for scripts and tests."""
        from outrider.core.target_law import TargetLaw

        sampling = sampling or SamplingParams(temperature=0.0)
        tokens = list(token_ids)
        law = TargetLaw(sampling, prompt=tokens)
        noise = RoundNoise(seed, len(tokens))
        return Context(sequence_id, TokenView(tokens, len(tokens)), sampling, noise, guarantee, law)


@dataclass(frozen=True)
class Budget:
    """How much a drafter may guess for one sequence: no node deeper than `depth`, at most `nodes` in all."""

    depth: int
    nodes: int


@dataclass(frozen=True)
class Group:
    """Siblings and the law they were chosen by, in the order in which they were chosen."""

    law: Law
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Draft:
    """A tree of guessed tokens with their laws: `groups[row]` partitions the children of that row.

    Point masses come first; what was drawn was drawn with them excluded, so its law has no mass there.
    """

    nodes: TokenTree
    groups: tuple[tuple[Group, ...], ...]

    def __post_init__(self) -> None:
        assert len(self.groups) == len(self.nodes) + 1, "one entry per row"
        if self.nodes.is_chain and all(len(g) <= 1 for g in self.groups):
            return
        for groups, children in zip(self.groups, self.nodes.children):
            if len(groups) == 1 and groups[0].law is POINT_MASS and groups[0].nodes == children:
                continue  # nearly every row of a large tree
            if groups or children:
                self._check(groups, children)

    def _check(self, groups: tuple[Group, ...], children: tuple[int, ...]) -> None:
        """Asserts that these groups may stand at a row with these children."""
        nodes = [node for group in groups for node in group.nodes]
        assert sorted(nodes) == list(children), "every child belongs to one group"
        taken: list[int] = []
        for index, group in enumerate(groups):
            if isinstance(group.law, PointMass):
                assert index == 0, "one group of point masses, first"
            else:
                assert not group.law.probs[taken].any(), "drawn with earlier siblings excluded"
                assert len(group.nodes) == 1 or not isinstance(group.law, Drawn), "one token per draw"
            taken += [self.nodes.tokens[node] for node in group.nodes]

    @staticmethod
    def chain(tokens: Sequence[int], laws: Sequence[Law] | None = None) -> Draft:
        """A chain; point masses where no laws are given."""
        laws = laws if laws is not None else [POINT_MASS] * len(tokens)
        assert len(laws) == len(tokens), "one law per token"
        return Draft(TokenTree.chain(tokens), (*(((Group(law, (n,)),)) for n, law in enumerate(laws)), ()))

    @staticmethod
    def tree(token_ids: Sequence[int], parents: Sequence[int | None]) -> Draft:
        """Point masses on the tree given by tokens and parents (None: the pending token)."""
        nodes = TokenTree(tuple(token_ids), tuple(parents))
        return Draft(nodes, tuple((Group(POINT_MASS, below),) if below else () for below in nodes.children))

    def __len__(self) -> int:
        return len(self.nodes)


EMPTY_DRAFT = Draft(EMPTY_TREE, ((),))


@dataclass(frozen=True, eq=False)
class Scores:
    """The target's answer for one sequence: a row for the pending token, then one per node.

    `logits` [n + 1, vocab] on the target's device, valid until the next `score`; `features` [n + 1, taps,
    hidden] when the target was loaded with taps, else None.
    """

    logits: torch.Tensor  # [n + 1, vocab]
    features: torch.Tensor | None = None  # [n + 1, taps, hidden]


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """The matrices that stand between a model's tokens and its hidden states, which draft heads share.

    A hidden state `h` after the last layer speaks as `head @ norm(h)`, with RMSNorm of `norm` and `norm_eps`.
    """

    embedding: torch.Tensor  # [vocab, hidden]
    head: torch.Tensor  # [vocab, hidden]
    norm: torch.Tensor  # [hidden]
    norm_eps: float


@dataclass(frozen=True)
class Verdict:
    """A rule's answer: the accepted nodes from the root down, then the one token that follows them.

    `next_token` is None where the row after the last accepted node has no law: the text needs that row only if it
    does not end before.
    """

    accepted: tuple[int, ...]
    next_token: int | None


class FinishReason(str, Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round made certain for one sequence, after truncation at a stop or a cap.

    `emitted` = tokens of `accepted` (path order), then the recovered or bonus token unless truncation dropped it.
    `features` [1 + len(accepted), taps, hidden]: those of the pending token and the accepted nodes.
    """

    sequence_id: int
    emitted: tuple[int, ...]
    accepted: tuple[int, ...]
    draft: Draft
    scores: Scores
    finish_reason: FinishReason | None = None
    features: torch.Tensor | None = None

    @property
    def kept(self) -> tuple[int, ...]:
        """Nodes whose keys and values stay cached: all but the last emitted token, which becomes pending."""
        return self.accepted[: len(self.emitted) - 1]
