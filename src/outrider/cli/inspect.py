"""`outrider inspect`: what a model or a draft head is, what is promised of its texts, and whether a draft fits it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outrider.cli.exit_codes import CHECK_FAILED
from outrider.cli.options import EngineSettings, engine_options
from outrider.cli.progress import Progress
from outrider.cli.report import items, placement, print_json
from outrider.config import SpeculativeConfig

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.models.heads import Head

_COLUMNS = 110
_GLUE = "\u00a0"  # a space that lines are not cut at


@click.command()
@click.argument("model")
@click.option("--draft", metavar="MODEL", help="Checks whether this model or head can draft for MODEL.")
@click.option("--draft-dtype", metavar="NAME", help="The draft's dtype, as --dtype; auto by default.")
@click.option("--draft-device", metavar="NAME", help="The draft's device: cpu (default) or cuda.")
@click.option("--json", "as_json", is_flag=True, help="Prints one JSON object and nothing else.")
@engine_options
def inspect(model: str, draft: str | None, as_json: bool, **given: Any) -> int:
    """Describes MODEL: a model, or a folder with a draft head. With --draft, exits with 1 when the two do not fit."""
    for option in ("draft_dtype", "draft_device"):
        if draft is None and given[option] is not None:
            flag = f"--{option.replace('_', '-')}"
            raise click.UsageError(f"{flag} needs --draft: there is no draft to place")
    if _is_head(model):
        if draft is not None:
            raise click.UsageError(f"{model} is a draft head: give the target first and the head by --draft")
        report = _read_and_describe(model)
    else:
        settings = EngineSettings.of(model, given)
        head = draft is not None and _is_head(draft)
        if draft is not None and not head:
            _check_settings(draft, given)
        llm = settings.open()
        report = describe(llm)
        if draft is not None:
            report["pair"] = (_head_pair if head else _pair)(llm, draft, given)
    if as_json:
        print_json(report)
    else:
        _print_table(report)
    return CHECK_FAILED if draft is not None and report["pair"]["verdict"] == "incompatible" else 0


def describe(llm: LLM) -> dict[str, Any]:
    """The facts of a loaded model, ready for JSON; `auto` is what method auto stands for."""
    from outrider.models.shipped import auto_settings, find_shipped

    target, tokenizer = llm.target, llm.tokenizer
    shipped = find_shipped(target)
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
        "shipped_drafts": [] if shipped is None else list(shipped.drafts),
        "auto": dict(auto_settings(shipped, target)),
    }


def describe_head(head: Head) -> dict[str, Any]:
    """The facts of a draft head, ready for JSON; `findings` says what its files left open and how it was settled."""
    config = asdict(head.config)
    layer = config.pop("arch", None)
    if layer is not None:
        layer["rope_scaling"]["kind"] = layer["rope_scaling"]["kind"].value
        config["layer"] = layer
    return {
        "method": head.method,
        **config,
        "token_map": head.token_map is not None,
        "own_embedding": "embed_tokens.weight" in head.tensors,
        "parameters": sum(tensor.numel() for tensor in head.tensors.values()),
        "findings": list(head.findings),
    }


def _is_head(name: str) -> bool:
    """Whether the name is a folder with a draft head. A hub id is taken for a model."""
    if not Path(name).is_dir():
        return False
    from outrider.models.head_formats.read import is_head

    return is_head(Path(name))


def _read_and_describe(name: str) -> dict[str, Any]:
    from outrider.models.heads import read_head

    return describe_head(read_head(name))


def _family(target: Any) -> str | None:
    """The architecture's name: ours, or the one in the configuration of a transformers model."""
    if hasattr(target, "arch"):
        return str(target.arch.family)
    return getattr(getattr(getattr(target, "model", None), "config", None), "model_type", None)


def _check_settings(draft: str, given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a dtype or a device that no draft model has."""
    from outrider.pairing import check_draft

    check_draft(_draft_config(draft, given))


def _draft_config(draft: str, given: Mapping[str, Any]) -> SpeculativeConfig:
    chosen = {key: value for key in ("draft_dtype", "draft_device") if (value := given[key]) is not None}
    return SpeculativeConfig.of({"method": "draft_model", "model": draft, **chosen})


def _pair(llm: LLM, draft: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on the pair, and where the draft runs; loaded as `draft_dtype` and `draft_device` of an engine."""
    with Progress(f"loading {draft}"):
        from outrider.models.borrowed import is_borrowing
        from outrider.models.load import load, resolve
        from outrider.pairing import check_pair
        from outrider.text import load_tokenizer

        source = resolve(draft)
        if is_borrowing(source.path):
            return _borrowing_pair(llm, draft, given)
        model = load(
            source,
            dtype=given["draft_dtype"] or "auto",
            device=given["draft_device"] or "cpu",
            threads=given["threads"],
        )
        found = check_pair(llm.tokenizer, llm.target, load_tokenizer(source), model)
    return {"verdict": found.verdict, "first_difference": found.first_difference, "draft": placement(model)}


def _borrowing_pair(llm: LLM, draft: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on a target and the layers of a draft that borrows the rest from it."""
    from outrider.errors import PairError
    from outrider.models.borrowed_load import MappedModel
    from outrider.pairing import load_draft

    try:
        loaded = load_draft(_draft_config(draft, given), llm.tokenizer, llm.target, given["threads"])
    except PairError as error:
        return {"verdict": "incompatible", "first_difference": str(error), "draft": None}
    decoder = loaded.decoder if isinstance(loaded, MappedModel) else loaded
    return {"verdict": "compatible", "first_difference": None, "draft": placement(decoder)}


def _head_pair(llm: LLM, draft: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on a target and a draft head by their sizes; how often the head is right where they fit."""
    from outrider.core.protocols import TappedTarget
    from outrider.errors import ModelLoadError, PairError
    from outrider.models.head_fit import check_head
    from outrider.models.heads import read_head

    head, target = read_head(draft), llm.target
    if not isinstance(target, TappedTarget):
        difference = "the target shows no hidden states to a head"
    else:
        difference = None
        try:
            check_head(
                head,
                vocab_size=target.vocab_size,
                hidden_size=target.hidden_size,
                num_layers=target.num_layers,
            )
        except (ModelLoadError, PairError) as error:
            difference = str(error)
    verdict = "compatible" if difference is None else "incompatible"
    found = llm.check_head(head) if difference is None else None
    return {
        "verdict": verdict,
        "first_difference": difference,
        "acceptance": None if found is None else [round(share, 3) for share in found.acceptance.by_position],
        "warning": None if found is None else found.warning,
        "draft": describe_head(head),
    }


def _print_table(report: dict[str, Any]) -> None:
    indent = max(map(len, report)) + 2
    for name, value in report.items():
        lines = _lines(value, _COLUMNS - indent)
        click.echo(f"{name:<{indent}}" + ("\n" + " " * indent).join(lines))


def _lines(value: Any, columns: int) -> list[str]:
    """A value in words, in lines of so many columns; only a longer word, such as a path, sticks out."""
    if isinstance(value, dict):
        parts = [", ".join(_glued(item, columns) for item in items(value))]
    elif isinstance(value, list):
        parts = [str(each) for each in value]
    elif isinstance(value, bool):
        parts = ["yes" if value else "no"]
    else:
        parts = ["-" if value is None else str(value)]
    wrapped = (textwrap.wrap(part, columns, break_long_words=False, break_on_hyphens=False) for part in parts)
    return [line.replace(_GLUE, " ") for lines in wrapped for line in lines] or ["-"]


def _glued(item: str, columns: int) -> str:
    """An item of a group, kept in one line where it fits."""
    return item.replace(" ", _GLUE) if len(item) < columns else item
