"""The page of a run is whole, shows every number, and needs nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outrider.core.completion import SpeculationStats
from outrider.train.chart import Series, chart, ticks
from outrider.train.curve import Curve, Evaluation, TrainPoint
from outrider.train.plot import plot, write_plot


def curve(steps: int) -> Curve:
    points = tuple(TrainPoint(k, 3.0 / k, (0.5, 0.3), 1e-3, 90 * k, 0.5 * k) for k in range(1, steps + 1))
    evaluations = tuple(
        Evaluation(k, (3.0 - k / 9, 3.5), (0.1 + k / 90, 0.05), (0.2, 0.1),
                   SpeculationStats(num_rounds=10, num_emitted_tokens=10 + k, num_spec_tokens=2), tokens=90 * k)
        for k in (0, 8, 16)
    )  # fmt: skip
    return Curve(points, evaluations)


class Balanced(HTMLParser):
    """Asserts that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_asks_for_nothing_from_elsewhere() -> None:
    page = plot(curve(16), "A <draft> & its target")
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    assert "A &lt;draft&gt; &amp; its target" in page
    assert not re.search(r"<script|https?:|url\(|<link|@import", page)
    assert "prefers-color-scheme: dark" in page


def test_every_value_can_be_read_where_the_pointer_rests() -> None:
    page = plot(curve(16), "run")
    assert "<title>training, step 2: 1.5 (180 tokens trained on)</title>" in page
    assert "<title>guess 1, step 8: 0.1889 (720 tokens trained on)</title>" in page
    assert "<title>chains of 2, step 16: 2.6 (1,440 tokens trained on)</title>" in page
    assert page.count("<title>guess 2") == 3 * 3


def test_long_runs_are_thinned_to_means() -> None:
    page = plot(curve(1600), "run")
    assert page.count("<title>training, means of 10 steps") == 160
    assert f"step 10: {sum(3.0 / k for k in range(1, 11)) / 10:.4g}" in page


def test_a_run_without_evaluations_or_steps_has_a_page_too() -> None:
    assert "Nothing was measured." in plot(Curve(), "run")
    assert "Nothing was measured." in plot(Curve(curve(3).points), "run")


def test_points_lie_within_the_axes() -> None:
    drawn = chart([Series("line", [(0, -4.0), (700, 1234.5)])], across="step", up="value")
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    assert len(places) == 2
    assert all(60 <= x <= 546 and 12 <= y <= 256 for x, y in places)
    assert places[0][1] > places[1][1], "more is higher"


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.13, 0.87), (-3, 12), (1e-7, 2e-7), (0, 24_000), (5, 5), (0, 0)]
)
def test_ticks_are_round_and_span_the_values(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 9
    assert found[0] <= low + 1e-12
    assert found[-1] >= high - 1e-12


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "curve.html"
    write_plot(path, curve(4), "run")
    assert path.read_text() == plot(curve(4), "run")
    assert [file.name for file in path.parent.iterdir()] == ["curve.html"]
