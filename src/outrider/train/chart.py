"""`chart`: lines over steps as inline SVG, with axes, a legend, and values shown where the pointer rests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 44  # margins around the lines
_TICKS = 5  # about as many numbers on an axis

STYLE = """
.chart { width: 100%; height: auto; display: block; }
.chart text { fill: var(--soft); font-size: 12px; }
.chart .grid { stroke: var(--grid); stroke-width: 1; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke: hsl(var(--hue) 62% var(--tone)); }
.chart .dot { fill: hsl(var(--hue) 62% var(--tone)); }
.chart .dot:hover { stroke: var(--ink); stroke-width: 2; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: 4px 0 0 60px; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle;
  background: hsl(var(--hue) 62% var(--tone)); }
"""
"""What a page needs; it defines the colours --ink, --soft and --grid and the lightness --tone of lines."""


@dataclass(frozen=True)
class Series:
    """One line: (step, value) in the order of steps, and where shown what else to say of a point."""

    name: str
    points: Sequence[tuple[float, float]]
    notes: Sequence[str] = ()


def chart(series: Sequence[Series], *, across: str, up: str) -> str:
    """An `<svg>` and its legend; `across` and `up` label the axes. Colours follow the order of the series."""
    points = [point for one in series for point in one.points]
    if not points:
        return "<p>Nothing was measured.</p>"
    frame = _Frame.around(points)
    hues = [_hue(index, len(series)) for index in range(len(series))]
    lines = "".join(_line(one, hue, frame, across) for one, hue in zip(series, hues))
    legend = "".join(
        f'<li style="--hue:{hue}"><i></i>{escape(one.name)}</li>' for one, hue in zip(series, hues)
    )
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(up)} over {escape(across)}">'
        f'{_axes(frame, across, up)}{lines}</svg><ul class="legend">{legend}</ul>'
    )


@dataclass(frozen=True)
class _Frame:
    """The numbers on the axes, and where they lie."""

    across: Sequence[float]
    up: Sequence[float]

    @staticmethod
    def around(points: Sequence[tuple[float, float]]) -> _Frame:
        steps, values = zip(*points)
        return _Frame(ticks(min(steps), max(steps)), ticks(min(values), max(values)))

    def x(self, step: float) -> float:
        first, last = self.across[0], self.across[-1]
        return _LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        first, last = self.up[0], self.up[-1]
        return _HEIGHT - _BOTTOM - (value - first) / (last - first) * (_HEIGHT - _TOP - _BOTTOM)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers at equal distances, the first at most `low`, the last at least `high`, two or more."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        low, high = low - max(abs(low), 1.0) / 10, high + max(abs(high), 1.0) / 10
    raw = (high - low) / _TICKS
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _axes(frame: _Frame, across: str, up: str) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts: list[str] = []
    for value in frame.up:
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for step in frame.across:
        x = frame.x(step)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number(step)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(up)}</text>'
    )
    return "".join(parts)


def _line(series: Series, hue: int, frame: _Frame, across: str) -> str:
    places = [(frame.x(step), frame.y(value)) for step, value in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    notes = [*series.notes, *[""] * (len(places) - len(series.notes))]
    dots = "".join(
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{escape(series.name)}, {escape(across)} '
        f"{number(step)}: {number(value)}{escape(note)}</title></circle>"
        for (x, y), (step, value), note in zip(places, series.points, notes)
    )
    return f'<g style="--hue:{hue}"><polyline class="line" points="{path}"/>{dots}</g>'


def _hue(index: int, count: int) -> int:
    """Blue to red through green: positions are ordered, and so are their colours."""
    return round(215 - 205 * index / max(1, count - 1))


def number(value: float) -> str:
    """Four digits at most, thousands set apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
