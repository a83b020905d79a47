"""EAGLE-3 heads in the compiled library: what `CachedHead` says, one answer however rows are asked for, over rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from outrider.core.records import Budget, Guarantee, Request, RoundResult, TokenWeights
from outrider.core.rules import RuleBook
from outrider.core.sampling import SamplingParams
from outrider.drafters.eagle import EagleDrafter
from outrider.engine.engine import Engine, Parts
from outrider.models.arch import Arch, RopeScaling
from outrider.models.eagle_head import EagleHead
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_cache import CachedHead, DraftHead, Entries, Guesses
from outrider.models.heads import EagleConfig, Head
from outrider.models.native_eagle import NativeEagleHead
from outrider.models.native_eagle_load import pack_eagle
from outrider.testing.toy import ToyTarget

pytestmark = pytest.mark.native

VOCAB, HIDDEN, FEATURE, LAYERS = 61, 40, 24, 6
MAP = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:37]
ARCH = Arch(
    "llama",
    1,
    HIDDEN,
    50,
    6,
    2,
    10,
    VOCAB,
    1e-5,
    500.0,
    RopeScaling(),
    False,
    False,
    False,
    False,
    False,
    600,
)
PLAIN = EagleConfig(True, ARCH, FEATURE, VOCAB, taps=(1, 3, 5))
CONFIGS = {
    "all tokens": PLAIN,
    "draft vocabulary": replace(PLAIN, draft_vocab=37),
    "everything": EagleConfig(
        True, replace(ARCH, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True), FEATURE, 37, (0, 6, 6),
        fc_bias=True, norm_before_fc=True, fc_norm=True, norm_before_residual=True, norm_output=True,
    ),
}  # fmt: skip
by_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
by_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])


def files(config: EagleConfig) -> Head:
    """A head with numbers of its own in every tensor."""
    head = fresh_head(config, seed=1, token_map=MAP if config.draft_vocab < VOCAB else None)
    generator = torch.Generator().manual_seed(2)
    own = {"embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator)}
    for name, tensor in head.tensors.items():
        noise = torch.randn(tensor.shape, generator=generator)
        own[name] = tensor + 0.3 * noise if tensor.ndim == 1 else tensor
    return replace(head, tensors=own)


def weights() -> TokenWeights:
    """A target's, of another width than the head."""
    return TokenWeights(torch.zeros(VOCAB, FEATURE), torch.zeros(VOCAB, FEATURE), torch.ones(FEATURE), 1e-5)


def cached(config: EagleConfig) -> CachedHead:
    return CachedHead(EagleHead(files(config), weights(), num_layers=LAYERS, dtype=torch.float64))


def native(config: EagleConfig, dtype: str = "float32", threads: int = 1) -> NativeEagleHead:
    packed = pack_eagle(files(config), weights(), num_layers=LAYERS, dtype=dtype, threads=threads)
    return NativeEagleHead(packed)


def columns(head: DraftHead) -> torch.Tensor:  # [draft vocab]
    """The columns of a head's rows in ascending order of the target's ids."""
    return torch.arange(VOCAB) if head.token_map is None else torch.argsort(head.token_map)


@dataclass
class Text:
    """A sequence of the script: `certain` entries are made, of a text whose features are known throughout."""

    tokens: list[int]
    certain: int = 0
    known: int = 0  # features that the head was given
    paths: list[tuple[int, ...]] = field(default_factory=list)  # of rows: the tokens of their guesses


class Script:
    """Rounds of an engine at random, the same for every head: what each call gives is noted in `rows`."""

    def __init__(self, head: DraftHead, seed: int) -> None:
        self._head, self._chance = head, random.Random(seed)
        self._features = torch.randn(
            900, len(head.taps), FEATURE, generator=torch.Generator().manual_seed(seed)
        )
        self._columns, self._texts, self._next = columns(head), dict[int, Text](), 0
        self.rows: list[torch.Tensor] = []

    def run(self, rounds: int) -> list[torch.Tensor]:
        for _ in range(rounds):
            if len(self._texts) < 3:
                self._open()
            if self._chance.random() < 0.2:
                self._fork()
            ids = [one for one in self._texts if self._chance.random() < 0.8]  # the others have an idle round
            if ids:
                self._extend(ids)
                for _ in range(self._chance.choice((0, 1, 3, 5))):
                    self._guess(ids)
                self._commit(ids)
            for one in [one for one, text in self._texts.items() if text.certain > 200]:
                self._head.release(one)
                del self._texts[one]
        return self.rows

    def _note(self, rows: Sequence[torch.Tensor]) -> None:
        self.rows += [part[..., self._columns].double() for part in rows]

    def _open(self) -> None:
        length = self._chance.choice((2, 7, 64, 130))
        self._texts[self._next] = Text([self._chance.randrange(VOCAB) for _ in range(length)])
        self._next += 1

    def _fork(self) -> None:
        parent_id, parent = self._chance.choice(list(self._texts.items()))
        if parent.known < 3:
            return
        length = self._chance.randrange(2, parent.known)
        self._head.fork(parent_id, self._next, length)
        tokens = [*parent.tokens[:length], self._chance.randrange(VOCAB)]
        self._texts[self._next] = Text(tokens, length - 1, length)
        self._next += 1

    def _extend(self, ids: Sequence[int]) -> None:
        entries = []
        for one in ids:
            text = self._texts[one]
            end = len(text.tokens) - 1
            start = min(text.certain, end - 1)
            features = self._features[text.known : end]
            entries.append(Entries(one, start, text.tokens[start + 1 :], features))
            text.certain, text.known, text.paths = end, max(text.known, end), [()]
        self._head.extend(entries)
        self._note(self._head.pending_rows(ids))

    def _guess(self, ids: Sequence[int]) -> None:
        asked = []
        for one in ids:
            text, count = self._texts[one], self._chance.choice((1, 1, 2, 4))
            last = len(text.paths) - 1
            parents = tuple(last if count == 1 else self._chance.randrange(last + 1) for _ in range(count))
            tokens = tuple(self._chance.randrange(VOCAB) for _ in range(count))
            asked.append(Guesses(one, tokens, parents))
            text.paths += [(*text.paths[parent], token) for parent, token in zip(parents, tokens)]
        self._note(self._head.guess(asked))

    def _commit(self, ids: Sequence[int]) -> None:
        """Some of a path, all of it or none of it, and a token after it."""
        for one in ids:
            text = self._texts[one]
            path = self._chance.choice(text.paths)
            text.tokens += [*path[: self._chance.randrange(len(path) + 1)], self._chance.randrange(VOCAB)]


@by_config
def test_rows_over_rounds_are_those_of_the_cached_head(config: EagleConfig) -> None:
    for seed in range(3):
        mine, theirs = (Script(head, seed).run(12) for head in (native(config, threads=2), cached(config)))
        assert len(mine) == len(theirs) > 30
        for row, other in zip(mine, theirs):
            torch.testing.assert_close(row, other, atol=1e-4, rtol=0)


@by_config
@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 0.02), ("int8", 0.03)])
def test_coarser_weights_say_nearly_the_same(config: EagleConfig, dtype: str, error: float) -> None:
    mine, theirs = (
        torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in Script(head, 5).run(12)])
        for head in (native(config, dtype), cached(config))
    )
    assert float((mine - theirs).square().mean().sqrt() / theirs.square().mean().sqrt()) < error
    assert float((mine.argmax(1) == theirs.argmax(1)).double().mean()) > 0.9


@by_dtype
def test_rows_are_one_answer_alone_and_in_trees_and_beside_others(dtype: str) -> None:
    """Every node of a tree that was guessed in levels, beside another sequence, against its path as a chain alone."""
    config, chance = CONFIGS["everything"], random.Random(4)
    wide, alone = native(config, dtype, threads=2), native(config, dtype)
    features = torch.randn(70, len(wide.taps), FEATURE, generator=torch.Generator().manual_seed(6))
    for length in (1, 2, 63, 66):
        texts = [[chance.randrange(VOCAB) for _ in range(length)] for _ in range(2)]
        wide.extend([Entries(2 * length + one, 0, text, features[:length]) for one, text in enumerate(texts)])
        [pending, _] = wide.pending_rows([2 * length, 2 * length + 1])
        rows, paths = [pending], [()]
        for width in (1, 4, 7, 16):
            parents = tuple(chance.randrange(len(paths)) for _ in range(width))
            tokens = tuple(chance.randrange(VOCAB) for _ in range(width))
            beside = Guesses(2 * length + 1, tokens[:2], (0, 0)[: len(tokens)])
            rows += wide.guess([Guesses(2 * length, tokens, parents), beside])[0]
            paths += [(*paths[parent], token) for parent, token in zip(parents, tokens)]
        for row, path in zip(rows, paths):
            for start, end in ((0, length // 2), (length // 2, length)):
                if end > start:
                    alone.extend([Entries(0, start, texts[0][start:end], features[start:end])])
            found = alone.pending_rows([0])[0]
            for index, token in enumerate(path):
                [[found]] = alone.guess([Guesses(0, (token,), (index,))])
            assert torch.equal(found.view(torch.int32), row.view(torch.int32)), (length, path)
            alone.release(0)


def test_long_texts_are_taken_in_by_pieces() -> None:
    whole, pieces = native(PLAIN, "int8", threads=2), native(PLAIN, "int8")
    tokens = [(7 * i) % VOCAB for i in range(550)]
    features = torch.randn(550, len(whole.taps), FEATURE, generator=torch.Generator().manual_seed(6))
    whole.extend([Entries(0, 0, tokens, features)])
    for start in range(0, 550, 110):
        end = start + 110
        pieces.extend([Entries(0, start, tokens[start:end], features[start:end])])
    assert torch.equal(whole.pending_rows([0])[0], pieces.pending_rows([0])[0])
    assert whole.cached_length(0) == pieces.cached_length(0) == 550


def test_rows_outlive_the_passes_that_follow() -> None:
    head = native(PLAIN)
    features = torch.randn(3, len(head.taps), FEATURE, generator=torch.Generator().manual_seed(6))
    head.extend([Entries(0, 0, [1, 2, 3], features)])
    [pending], [guessed] = head.pending_rows([0]), head.guess([Guesses(0, (4,), (0,))])
    before = pending.clone(), guessed.clone()
    head.guess([Guesses(0, (5, 6), (0, 1))])
    head.extend([Entries(0, 1, [9, 9], features[:0])])
    assert torch.equal(pending, before[0])
    assert torch.equal(guessed, before[1])


def test_released_sequences_are_forgotten() -> None:
    head = native(PLAIN)
    head.extend([Entries(0, 0, [1], torch.zeros(1, len(head.taps), FEATURE))])
    head.release(0)
    head.release(0)
    assert head.cached_length(0) == 0


class Cycle:
    """A controller whose budgets go round: chains, trees, and rounds without a draft."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets, self._round = budgets, 0

    def budgets(self, contexts: Sequence[object], load: int) -> list[Budget]:
        self._round += 1
        return [self._budgets[(self._round + index) % len(self._budgets)] for index in range(len(contexts))]


def generated(dtype: str | None, topk: int) -> list[RoundResult]:
    """All rounds of an engine with a head of this precision; None: a `CachedHead`."""
    target = ToyTarget(VOCAB, seed=6, order=2, sharpness=1.5, num_layers=LAYERS)
    arch = replace(ARCH, hidden=target.hidden_size)
    head = fresh_head(EagleConfig(True, arch, target.hidden_size, VOCAB), seed=2)
    told = target.token_weights()
    drafting: DraftHead
    if dtype is None:
        drafting = CachedHead(EagleHead(head, told, num_layers=LAYERS))
    else:
        drafting = NativeEagleHead(pack_eagle(head, told, num_layers=LAYERS, dtype=dtype, threads=2))
    target.tap(drafting.taps)
    drafter = EagleDrafter(drafting, target_vocab_size=VOCAB, topk=topk)
    budgets = [Budget(3, 3 * topk), Budget(0, 0), Budget(4, 4 * topk)]
    engine = Engine(Parts(target, drafter, RuleBook(), Cycle(budgets)))
    sampling = SamplingParams(temperature=0.9, max_tokens=25, ignore_eos=True)
    for number, prompt in enumerate(
        [(1, 5, 2, 7), (4,), (2, 2, 6, 1, 0, 3), (1, 5, 2, 7)]
    ):  # the last is a fork
        engine.submit(Request(number, prompt, sampling, 50 + number, Guarantee.SAME_TEXT))
    rounds: list[RoundResult] = []
    while engine.unfinished:
        rounds += engine.step()
    return rounds


@pytest.mark.parametrize("topk", [1, 3])
def test_an_engine_gets_the_drafts_of_the_cached_head(topk: int) -> None:
    mine, theirs = generated("float32", topk), generated(None, topk)
    assert [(one.sequence_id, one.draft.nodes, one.emitted) for one in mine] == [
        (one.sequence_id, one.draft.nodes, one.emitted) for one in theirs
    ]


@pytest.mark.parametrize("topk", [1, 3])
def test_an_int8_head_leaves_the_texts_alone(topk: int) -> None:
    texts = []
    for dtype in ("int8", None):
        texts.append({number: list[int]() for number in range(4)})
        for result in generated(dtype, topk):
            texts[-1][result.sequence_id] += result.emitted
    assert texts[0] == texts[1]
