"""`outrider inspect`: what a model is, what is promised of its texts, and whether a draft model fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.exit_codes import CHECK_FAILED
from outrider.cli.options import EngineSettings, engine_options
from outrider.cli.progress import Progress
from outrider.cli.report import items, placement, print_json

if TYPE_CHECKING:
    from outrider.llm import LLM


@click.command()
@click.argument("model")
@click.option("--draft", metavar="MODEL", help="Checks whether this model can draft for MODEL.")
@click.option("--draft-dtype", metavar="NAME", help="The draft's dtype, as --dtype; auto by default.")
@click.option("--draft-device", metavar="NAME", help="The draft's device: cpu (default) or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object and nothing else.")
@engine_options
def inspect(model: str, draft: str | None, as_json: bool, **given: Any) -> int:
    """Describes MODEL. With --draft, exits with 1 when the pair is incompatible."""
    for option in ("draft_dtype", "draft_device"):
        if draft is None and given[option] is not None:
            flag = f"--{option.replace('_', '-')}"
            raise click.UsageError(f"{flag} needs --draft: there is no draft to place")
    llm = EngineSettings.of(model, given).open()
    report = describe(llm)
    if draft is not None:
        report["pair"] = _pair(llm, draft, given)
    if as_json:
        print_json(report)
    else:
        _print_table(report)
    return CHECK_FAILED if draft is not None and report["pair"]["verdict"] == "incompatible" else 0


def describe(llm: LLM) -> dict[str, Any]:
    """The facts of a loaded model, ready for JSON."""
    target, tokenizer = llm.target, llm.tokenizer
    return {
        "family": _family(target),
        "layers": getattr(target, "num_layers", None),
        "hidden_size": getattr(target, "hidden_size", None),
        "vocab_size": target.vocab_size,
        "context": target.max_length,
        **placement(target),
        "tokenizer": {
            "kind": tokenizer.kind,
            "size": tokenizer.vocab_size,
            "eos_token_ids": list(tokenizer.eos_token_ids),
            "chat_template": tokenizer.fingerprint,
        },
        "trees": target.supports_trees,
        "row_invariant": target.row_invariant,
        "guarantee": llm.guarantee,
        "guarantee_reason": llm.guarantee_reason,
    }


def _family(target: Any) -> str | None:
    """The architecture's name: ours, or the one in the configuration of a transformers model."""
    if hasattr(target, "arch"):
        return str(target.arch.family)
    return getattr(getattr(getattr(target, "model", None), "config", None), "model_type", None)


def _pair(llm: LLM, draft: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on the pair, and where the draft runs; loaded as `draft_dtype` and `draft_device` of an engine."""
    with Progress(f"loading {draft}"):
        from outrider.models.load import load, resolve
        from outrider.pairing import check_pair
        from outrider.text import load_tokenizer

        source = resolve(draft)
        model = load(
            source,
            dtype=given["draft_dtype"] or "auto",
            device=given["draft_device"] or "cpu",
            threads=given["threads"],
        )
        found = check_pair(llm.tokenizer, llm.target, load_tokenizer(source), model)
    return {"verdict": found.verdict, "first_difference": found.first_difference, "draft": placement(model)}


def _print_table(report: dict[str, Any]) -> None:
    width = max(map(len, report))
    for name, value in report.items():
        shown = value
        if value is None:
            shown = "-"
        elif isinstance(value, dict):
            shown = ", ".join(items(value))
        elif isinstance(value, bool):
            shown = "yes" if value else "no"
        click.echo(f"{name:<{width}}  {shown}")
