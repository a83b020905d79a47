"""What a terminal, a pipe and a log get to see."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

from outrider import llm
from outrider.cli import progress
from outrider.cli.display import Display, display_on, follow
from outrider.cli.options import EngineSettings
from outrider.cli.progress import WAIT, Progress
from outrider.config import SpeculativeConfig


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WAIT", 0.02)
    monkeypatch.setattr(progress, "_REDRAW", 0.01)


def shown(out: io.StringIO) -> str:
    display = display_on(out)
    display.write("plain ", False)
    display.write("drafted", True)
    display.write("", True)
    return out.getvalue()


def test_drafted_text_has_a_second_colour_on_a_terminal(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert shown(Terminal()) == "plain \x1b[36mdrafted\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_declined(monkeypatch, name, value) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert shown(Terminal()) == "plain drafted"


def test_a_pipe_gets_the_bare_text() -> None:
    assert shown(io.StringIO()) == "plain drafted"


def test_a_text_cannot_steer_the_terminal_but_reaches_a_file_whole() -> None:
    hostile = "a\x1b[2J\rb\x07\tc\n"
    terminal, file = Terminal(), io.StringIO()
    display_on(terminal).write(hostile, False)
    display_on(file).write(hostile, False)
    assert terminal.getvalue() == "a[2Jb\tc\n"
    assert file.getvalue() == hostile


class InterruptedStream:
    """A stream of which the second piece is on the screen when Ctrl-C strikes."""

    completion = SimpleNamespace(text="one two three")

    def __iter__(self):
        yield SimpleNamespace(text="one ", token_ids=(1,), from_draft=False)
        yield SimpleNamespace(text="two ", token_ids=(2,), from_draft=False)

    def abort(self):
        return self.completion


def test_ctrl_c_during_output_shows_nothing_twice() -> None:
    seen: list[str] = []

    def write(text: str, from_draft: bool) -> None:
        seen.append(text)
        if text == "two ":
            raise KeyboardInterrupt

    follow(InterruptedStream(), Display(write, live=False))
    assert "".join(seen) == "one two three"


def test_short_work_shows_no_progress(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("loading"):
        pass
    assert sys.stderr.getvalue() == ""


def test_a_terminal_gets_a_live_line_that_is_cleared(monkeypatch, quick) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("one") as line:
        time.sleep(0.1)
        line.say("two")
        time.sleep(0.1)
    assert "one (0 s)" in sys.stderr.getvalue()
    assert "two (0 s)" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


def test_a_log_gets_whole_lines(monkeypatch, quick) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with Progress("demo"):
        time.sleep(0.1)
    assert log.getvalue() == "demo (0 s)\n"


def slow(*given: object, **settings: object) -> SimpleNamespace:
    time.sleep(0.1)
    return SimpleNamespace(target=None)


def test_loading_says_so_after_two_seconds_in_a_log_too(monkeypatch, quick) -> None:
    assert WAIT == 2.0
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(llm, "LLM", slow)
    EngineSettings("model", "auto", "auto", "auto", "cpu", None, SpeculativeConfig()).open()
    assert log.getvalue() == "loading model (0 s)\n"
