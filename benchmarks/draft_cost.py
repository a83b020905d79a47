"""Microseconds of a draft without a model, and of the bookkeeping of a tree of 32 nodes.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/draft_cost.py [--rounds 100] [--repeats 3] [--profile]

* Drafts: `propose` and `observe` of each method in rounds that go on from 100, 1,000 and 4,000 tokens of context. The
  text is given: articles of Spec-Bench (`prose`), and one passage that comes again and again with every 25th token
  changed (`edited`). A round keeps up to two drafted tokens that the text holds, so a context grows by 1 to 3 tokens;
  recycling and lookahead learn from ready rows of 49,152 logits.
* Bookkeeping: all that a round does with a tree besides laws, noise and the model: it is made by `DraftBuilder` from
  ready tokens, or grown by `Growth` level by level from ready rows and laws; seen by a target; walked by the rule with
  ready laws; and appended to the text.

Medians over the rounds of all repeats, which take turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from growth_cost import peaked_rows
from peer_report import machine

from outrider.core.accept import NoiseMatch
from outrider.core.law import NodeLaw
from outrider.core.noise import Contest, Place, RoundNoise
from outrider.core.protocols import Drafter
from outrider.core.records import (
    EMPTY_DRAFT,
    Budget,
    Context,
    Draft,
    Guarantee,
    Request,
    RoundResult,
    Scores,
    TokenView,
)
from outrider.core.sampling import SamplingParams
from outrider.core.sequence import Sequence as Running
from outrider.core.target_law import TargetLaw
from outrider.core.token_map import Columns
from outrider.core.tree import TokenTree
from outrider.drafters.builder import DraftBuilder
from outrider.drafters.growth import Growth
from outrider.drafters.lookahead import LookaheadDrafter
from outrider.drafters.lookup import NgramDrafter
from outrider.drafters.recycling import RecyclingDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.models.load import resolve
from outrider.text import load_tokenizer

VOCAB = 49_152
LENGTHS = (100, 1_000, 4_000)
NODES, DEPTH, TOPK = 32, 5, 4
MOST_KEPT = 2
GREEDY = SamplingParams(temperature=0.0, max_tokens=10**6)
SAMPLED = SamplingParams(temperature=0.8, max_tokens=10**6)


@dataclass(frozen=True)
class Method:
    make: Callable[[], Drafter]
    budget: Budget
    sampling: SamplingParams = GREEDY


METHODS: Mapping[str, Method] = {
    "ngram": Method(NgramDrafter, Budget(8, 8)),
    "suffix": Method(SuffixDrafter, Budget(8, 8)),
    "suffix tree": Method(lambda: SuffixDrafter(topk=3), Budget(8, 12)),
    "recycling": Method(RecyclingDrafter, Budget(4, 8)),
    "lookahead": Method(LookaheadDrafter, Budget(6, 18)),
    "lookahead, T=0.8": Method(LookaheadDrafter, Budget(6, 18), SAMPLED),
}


def texts(length: int) -> dict[str, list[int]]:
    """At least `length` tokens of prose, and of one passage edited again and again."""
    path = Path(os.environ["OUTRIDER_PROMPTS"]) / "spec_bench.jsonl"
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    articles = [row["turns"][0] for row in rows if row["category"] == "summarization"]
    tokenizer, prose = load_tokenizer(resolve("smollm2-135m")), list[int]()
    for article in articles:
        prose += tokenizer.encode_part(article)
        if len(prose) >= length:
            break
    assert len(prose) >= length, f"the articles hold {len(prose)} tokens"
    passage, random = prose[:400], np.random.default_rng(0)
    edited = [passage[place % len(passage)] for place in range(length)]
    for place in range(len(passage), length, 25):
        edited[place] = int(random.integers(VOCAB))
    return {"prose": prose, "edited": edited}


def kept(draft: Draft, following: Sequence[int]) -> tuple[int, ...]:
    """Nodes that the text holds, from the pending token down, at most `MOST_KEPT`."""
    nodes: list[int] = []
    row = 0
    while len(nodes) < MOST_KEPT:
        below = [n for n in draft.nodes.children[row] if draft.nodes.tokens[n] == following[len(nodes)]]
        if not below:
            break
        nodes += below
        row = below[0] + 1
    return tuple(nodes)


def draft_rounds(method: Method, text: Sequence[int], length: int, rounds: int, rows: torch.Tensor
                 ) -> list[tuple[float, float]]:  # fmt: skip
    """Seconds of `propose` and of `observe`, round by round; the rounds that read the prompt are not counted."""
    drafter, log = method.make(), list(text[:length])
    law, spent = TargetLaw(method.sampling), list[tuple[float, float]]()
    for number in range(rounds + 10):
        place = len(log)
        noise, view = RoundNoise(7, place), TokenView(log, place)
        context = Context(0, view, method.sampling, noise, Guarantee.SAME_TEXT, law)
        start = time.perf_counter()
        [draft] = drafter.propose([context], [method.budget], [EMPTY_DRAFT])
        proposed = time.perf_counter()
        accepted = kept(draft, text[place : place + MOST_KEPT])
        emitted = tuple(text[place : place + len(accepted) + 1])
        first = place % (len(rows) - len(draft))
        result = RoundResult(0, emitted, accepted, draft, Scores(rows[first : first + len(draft) + 1]))
        log += emitted
        begin = time.perf_counter()
        drafter.observe([result])
        if number >= 10:
            spent.append((proposed - start, time.perf_counter() - begin))
    return spent


def draft_costs(rounds: int, repeats: int) -> dict[str, Any]:
    """Median microseconds by method, text and length."""
    written, rows = texts(LENGTHS[-1] + (rounds + 10) * (MOST_KEPT + 1)), peaked_rows(64, VOCAB, 0)
    spent: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for _ in range(repeats):
        for name, method in METHODS.items():
            for kind, text in written.items():
                for length in LENGTHS:
                    seconds = draft_rounds(method, text, length, rounds, rows)
                    spent.setdefault((name, kind, length), []).extend(seconds)
    figures: dict[str, Any] = {}
    for (name, kind, length), pairs in spent.items():
        figures.setdefault(name, {}).setdefault(kind, {})[length] = {
            "propose_us": 1e6 * statistics.median(pair[0] for pair in pairs),
            "observe_us": 1e6 * statistics.median(pair[1] for pair in pairs),
            "both_us": 1e6 * statistics.median(map(sum, pairs)),
            "p90_us": 1e6 * float(np.quantile([sum(pair) for pair in pairs], 0.9)),
        }
    return figures


class ReadyLaw(TargetLaw):
    """Answers with one law whatever the row."""

    def __init__(self, law: NodeLaw) -> None:
        super().__init__(SAMPLED)
        self.law = law

    def node(self, row: Any, path: Sequence[int], columns: Columns | None = None) -> NodeLaw:
        return self.law


class ReadyNoise(RoundNoise):
    """Answers with contests prepared by row."""

    def contest(self, law: NodeLaw, count: int, place: Place) -> Contest:
        return CONTESTS[place.row]


CONTESTS = [
    Contest(tuple(range(TOPK * row, TOPK * row + TOPK)), (0.8, 0.8, 1.5, 2.5)[:TOPK]) for row in range(256)
]


class Bookkeeping:
    """The pieces of one round on one tree."""

    def __init__(self) -> None:
        law = NodeLaw.of_support(VOCAB, np.array([1], dtype=np.int64), np.zeros(1), greedy=True)
        log = list(range(100))
        self.budget, self.growth = Budget(DEPTH, NODES), Growth(VOCAB, TOPK)
        self.context = Context(
            0, TokenView(log, 100), SAMPLED, ReadyNoise(7, 100), Guarantee.SAME_TEXT, ReadyLaw(law)
        )
        self.rows = torch.zeros(NODES + 1, VOCAB)
        self.scores = Scores(self.rows)
        self.edges = [
            (parent, 100 + node) for node, parent in enumerate(_rows_of(self.grown().nodes.parents))
        ]

    def built(self) -> Draft:
        builder = DraftBuilder(EMPTY_DRAFT, self.budget)
        for row, token in self.edges:
            builder.child(row, token)
        return builder.draft()

    def grown(self) -> Draft:
        [draft] = self.growth.grow([self.context], [self.budget], [EMPTY_DRAFT], self.scored)
        return draft

    def scored(
        self, contexts: Sequence[Context], trees: Sequence[TokenTree], levels: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        return [self.rows[: len(rows)] for rows in levels]

    def round(self) -> dict[str, float]:
        """Seconds of each piece; the text is a new one each time."""
        request = Request(0, (1, 2, 3), GREEDY, 7, Guarantee.SAME_TEXT)
        running, spent = Running(request, max_length=None, num_spec_tokens=DEPTH), dict[str, float]()

        def timed(name: str, work: Callable[[], Any]) -> Any:
            start = time.perf_counter()
            value = work()
            spent[name] = time.perf_counter() - start
            return value

        context = timed("context and budget", lambda: (running.budget(self.budget), running.context())[1])
        timed("built by DraftBuilder", self.built)
        draft = timed("grown by Growth", self.grown)
        nodes = draft.nodes
        timed("depths and mask", lambda: (nodes.depths, nodes.sees))
        deepest = nodes.path(max(range(len(nodes)), key=nodes.depths.__getitem__))
        laws = _laws_along(draft, deepest)
        verdict = timed("walked by the rule", lambda: NoiseMatch().judge(draft, laws, context.noise))
        assert verdict.accepted == deepest, "the whole path is kept"
        result = timed("appended", lambda: running.append(draft, verdict, self.scores))
        timed("observed by Growth", lambda: self.growth.observe([result]))
        return spent


def _rows_of(parents: Sequence[int | None]) -> list[int]:
    return [0 if parent is None else parent + 1 for parent in parents]


def _laws_along(draft: Draft, path: Sequence[int]) -> Callable[[int], NodeLaw]:
    """Ready laws by which the text goes down a path."""
    tokens = [*(draft.nodes.tokens[node] for node in path), 9]
    laws = {
        row: NodeLaw.of_support(VOCAB, np.array([token], dtype=np.int64), np.zeros(1), greedy=True)
        for row, token in zip((0, *(node + 1 for node in path)), tokens)
    }
    return laws.__getitem__


def bookkeeping(rounds: int, repeats: int) -> dict[str, float]:
    """Median microseconds of each piece, and of all pieces that a round of either way of growing has."""
    work = Bookkeeping()
    spent = [work.round() for _ in range(10 + rounds * repeats)][10:]
    figures = {name: 1e6 * statistics.median(row[name] for row in spent) for name in spent[0]}
    builder, growth = "built by DraftBuilder", ("grown by Growth", "observed by Growth")
    totals = {"all, by DraftBuilder": growth, "all, by Growth": (builder,)}
    for name, left_out in totals.items():
        figures[name] = 1e6 * statistics.median(
            sum(seconds for piece, seconds in row.items() if piece not in left_out) for row in spent
        )
    return figures


def profiled(rounds: int) -> None:
    """Prints where the time of the bookkeeping and of the drafts that have a bar goes."""
    work, rows = Bookkeeping(), peaked_rows(64, VOCAB, 0)
    written = texts(LENGTHS[-1] + (rounds + 10) * (MOST_KEPT + 1))
    jobs: dict[str, Callable[[], Any]] = {"bookkeeping": lambda: [work.round() for _ in range(rounds)]}
    for name in ("ngram", "suffix", "suffix tree"):
        method = METHODS[name]
        jobs[name] = lambda method=method: draft_rounds(method, written["prose"], LENGTHS[-1], rounds, rows)
    for name, job in jobs.items():
        profile = cProfile.Profile()
        profile.runcall(job)
        print(f"== {name}")
        pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    facts = machine()
    if options.profile:
        profiled(options.rounds)
        return
    drafts = draft_costs(options.rounds, options.repeats)
    print("| draft, microseconds | text |" + "".join(f" {length} tokens |" for length in LENGTHS))
    print("|---" * (len(LENGTHS) + 2) + "|")
    for name, kinds in drafts.items():
        for kind, row in kinds.items():
            cells = [
                f"{f['both_us']:.0f} ({f['propose_us']:.0f} + {f['observe_us']:.0f})" for f in row.values()
            ]
            print(f"| {name} | {kind} | {' | '.join(cells)} |")
    pieces = bookkeeping(options.rounds, options.repeats)
    print(f"\n| {NODES} nodes, depth {DEPTH}, up to {TOPK} children | microseconds |\n|---|---|")
    for name, figure in pieces.items():
        print(f"| {name} | {figure:.1f} |")
    print(json.dumps({"machine": facts, "drafts": drafts, "bookkeeping": pieces}))


if __name__ == "__main__":
    main()
