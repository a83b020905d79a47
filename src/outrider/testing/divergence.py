"""Certificates of rounding ties: tells a near tie that a wider pass rounded differently from a logic bug.

On a target whose logits depend on the width of the pass (`row_invariant` False), speculative and plain decoding see
the same row with different last bits. Where two tokens are nearly tied this can change the choice, and from there on
the texts differ. Such a difference is excused only if three things hold at the first token that differs:

1. *The tie is within the noise.* Rounding moves each of the two logits by at most a bound, so it can reorder tokens
   that are at most two bounds apart. The bound is measured before the run: the largest difference of the same logit
   between widths, over thousands of rows (`NoiseBound.measure`). A bound of 0 excuses nothing.
2. *Plain decoding repeats.* At width 1 the target chooses the plain text's token again.
3. *Width alone does it.* Plain decoding repeated at a width that the speculative run can have used, teacher-forced on
   the plain text with no drafter and no rule involved, chooses the other token. Every place of the row in every round
   up to the widest is tried: where the drafter cut the text into rounds is not known here.

A difference that fails any of these was made by something other than rounding: it is a bug. So is a text that ends
where the other goes on, and a choice of a token that the law of the plain row does not support: a support cut that
fell on another side is not a tie of two tokens and is never certified.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.core.law import Floats, Ids, NodeLaw
from outrider.core.noise import Place, Purpose, RoundNoise, gumbel
from outrider.core.protocols import Chunk, TargetModel
from outrider.core.records import Context, Draft, Request, RoundResult
from outrider.core.sampling import SamplingParams
from outrider.core.target_law import TargetLaw, host_row
from outrider.engine.engine import PREFILL_CHUNK

_FIRST_ID = 1 << 40  # sequences opened here; an engine on the same target counts from 0


@dataclass(frozen=True)
class Layout:
    """How the rows of a pass lie: `depth` drafted tokens in line, `siblings` wrong ones before each of them, and
    `batch` equal sequences side by side."""

    depth: int
    siblings: int = 0
    batch: int = 1

    def __post_init__(self) -> None:
        assert self.depth >= 0 and self.siblings >= 0 and self.batch >= 1, self  # noqa: PT018


PLAIN = Layout(0)


@dataclass(frozen=True)
class NoiseBound:
    """`largest`: the largest difference of one logit between plain and any of `layouts`, over `rows` rows."""

    largest: float
    rows: int
    layouts: tuple[Layout, ...]

    @staticmethod
    def measure(target: TargetModel, texts: Sequence[tuple[Sequence[int], Sequence[int]]],
                layouts: Sequence[Layout], *, rows: int = 2000) -> NoiseBound:  # fmt: skip
        """Reads texts (prompt, continuation) in every layout, caches included, and compares row by row.

        Stops after `rows` rows; asserts that the texts hold as many.
        """
        largest, compared = 0.0, 0
        for prompt, tokens in texts:
            ids = itertools.count(_FIRST_ID, 1 << 10)
            runs = [
                replay(target, prompt, tokens, layout, first_id=next(ids)) for layout in (PLAIN, *layouts)
            ]
            for plain, *others in zip(*runs):
                if compared == rows:
                    break
                compared += 1
                finite = np.isfinite(plain)
                for wide in others:
                    largest = max(largest, float(np.abs(wide[finite] - plain[finite]).max()))
            for run in runs:
                run.close()
        assert compared == rows, f"the texts hold {compared} rows, not {rows}: pass more of them"
        return NoiseBound(largest, rows, tuple(layouts))


@dataclass(frozen=True)
class Divergence:
    """The first difference of two texts. Tokens are None where one of the texts has ended.

    `gap`: between the two tokens' scores in the plain row, in units of raw logits (see `certify`); infinite where one
    of them is not supported. `repeated_wide_choice`: what plain decoding chooses at the width of the speculative run.
    """

    index: int
    plain_token: int | None
    spec_token: int | None
    gap: float
    bound: float
    repeated_wide_choice: int | None
    certified: bool


def certify(target: TargetModel, request: Request, plain_ids: Sequence[int], spec_ids: Sequence[int],
            bound: NoiseBound, layout: Layout) -> Divergence:  # fmt: skip
    """Judges the first difference of two texts of one request; `layout` is the widest the speculative run used.

    Both repetitions go through the law of the request (every processor, on the plain history) and the noise of its
    seed. The gap is that of `processed logit + temperature * gumbel`, divided by the most that a repetition penalty
    can stretch a logit: what rounding would have had to move, in raw logits.
    """
    assert tuple(plain_ids) != tuple(spec_ids), "the texts are equal"
    index = next((i for i, (a, b) in enumerate(zip(plain_ids, spec_ids)) if a != b), None)
    if index is None:
        end = min(len(plain_ids), len(spec_ids))
        return Divergence(end, _at(plain_ids, end), _at(spec_ids, end), math.inf, bound.largest, None, False)
    judge = _Judge(target, request, tuple(plain_ids[:index]))
    plain_token, spec_token = plain_ids[index], spec_ids[index]
    row = judge.row(PLAIN)
    gap = judge.gap(row, plain_token, spec_token)
    excusable = bound.largest > 0.0 and gap <= 2.0 * bound.largest
    wide_choice = judge.wide_choice(layout, spec_token) if excusable else None
    certified = judge.choice(row) == plain_token and wide_choice == spec_token
    return Divergence(index, plain_token, spec_token, gap, bound.largest, wide_choice, certified)


@dataclass(frozen=True)
class _Judge:
    """Repeats plain decoding's choice after prompt + history, in any layout."""

    target: TargetModel
    request: Request
    history: tuple[int, ...]

    def row(self, layout: Layout, lead: int = 0) -> Floats:
        """The raw row after the history, read in rounds of `layout` of which the first is `lead` deep."""
        *_, last = replay(self.target, self.request.prompt, self.history, layout, lead)
        return last

    def choice(self, row: Floats) -> int:
        noise = RoundNoise(self.request.seed, self._position)
        return noise.argmax(self._law(row, self.request.sampling), Place(0, 0))

    def gap(self, row: Floats, first: int, second: int) -> float:
        """How far apart two tokens are in this row, in raw logits; infinite where the law lacks one of them."""
        sampling = self.request.sampling
        if sampling.greedy:  # the law would hold the winner alone
            whole = replace(sampling, temperature=1.0, top_p=1.0, top_k=None, min_p=0.0)
            scores, tokens, scale = *_scores(self._law(row, whole)), 1.0
        else:
            scores, tokens = _scores(self._law(row, sampling))
            scores = scores + gumbel(self.request.seed, self._position, tokens, Purpose.TEXT)
            scale = sampling.temperature
        known = dict(zip(tokens.tolist(), scores.tolist()))
        if first not in known or second not in known:
            return math.inf
        penalty = sampling.repetition_penalty
        return float(abs(known[first] - known[second]) * scale / max(penalty, 1.0 / penalty))

    def wide_choice(self, layout: Layout, wanted: int) -> int | None:
        """What width makes of it: `wanted` if any round within `layout` chooses it, else the last one's choice.

        A speculative run cuts its text into rounds that a drafter chose, with drafts up to the layout's depth; every
        depth and every place of the row in its round is tried.
        """
        found = None
        for depth in range(layout.depth, -1, -1):
            for lead in range(depth + 1):
                found = self.choice(self.row(replace(layout, depth=depth), lead))
                if found == wanted:
                    return found
        return found

    @property
    def _position(self) -> int:
        return len(self.request.prompt) + len(self.history)

    def _law(self, row: Floats, sampling: SamplingParams) -> NodeLaw:
        request = self.request
        ends, words = request.ending_ids, request.bad_word_ids
        law = TargetLaw(sampling, prompt=request.prompt, stop_ids=ends, bad_word_ids=words)
        law.append(self.history)
        return law.node(row, ())


def replay(target: TargetModel, prompt: Sequence[int], tokens: Sequence[int], layout: Layout, lead: int | None = None,
           *, first_id: int = _FIRST_ID) -> Generator[Floats, None, None]:  # fmt: skip
    """Raw logits after the prompt and after each token, teacher-forced in rounds of `layout`; the first is `lead` deep.

    The caches grow as in a run: each round commits its own rows. Yields len(tokens) + 1 rows; frees its sequences at
    the end or when closed. Sequence ids are `first_id` and the following.
    """
    ids = range(first_id, first_id + layout.batch)
    certain = prompt[:-1]
    for start in range(0, max(1, len(certain)), PREFILL_CHUNK):
        target.extend([Chunk(ids[0], certain[start : start + PREFILL_CHUNK])])
    for sequence_id in ids[1:]:
        target.fork(ids[0], sequence_id, len(certain))
    try:
        done, depth = 0, layout.depth if lead is None else lead
        while done <= len(tokens):
            contexts = [Context.of([*prompt, *tokens[:done]], sequence_id=i) for i in ids]
            wanted = tokens[done : done + depth]
            draft, path = _drafted(wanted, layout, contexts[0], target.vocab_size)
            scores = target.score(contexts, [draft] * layout.batch)
            rows = [host_row(scores[-1].logits[row]).copy() for row in (0, *(node + 1 for node in path))]
            emitted = (*wanted, *tokens[done + len(wanted) : done + len(wanted) + 1])
            if len(emitted) > len(wanted):
                target.commit([RoundResult(i, emitted, path, draft, s) for i, s in zip(ids, scores)])
            yield from rows
            done, depth = done + len(wanted) + 1, layout.depth
    finally:
        for sequence_id in ids:
            target.release(sequence_id)


def _drafted(
    wanted: Sequence[int], layout: Layout, context: Context, vocab_size: int
) -> tuple[Draft, tuple[int, ...]]:
    """A draft of the layout's full size that holds `wanted` as a path, and that path.

    Past the wanted tokens it goes on with earlier ones of the context: what lies there does not matter, its width does.
    """
    filler = itertools.cycle(context.tokens[-8:])
    line = [*wanted, *itertools.islice(filler, layout.depth - len(wanted))]
    tokens: list[int] = []
    parents: list[int | None] = []
    spine: list[int] = []
    for right in line:
        parent = spine[-1] if spine else None
        siblings = [*((right + 1 + i) % vocab_size for i in range(layout.siblings)), right]
        tokens += siblings
        parents += [parent] * len(siblings)
        spine.append(len(tokens) - 1)
    return Draft.tree(tokens, parents), tuple(spine[: len(wanted)])


def _scores(law: NodeLaw) -> tuple[Floats, Ids]:
    return law.logits, np.arange(law.vocab_size) if law.tokens is None else law.tokens


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None
