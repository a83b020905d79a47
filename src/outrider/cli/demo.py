"""`outrider demo`: plain and speculative decoding side by side on the embedded model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.demo_prompts import PROMPTS
from outrider.cli.exit_codes import CHECK_FAILED
from outrider.cli.options import EngineSettings, engine_options, speculation_options, speculative_settings
from outrider.cli.progress import Progress
from outrider.cli.report import Totals, items, placement, print_json
from outrider.config import SpeculativeConfig, implied_method

if TYPE_CHECKING:
    from outrider.core.completion import Completion
    from outrider.core.sampling import SamplingParams
    from outrider.llm import LLM

_MODEL = "smollm2-135m"
_WARM_UP_TOKENS = 8
_MOST_TOKENS = 4096  # with the prompt well inside the model's context, whose end would stop a text


@dataclass(frozen=True)
class Row:
    """One prompt decoded both ways."""

    prompt: str
    plain: Completion
    drafted: Completion

    @property
    def plain_tps(self) -> float:
        return Totals.of(self.plain).tokens_per_second

    @property
    def spec_tps(self) -> float:
        return Totals.of(self.drafted).tokens_per_second

    @property
    def ratio(self) -> float:
        return self.spec_tps / self.plain_tps if self.plain_tps else 0.0

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, None for the same text."""
        left, right = self.plain.token_ids, self.drafted.token_ids
        if left == right:
            return None
        return next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


@click.command()
@click.option("--max-tokens", type=click.IntRange(1, _MOST_TOKENS), default=96, show_default=True, metavar="N",
              help="Tokens per text.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object and nothing else.")
@engine_options
@speculation_options
def demo(max_tokens: int, as_json: bool, **given: Any) -> int:
    """Compares plain and speculative decoding.

    Decodes six short tasks with SmolLM2-135M, plainly and with drafts, and compares speed and text. Drafts by n-gram
    lookup unless told otherwise. Takes about a minute on two cores.
    """
    settings = speculative_settings(given)
    if "method" not in settings and implied_method(settings) == "none":
        settings["method"] = "ngram"
    config = SpeculativeConfig.of(settings)
    drafting = EngineSettings.drafting(_MODEL, given, config).open()
    plain = drafting.with_speculation(SpeculativeConfig())
    rows = list(_measured(plain, drafting, max_tokens))
    if as_json:
        print_json(_report(rows, drafting))
    else:
        _print_table(rows, drafting)
    must_agree = plain.target.row_invariant and config.guarantee == "same_text"
    return CHECK_FAILED if must_agree and any(row.first_difference is not None for row in rows) else 0


def _measured(plain: LLM, drafting: LLM, max_tokens: int) -> Iterator[Row]:
    """Both ways for each prompt, in turn, each way first on every other prompt, after a short warm-up."""
    from outrider.core.sampling import SamplingParams

    warm_up = SamplingParams(temperature=0.0, max_tokens=min(max_tokens, _WARM_UP_TOKENS))
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    with Progress("warming up") as progress:
        for llm in (plain, drafting):
            _answer(llm, PROMPTS[0][1], warm_up)
        for index, (name, message) in enumerate(PROMPTS):
            progress.say(f"{name}: {index + 1} of {len(PROMPTS)}")
            ways = (plain, drafting) if index % 2 == 0 else (drafting, plain)
            done = {id(llm): _answer(llm, message, sampling) for llm in ways}
            yield Row(name, done[id(plain)], done[id(drafting)])


def _answer(llm: LLM, message: str, sampling: SamplingParams) -> Completion:
    return llm.chat([{"role": "user", "content": message}], sampling)


def _overall(rows: Sequence[Row]) -> float:
    """Tokens per second over all rows, speculative by plain."""
    speeds = []
    for texts in ([row.drafted for row in rows], [row.plain for row in rows]):
        totals = [Totals.of(text) for text in texts]
        speeds.append(sum(t.written for t in totals) / max(sum(t.decode_seconds for t in totals), 1e-9))
    return speeds[0] / speeds[1]


def _report(rows: Sequence[Row], drafting: LLM) -> dict[str, Any]:
    return {
        "rows": [
            {
                "prompt": row.prompt,
                "plain_tps": row.plain_tps,
                "spec_tps": row.spec_tps,
                "ratio": row.ratio,
                "tokens_per_pass": row.drafted.stats.tokens_per_pass,
                "same_text": row.first_difference is None,
                "first_difference": row.first_difference,
            }
            for row in rows
        ],
        "same_text": all(row.first_difference is None for row in rows),
        "ratio": _overall(rows),
        "method": list(drafting.config.methods),
        **placement(drafting.target),
        "row_invariant": drafting.target.row_invariant,
        "guarantee": drafting.guarantee,
        "guarantee_reason": drafting.guarantee_reason,
    }


def _print_table(rows: Sequence[Row], drafting: LLM) -> None:
    from rich.console import Console
    from rich.table import Table

    method = ",".join(drafting.config.methods)
    table = Table()
    table.add_column("prompt")
    for heading in ("plain tokens/s", f"{method} tokens/s", "ratio", "tokens per pass"):
        table.add_column(heading, justify="right")
    table.add_column("same text")
    for row in rows:
        figures = (f"{row.plain_tps:.1f}", f"{row.spec_tps:.1f}", f"{row.ratio:.2f}x")
        same = "yes" if row.first_difference is None else f"to token {row.first_difference}"
        table.add_row(row.prompt, *figures, f"{row.drafted.stats.tokens_per_pass:.2f}", same)
    table.add_row("all", "", "", f"{_overall(rows):.2f}x", "", "", style="bold")
    Console().print(table)
    click.echo(_verdict(rows, drafting))
    click.echo(", ".join(items(placement(drafting.target))))
    click.echo(f"guarantee: {drafting.guarantee} ({drafting.guarantee_reason})")


def _verdict(rows: Sequence[Row], drafting: LLM) -> str:
    """Whether the texts are the same; where not, the first place and what can cause it."""
    differing = [row for row in rows if row.first_difference is not None]
    if not differing:
        return "same text: yes"
    places = "; ".join(f"{row.prompt!r} differs at token {row.first_difference}" for row in differing)
    if drafting.config.guarantee != "same_text":
        return f"same text: no: {places}. same_distribution keeps the distribution, not the text"
    if drafting.target.row_invariant:
        return f"same text: no: {places}. This is a defect: this model must write the same text"
    return f"same text: no: {places}. A rounding tie can cause this"
