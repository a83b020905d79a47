"""Trees of the shipped EAGLE-3 head grown by what texts kept of nodes, and by cumulative log q: tokens per pass.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/node_values.py [--prompts 12] [--temperature 0.8]

Under shared noise children are the best of the draft's law under the noise that the text is chosen by; which of them
are expanded and stay is what the two differ in. Shapes are 3 children, 5 levels and 8, 12 or 24 nodes, never cut by
cost. All texts must equal plain decoding. Intervals are 90 %, of the ratio, over prompts.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np

from outrider import LLM, Completion, SamplingParams
from outrider.core.law import NodeLaw
from outrider.core.noise import Place
from outrider.drafters.growth import Growth, _Buds
from outrider.drafters.plant import Plant
from outrider.drafters.rows import log_probs
from outrider.drafters.values import NodeValues

FILES = ("spec_bench.jsonl", "gsm8k_test.jsonl", "humaneval.jsonl")
BUDGETS = (8, 12, 24)
RESAMPLES = 2000


def by_log_q(growth: Growth, plant: Plant, row: int, law: NodeLaw, known: NodeValues) -> _Buds:
    """`Growth._ranked`, but with the draft's own log-probabilities for the chances of nodes."""
    contest = plant.context.noise.contest(law, growth.topk, Place(plant.depths[row], row))
    indices = (
        list(contest.tokens) if law.tokens is None else np.searchsorted(law.tokens, contest.tokens).tolist()
    )
    return _Buds(contest.tokens, log_probs(law.logits, indices, float(law.logits.max())))


def questions(count: int) -> list[str]:
    """The first prompts of each set."""
    found = []
    for name in FILES:
        path = Path(os.environ["OUTRIDER_PROMPTS"]) / name
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:count]]
        found += [
            record["turns"][0] if "turns" in record else record.get("question", record.get("prompt"))
            for record in records
        ]
    return found


def written(llm: LLM, question: str, params: SamplingParams) -> Completion:
    prompt = llm.tokenizer.chat([{"role": "user", "content": question}]).token_ids
    [completion] = llm.generate([list(prompt)], params)
    return completion


def compared(plain: LLM, budget: int, prompts: list[str], params: SamplingParams) -> str:
    """A line of the table."""
    settings = {"method": "eagle3", "num_steps": 5, "topk": 3, "tree_budget": budget,
                "cut_drafts": False, "check_draft": False}  # fmt: skip
    tree = plain.with_speculation(settings)
    rounds = []
    for prompt in prompts:
        text = written(plain, prompt, params).token_ids
        measured = written(tree, prompt, params)
        with patch.object(Growth, "_ranked", by_log_q):
            by_q = written(tree, prompt, params)
        assert measured.token_ids == by_q.token_ids == text, "speculation changed a text"
        rounds.append((len(text), measured.stats.num_rounds, by_q.stats.num_rounds))
    counts = np.array(rounds, dtype=np.float64)
    drawn = counts[np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 2] / drawn[:, 1], (0.05, 0.95))
    tokens, measured_rounds, q_rounds = counts.sum(axis=0)
    return (
        f"| {budget} | {tokens / measured_rounds:.2f} | {tokens / q_rounds:.2f} | "
        f"{q_rounds / measured_rounds:.3f} ({low:.3f}–{high:.3f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=12, help="of each of three sets")
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args()
    plain, prompts = LLM("smollm2-135m"), questions(options.prompts)
    params = SamplingParams(temperature=options.temperature, max_tokens=128, seed=11)
    print("| nodes | by what texts kept | by cumulative log q | ratio |\n|---|---|---|---|")
    for budget in BUDGETS:
        print(compared(plain, budget, prompts, params), flush=True)


if __name__ == "__main__":
    main()
