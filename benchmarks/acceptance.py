"""How often a draft's children hold the next token, by the way they are chosen, beside what any single draw could do.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/acceptance.py [--positions 20000] [--temperature 1.0] [--pairs NAMES]
        [--state FILE]

Texts are sampled by the target; at each of their positions the target's law p is compared with the law q of several
drafts: layers left out, copies with coarser or noised weights, and the drafts that come with the package (their first
guess at every pending token). `1-TV` is the most that one drawn token can reach.
* ranked list: the best 1, 2, 4 of q under the noise that chooses the text;
* without replacement: recursive rejection of tokens drawn from q;
* hybrid: the best k - 1 of q and one drawn from the rest (2502.18779).
The first is counted, the others are summed as chances given what was drawn. Intervals are 95 %, over texts (which are
independent, positions within one are not). A second table says how often a ranked child was kept by rank and lead: the
priors of `drafters/node_kinds.py`. With --state what was counted is kept in a file. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from trained_rows import DraftRows, trained_pairs

from outrider import LLM, SamplingParams
from outrider.core.accept import proposals
from outrider.core.law import DrawnWithoutReplacement, Floats, NodeLaw
from outrider.core.noise import Place, RoundNoise
from outrider.core.protocols import Chunk, LayeredTarget, TargetModel
from outrider.core.records import Context, Draft, Group, RoundResult
from outrider.core.tree import TokenTree
from outrider.drafters.node_kinds import LEADS
from outrider.models.load import load, load_arch, load_state, resolve
from outrider.models.native_load import load_native
from outrider.models.settings import RunSettings

COUNTS = (1, 2, 4)
MODEL = "smollm2-135m"
CHUNK = 32  # positions scored at once
STRIDE = 7  # through the questions, so that any number of texts spans the tasks
LONGEST_PROMPT = 1200


@dataclass(frozen=True)
class SomeLayers:
    """The target without some of its layers."""

    target: LayeredTarget
    left_out: tuple[int, ...]

    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        kept = [layer for layer in range(self.target.num_layers) if layer not in self.left_out]
        return self.target.draft_rows([context], [draft.nodes], kept)[0]

    def release(self, sequence_id: int) -> None:
        """The target frees its cache itself."""


class Copy:
    """A second model: coarser weights, or matrices with Gaussian noise relative to their standard deviation."""

    def __init__(self, dtype: str, noise: float, threads: int | None) -> None:
        source = resolve(MODEL)
        state = dict(load_state(source))
        rng = torch.Generator().manual_seed(5)
        for name, weight in state.items():
            if noise and weight.dim() == 2 and "layers" in name:
                state[name] = weight + noise * weight.std() * torch.randn(weight.shape, generator=rng)
        self._model = load_native(load_arch(source), state, None, RunSettings(dtype=dtype, threads=threads))

    def rows(self, context: Context, draft: Draft) -> torch.Tensor:
        cached = self._model.cached_length(context.sequence_id)
        self._model.extend([Chunk(context.sequence_id, context.tokens[cached:-1])])
        return self._model.score([context], [draft])[0].logits

    def release(self, sequence_id: int) -> None:
        self._model.release(sequence_id)


def pairs(target: TargetModel, threads: int | None) -> dict[str, Callable[[], DraftRows]]:
    """Drafts by name: cheap to make ones that differ from the target in several ways and degrees."""
    assert isinstance(target, LayeredTarget)

    def without(*layers: int) -> Callable[[], DraftRows]:
        return lambda: SomeLayers(target, layers)

    def copy(dtype: str, noise: float) -> Callable[[], DraftRows]:
        return lambda: Copy(dtype, noise, threads)

    return {
        "2 layers skipped": without(12, 20),
        "5 layers skipped": without(8, 12, 16, 20, 24),
        "exit after layer 28 of 30": without(28, 29),
        "int4 copy": copy("int4", 0.0),
        "weights with 8 % noise": copy("bfloat16", 0.08),
        **trained_pairs(MODEL, threads),
    }


@dataclass
class Tally:
    """Sums of one pair: per text its positions and, by measure, the sum over them."""

    texts: list[dict[str, float]] = field(default_factory=list)
    kept: dict[str, list[float]] = field(default_factory=dict)  # "rank,lead" -> [reached, kept]

    @property
    def positions(self) -> int:
        return int(sum(text["positions"] for text in self.texts))

    def mean(self, measure: str) -> tuple[float, float]:
        """The share over all positions, and half its 95 % interval (ratio estimate over texts)."""
        sizes = np.array([text["positions"] for text in self.texts])
        sums = np.array([text[measure] for text in self.texts])
        share = sums.sum() / sizes.sum()
        spread = (
            (sums - share * sizes).std(ddof=1) * math.sqrt(len(sizes)) / sizes.sum()
            if len(sizes) > 1
            else 1.0
        )
        return float(share), float(1.96 * spread)


def measure(
    target: TargetModel, draft_model: DraftRows, text: Text, temperature: float, tally: Tally
) -> None:
    """Adds the positions of one text; each is decided anew by noise of its own."""
    sampling = SamplingParams(temperature=temperature)
    sums: dict[str, float] = {"positions": 0.0}
    target.extend([Chunk(text.number, text.tokens[: text.first - 1])])
    for start in range(text.first, len(text.tokens), CHUNK):
        chunk = text.tokens[start : start + CHUNK]
        context = Context.of(text.tokens[:start], sequence_id=text.number, sampling=sampling)
        draft = Draft.chain(chunk[:-1])
        drafted = draft_model.rows(context, draft).clone()
        [scores] = target.score([context], [draft])
        for index in range(len(chunk)):
            p, q = (context.law.node(row[index], tuple(chunk[:index])) for row in (scores.logits, drafted))
            _add_position(p, q, RoundNoise(1_000_000 + text.number, start + index), sums, tally.kept)
        target.commit([RoundResult(text.number, tuple(chunk), tuple(range(len(draft))), draft, scores)])
    target.release(text.number)
    draft_model.release(text.number)
    tally.texts.append(sums)


def _add_position(p: NodeLaw, q: NodeLaw, noise: RoundNoise, sums: dict[str, float],
                  kept: dict[str, list[float]]) -> None:  # fmt: skip
    def add(name: str, value: float) -> None:
        sums[name] = sums.get(name, 0.0) + value

    place = Place(0, 0)
    add("positions", 1.0)
    add("1-TV", float(np.minimum(p.probs, q.probs).sum()))
    emitted = noise.argmax(p, place)
    contest = noise.contest(q, max(COUNTS), place)
    for rank, (token, lead) in enumerate(zip(contest.tokens, contest.leads)):
        counts = kept.setdefault(f"{rank},{bisect(LEADS, lead)}", [0.0, 0.0])
        counts[0] += 1.0
        counts[1] += token == emitted
    drawn = _accepted(p.probs, q.probs, noise.draw(q, max(COUNTS), place))
    for count in COUNTS:
        add(f"ranked {count}", float(emitted in contest.tokens[:count]))
        add(f"drawn {count}", drawn[count - 1])
        add(f"hybrid {count}", _hybrid(p.probs, q.probs, count))


def _accepted(p: Floats, q: Floats, tokens: Sequence[int]) -> list[float]:
    """The chance that recursive rejection keeps one of the first 1, 2, ... tokens, given that they were drawn."""
    draft = Draft(TokenTree(tuple(tokens), (None,) * len(tokens)),
                  ((Group(DrawnWithoutReplacement(q), tuple(range(len(tokens)))),), *[()] * len(tokens)))  # fmt: skip
    left, rejected, chances = p, 1.0, []
    for proposal in proposals(draft, 0):
        rejected *= 1.0 - proposal.ratio(left)
        chances.append(1.0 - rejected)
        rest = proposal.residual(1.0, left)
        left = rest / rest.sum() if rest.sum() > 0.0 else left
    return chances + [1.0] * (max(COUNTS) - len(chances))


def _hybrid(p: Floats, q: Floats, count: int) -> float:
    """p of the best count - 1 tokens of q, and the overlap of p with q off them."""
    best = np.argpartition(-q, count - 1)[: count - 1] if count > 1 else np.empty(0, dtype=np.int64)
    rest = q.copy()
    rest[best] = 0.0
    total = rest.sum()
    overlap = np.minimum(p, rest / total) if total > 0 else np.zeros_like(p)
    overlap[best] = 0.0
    return float(p[best].sum() + overlap.sum())


@dataclass(frozen=True)
class Text:
    """A prompt and what the target answered; `first`: where the answer begins."""

    number: int
    tokens: tuple[int, ...]
    first: int


def texts(llm: LLM, temperature: float, skipped: int) -> Iterator[Text]:
    """Sampled answers to the questions of all tasks in turn, from number `skipped` on."""
    path = Path(os.environ["OUTRIDER_PROMPTS"]) / "spec_bench.jsonl"
    questions = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()]
    for number in range(skipped, len(questions)):
        question = questions[number * STRIDE % len(questions)]
        prompt = tuple(llm.tokenizer.chat([{"role": "user", "content": question}]).token_ids[:LONGEST_PROMPT])
        sampling = SamplingParams(temperature=temperature, max_tokens=160, seed=number)
        [written] = llm.generate([list(prompt)], sampling)
        yield Text(number, (*prompt, *written.token_ids), len(prompt))


def table(tallies: Mapping[str, Tally]) -> str:
    """The shares of all pairs, in per cent with half their intervals."""
    measures = ["1-TV", *(f"{way} {count}" for count in COUNTS for way in ("ranked", "drawn", "hybrid"))]
    lines = [f"| draft | positions | {' | '.join(measures)} |", "|---" * (len(measures) + 2) + "|"]
    for name, tally in tallies.items():
        cells = [f"{100 * share:.1f} ± {100 * half:.1f}" for share, half in map(tally.mean, measures)]
        lines.append(f"| {name} | {tally.positions} | {' | '.join(cells)} |")
    return "\n".join(lines)


def priors(tallies: Mapping[str, Tally]) -> str:
    """How often a ranked child was kept, by rank and class of lead, over all pairs."""
    lines = [f"| rank | {' | '.join(f'lead class {lead}' for lead in range(len(LEADS) + 1))} |"]
    lines.append("|---" * (len(LEADS) + 2) + "|")
    for rank in range(max(COUNTS)):
        cells = []
        for lead in range(len(LEADS) + 1):
            counts = [tally.kept.get(f"{rank},{lead}", [0.0, 0.0]) for tally in tallies.values()]
            reached, kept = sum(c[0] for c in counts), sum(c[1] for c in counts)
            cells.append(f"{kept / reached:.3f} of {reached:.0f}" if reached else "-")
        lines.append(f"| {rank} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=20_000)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--pairs", help="names, separated by commas; all without it")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    target = load(MODEL, target="native", dtype="bfloat16", threads=options.threads)
    llm = LLM.from_parts(target, LLM(MODEL, target="native").tokenizer)
    known = pairs(target, options.threads)
    names = options.pairs.split(",") if options.pairs else list(known)
    state = json.loads(options.state.read_text()) if options.state and options.state.exists() else {}
    tallies = {name: Tally(**state.get(name, {})) for name in names}
    drafts = {name: known[name]() for name in names}
    done = min(len(tally.texts) for tally in tallies.values())
    for text in texts(llm, options.temperature, done):
        if all(tally.positions >= options.positions for tally in tallies.values()):
            break
        for name, tally in tallies.items():
            if len(tally.texts) == text.number:
                measure(target, drafts[name], text, options.temperature, tally)
        if options.state:
            options.state.write_text(json.dumps({name: vars(tally) for name, tally in tallies.items()}))
    print(table(tallies) + "\n\n" + priors(tallies))
    print(json.dumps({name: vars(tally) for name, tally in tallies.items()}))


if __name__ == "__main__":
    main()
