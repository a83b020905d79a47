"""The page of a run: its loss and acceptance over steps, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from outrider.train.chart import STYLE, Series, chart, number
from outrider.train.checkpoint import replace_file
from outrider.train.curve import Curve, Evaluation

_MOST_POINTS = 160  # on a line; means of neighbours where there are more steps

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d232b; --soft: #56606d; --grid: #e3e7ec; --tone: 42%; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e8ecf1; --soft: #9aa6b3; --grid: #2a313a; --tone: 66%; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1240px; padding: 0 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1rem; margin: 0 0 .25rem; }
p { color: var(--soft); margin: 0 0 1rem; }
section { min-width: 0; } .wide { overflow-x: auto; margin-top: 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--grid); white-space: nowrap; }
"""


def write_plot(path: Path, curve: Curve, title: str) -> None:
    """Writes the page, whole or not at all; `title` is plain text."""
    page = plot(curve, title)
    replace_file(path, lambda file: file.write(page.encode()))


def plot(curve: Curve, title: str) -> str:
    """The page as HTML: loss in training, and of held-out texts loss, acceptance, hits and tokens per pass."""
    held_out = curve.evaluations
    panels = (
        _panel("Loss in training", [_training(curve)], "loss"),
        _panel("Loss on held-out texts", _by_position(held_out, "losses"), "loss"),
        _panel("Acceptance on held-out texts", _by_position(held_out, "overlaps"), "1 - TV to the target's law"),
        _panel("Likeliest guess right on held-out texts", _by_position(held_out, "hits"), "share of guesses"),
        _panel("Greedy held-out texts played back", [_passes(held_out)], "tokens per pass"),
    )  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(_summary(curve))}</p>"
        f"<main>{''.join(panels)}</main>{_table(held_out)}</body></html>\n"
    )


def _panel(heading: str, series: Sequence[Series], up: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{chart(series, across='step', up=up)}</section>"


def _training(curve: Curve) -> Series:
    """The loss of steps, as means over neighbours where there are many."""
    points = curve.points
    size = -(-len(points) // _MOST_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(group[-1].step, sum(one.loss for one in group) / len(group)) for group in groups]
    name = "training" if size == 1 else f"training, means of {size} steps"
    return Series(name, means, [_note(group[-1].tokens) for group in groups])


def _by_position(evaluations: Sequence[Evaluation], field: str) -> list[Series]:
    """A line per position of a guess."""
    rows = [getattr(evaluation, field) for evaluation in evaluations]
    notes = [_note(evaluation.tokens) for evaluation in evaluations]
    return [
        Series(f"guess {j + 1}", [(one.step, row[j]) for one, row in zip(evaluations, rows)], notes)
        for j in range(len(rows[0]) if rows else 0)
    ]


def _passes(evaluations: Sequence[Evaluation]) -> Series:
    played = [evaluation for evaluation in evaluations if evaluation.chain.num_rounds]
    length = played[0].chain.num_spec_tokens if played else 0
    return Series(
        f"chains of {length}",
        [(one.step, one.chain.tokens_per_pass) for one in played],
        [_note(one.tokens) for one in played],
    )


def _note(tokens: int) -> str:
    return f" ({tokens:,} tokens trained on)"


def _summary(curve: Curve) -> str:
    if not curve.points:
        return "No step was taken."
    last = curve.points[-1]
    return f"{last.step:,} steps, {last.tokens:,} tokens of answers, {last.seconds / 60:,.1f} minutes."


def _table(evaluations: Sequence[Evaluation]) -> str:
    """The numbers of every evaluation, for readers and screen readers."""
    if not evaluations:
        return ""
    heads = ["step", "tokens", *(f"acceptance {j + 1}" for j in range(len(evaluations[0].overlaps))),
             *(f"right {j + 1}" for j in range(len(evaluations[0].hits))), "tokens per pass"]  # fmt: skip
    rows = [
        [one.step, one.tokens, *one.overlaps, *one.hits, one.chain.tokens_per_pass] for one in evaluations
    ]
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{number(value)}</td>' for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
