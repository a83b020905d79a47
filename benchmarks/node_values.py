"""Trees of the shipped EAGLE-3 head grown by what texts kept of nodes, and by cumulative log q: tokens per pass.

    OUTRIDER_PROMPTS=FOLDER python benchmarks/node_values.py [--prompts 12] [--temperature 0.8]

Under shared noise children are the best of the draft's law under the noise that the text is chosen by; which of them
are expanded and stay is what the two differ in. Shapes are 3 children, 5 levels and 8, 12 or 24 nodes, never cut by
cost. All texts must equal plain decoding. Intervals are 90 %, of the ratio, over prompts.
"""

from __future__ import annotations

import argparse
from unittest.mock import patch

import numpy as np
from methods import Question, questions
from methods_report import ratio_of

from outrider import LLM, SamplingParams
from outrider.core.law import NodeLaw
from outrider.core.noise import Place
from outrider.drafters.growth import Growth, _Buds
from outrider.drafters.plant import Plant
from outrider.drafters.rows import log_probs
from outrider.drafters.values import NodeValues

TASKS = ("mt_bench", "gsm8k_test", "humaneval")
BUDGETS = (8, 12, 24)
TOKENS = 128


def by_log_q(growth: Growth, plant: Plant, row: int, law: NodeLaw, known: NodeValues) -> _Buds:
    """`Growth._ranked`, but with the draft's own log-probabilities for the chances of nodes."""
    contest = plant.context.noise.contest(law, growth.topk, Place(plant.depths[row], row))
    indices = (
        list(contest.tokens) if law.tokens is None else np.searchsorted(law.tokens, contest.tokens).tolist()
    )
    return _Buds(contest.tokens, log_probs(law.logits, indices, float(law.logits.max())))


def compared(plain: LLM, budget: int, asked: list[Question], params: SamplingParams) -> str:
    """A line of the table."""
    settings = {"method": "eagle3", "num_steps": 5, "topk": 3, "tree_budget": budget,
                "cut_drafts": False, "check_draft": False}  # fmt: skip
    tree = plain.with_speculation(settings)
    rounds = []
    for question in asked:
        prompt = list(question.ids)
        [text] = plain.generate([prompt], params)
        [measured] = tree.generate([prompt], params)
        with patch.object(Growth, "_ranked", by_log_q):
            [by_q] = tree.generate([prompt], params)
        assert measured.token_ids == by_q.token_ids == text.token_ids, "speculation changed a text"
        rounds.append((len(text.token_ids), measured.stats.num_rounds, by_q.stats.num_rounds))
    tokens, kept, log_q = np.array(rounds, dtype=np.float64).T
    found = ratio_of({"all": log_q}, {"all": kept})
    return (
        f"| {budget} | {tokens.sum() / kept.sum():.2f} | {tokens.sum() / log_q.sum():.2f} | "
        f"{found['ratio']:.3f} ({found['low']:.3f}–{found['high']:.3f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=12, help="of each of three sets")
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args()
    plain = LLM("smollm2-135m")
    asked = questions(plain, TASKS, options.prompts, TOKENS)
    params = SamplingParams(temperature=options.temperature, max_tokens=TOKENS, seed=11)
    print("| nodes | by what texts kept | by cumulative log q | ratio |\n|---|---|---|---|")
    for budget in BUDGETS:
        print(compared(plain, budget, asked, params), flush=True)


if __name__ == "__main__":
    main()
