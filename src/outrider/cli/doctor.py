"""`outrider doctor`: how a model runs on this machine, what a pass costs, and what its precision loses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outrider.cli.demo_prompts import PROMPTS
from outrider.cli.options import EngineSettings, engine_options, speculation_options
from outrider.cli.progress import Progress
from outrider.cli.report import print_json
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.doctor import Checkup, DraftCheckup


@click.command()
@click.argument("model", default="smollm2-135m")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object and nothing else.")
@engine_options
@speculation_options
def doctor(model: str, as_json: bool, **given: Any) -> None:
    """Measures MODEL (smollm2-135m by default) on this machine.

    Times passes over 1 to 16 rows, probes memory bandwidth and arithmetic, and compares the model's next-token laws
    with those of float32 over 2,000 positions of greedy answers. Takes about a minute on two cores. The questions are
    those of spec_bench.jsonl in the folder OUTRIDER_PROMPTS, else a few built-in ones. With --method also what a draft
    costs beside a pass, and how often a head is right: other readings of its files are compared.
    """
    if given["device"] != "cpu":
        raise ConfigError("doctor measures the CPU: leave --device at 'cpu'")
    settings = EngineSettings.of(model, given)
    from outrider.doctor import PromptSet, checkup, draft_checkup, question_prompts, reference_of
    from outrider.models.load import resolve

    prompts = question_prompts(PromptSet("built-in prompts", tuple(message for _, message in PROMPTS)))
    llm = settings.open()
    with Progress("loading float32 to compare with") as progress:
        reference = reference_of(resolve(model), llm.target)
        progress.say("measuring")
        found = checkup(llm.target, llm.tokenizer, reference, prompts)
        draft = draft_checkup(llm, prompts)
    if as_json:
        print_json({**report(found), "draft": None if draft is None else draft_report(draft, found)})
    else:
        _print_table(found, draft, prompts.name)


def report(found: Checkup) -> dict[str, Any]:
    """The measurements, ready for JSON."""
    placement, error = found.placement, found.error
    return {
        "target": placement.target,
        "dtype": placement.dtype,
        "activations": placement.activations,
        "isa": placement.isa,
        "threads": placement.threads,
        "cost_ms": {str(width): round(cost, 3) for width, cost in found.cost_ms.items()},
        "bandwidth_gbs": round(found.rates.bandwidth_gbs, 2),
        "product_gflops": round(found.rates.product_gflops, 1),
        "weight_bytes": found.weight_bytes,
        "error": None if error is None else {"kl_nats": error.kl_nats, "top1": error.top1},
    }


def draft_report(draft: DraftCheckup, found: Checkup) -> dict[str, Any]:
    """The measurements of the drafter, ready for JSON; `share_of_a_pass` is the longest draft's."""
    cost, head = draft.cost, draft.head
    longest = max(cost.ms, default=None)
    return {
        "method": list(draft.methods),
        "model": draft.model,
        "cost_ms": {str(depth): round(ms, 3) for depth, ms in cost.ms.items()},
        "nodes": {str(depth): count for depth, count in cost.nodes.items()},
        "ms_per_level": None if cost.ms_per_level is None else round(cost.ms_per_level, 3),
        "share_of_a_pass": None if longest is None else round(cost.ms[longest] / found.cost_ms[1], 3),
        "acceptance": None if head is None else [round(share, 3) for share in head.acceptance.by_position],
        "warning": None if head is None else head.warning,
    }


def _print_table(found: Checkup, draft: DraftCheckup | None, prompts: str) -> None:
    from rich.console import Console
    from rich.table import Table

    facts = report(found)
    table = Table(show_header=False)
    for name in ("target", "dtype", "activations", "isa", "threads"):
        table.add_row(name, "-" if facts[name] is None else str(facts[name]))
    costs = found.cost_ms
    rows = (f"{width}: {cost:.2f} ms ({cost / costs[1]:.2f}x)" for width, cost in costs.items())
    table.add_row("cost of rows", "\n".join(rows))
    table.add_row("memory", f"{found.rates.bandwidth_gbs:.1f} GB/s")
    table.add_row("products", f"{found.rates.product_gflops:.0f} GFLOP/s")
    size = found.weight_bytes
    table.add_row("weights", "-" if size is None else f"{size / 1e6:.1f} MB")
    table.add_row("against float32", _error_text(found, prompts))
    for name, text in _draft_rows(found, draft):
        table.add_row(name, text)
    Console().print(table)


def _draft_rows(found: Checkup, draft: DraftCheckup | None) -> list[tuple[str, str]]:
    if draft is None:
        return []
    rows = [("draft", ", ".join(draft.methods))]
    if draft.model is not None:
        rows.append(("draft model", draft.model))
    costs, nodes, one = draft.cost.ms, draft.cost.nodes, found.cost_ms[1]
    lines = (
        f"{depth}: {ms:.2f} ms ({ms / one:.2f} of a pass, nodes: {nodes[depth]})"
        for depth, ms in costs.items()
    )
    rows.append(("cost of levels", "\n".join(lines) or "-"))
    if draft.head is not None:
        shares = ", ".join(f"{share:.0%}" for share in draft.head.acceptance.by_position)
        rows.append(
            (
                "guesses kept",
                f"{shares}\n(greedy chains on {draft.head.acceptance.chains} calibration tokens)",
            )
        )
        if draft.head.warning is not None:
            rows.append(("warning", draft.head.warning))
    return rows


def _error_text(found: Checkup, prompts: str) -> str:
    error = found.error
    if error is None:
        return f"no question of {prompts} fits the model's context"
    return (
        f"KL {error.kl_nats:.2g} nats, same likeliest token at {error.top1:.2%}\n"
        f"({error.positions} positions of greedy answers to {prompts})"
    )
