"""Microseconds per level of growing a chain of 5 from ready rows of a draft model, by the columns of its rows.

    python benchmarks/growth_cost.py [--rounds 300]

Rows are float32 logits over 4,096 and 8,192 of the target's 49,152 tokens (`draft vocabulary`), the same rows spread
to all tokens with -inf (`spread`), and rows over all tokens. Settings: temperature 0, 0.8, and 0.8 with top_p 0.95
under `same_text`, and 0.8 under `same_distribution`. Settings and forms take turns; medians of processor time,
which is all there is on one thread. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch
from peer_report import machine

from outrider.core.records import EMPTY_DRAFT, Budget, Context, Guarantee
from outrider.core.sampling import SamplingParams
from outrider.core.tree import TokenTree
from outrider.drafters.growth import Growth
from outrider.drafters.rows import DraftRows, DraftVocabulary

VOCAB, DEPTH, ROUNDS_APART = 49_152, 5, 64
WARM = SamplingParams(temperature=0.8)
SETTINGS = {
    "T=0": (SamplingParams(temperature=0.0), Guarantee.SAME_TEXT),
    "T=0.8": (WARM, Guarantee.SAME_TEXT),
    "T=0.8, top_p 0.95": (SamplingParams(temperature=0.8, top_p=0.95), Guarantee.SAME_TEXT),
    "T=0.8, same_distribution": (WARM, Guarantee.SAME_DISTRIBUTION),
}


def peaked_rows(count: int, columns: int, seed: int) -> torch.Tensor:  # [count, columns]
    """Logits in which six tokens stand out by 8 to 14 nats, as in the rows of a chat model."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, columns, generator=generator) * 2.0
    for row in rows:
        row[torch.randint(columns, (6,), generator=generator)] += torch.tensor(
            [14.0, 12.5, 12.0, 11.0, 9.0, 8.0]
        )
    return rows


def forms() -> dict[str, Sequence[torch.Tensor | DraftRows]]:
    """By the name of a form, what `score` returns, round by round."""
    whole = peaked_rows(ROUNDS_APART, VOCAB, VOCAB)
    made: dict[str, Sequence[torch.Tensor | DraftRows]] = {"49,152": list(whole.unsqueeze(1))}
    for columns in (4096, 8192):
        token_map = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:columns].sort().values
        rows = peaked_rows(ROUNDS_APART, columns, columns)
        spread = torch.full((ROUNDS_APART, VOCAB), -torch.inf).index_copy(1, token_map, rows)
        made[f"{columns:,} spread"] = list(spread.unsqueeze(1))
        vocabulary = DraftVocabulary(token_map, VOCAB)
        made[f"{columns:,}"] = [vocabulary.rows(row) for row in rows.unsqueeze(1)]
    return made


def seconds(
    rows: Sequence[torch.Tensor | DraftRows], place: int, sampling: SamplingParams, guarantee: Guarantee
) -> float:
    """Of growing one chain."""
    growth, asked = Growth(VOCAB), iter(range(place, place + DEPTH))
    context = Context.of(list(range(100)), seed=place, sampling=sampling, guarantee=guarantee)

    def score(contexts: Sequence[Context], trees: Sequence[TokenTree], wanted: Sequence[Sequence[int]]):
        return [rows[next(asked) % len(rows)]]

    start = time.thread_time()
    [draft] = growth.grow([context], [Budget(DEPTH, DEPTH)], [EMPTY_DRAFT], score)
    spent = time.thread_time() - start
    assert len(draft) == DEPTH
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = forms()
    spent: dict[str, dict[str, list[float]]] = {name: {setting: [] for setting in SETTINGS} for name in made}
    for place in range(options.rounds):
        for name, rows in made.items():
            for setting, how in SETTINGS.items():
                spent[name][setting].append(seconds(rows, place, *how))
    figures = {
        name: {setting: 1e6 * statistics.median(times) / DEPTH for setting, times in row.items()}
        for name, row in spent.items()
    }
    print("| columns | " + " | ".join(SETTINGS) + " |\n|---" + "|---" * len(SETTINGS) + "|")
    for name, row in figures.items():
        print(f"| {name} | " + " | ".join(f"{figure:.0f}" for figure in row.values()) + " |")
    print(json.dumps({"machine": machine(), "us_per_level": figures}))


if __name__ == "__main__":
    main()
