"""`outrider chat` with messages from a pipe."""

from __future__ import annotations


def test_each_line_is_answered_and_history_is_kept(outrider, target, ids_of) -> None:
    done = outrider("chat", "toy", "--max-tokens", "4", "--system", "be brief", stdin=b"hello\n\nmore\n")
    assert done.code == 0
    first, second = target.read
    assert ids_of("<system>be brief\n<user>hello\n<assistant>")[:-1] == first
    assert second[: len(first) + 1] == [*first, ids_of(">")[0]]
    assert second[-len("<user>more\n<assistant") :] == ids_of("<user>more\n<assistant")
    assert [line.split(",")[0] for line in done.err.splitlines()] == ["4 tokens"] * 2


def test_reset_forgets_and_quit_leaves(outrider, target, ids_of) -> None:
    done = outrider("chat", "toy", "--max-tokens", "3", stdin=b"one\n/reset\ntwo\n/quit\nthree\n")
    assert done.code == 0
    assert target.read == [ids_of("<user>one\n<assistant"), ids_of("<user>two\n<assistant")]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(outrider, target, ids_of) -> None:
    target.interrupt_at = 3
    done = outrider("chat", "toy", "--max-tokens", "8", stdin=b"one\ntwo\n")
    assert done.code == 0
    summaries = done.err.splitlines()
    assert summaries[0].startswith("2 tokens")
    assert summaries[1].startswith("8 tokens")
    assert len(target.read[1]) > len(ids_of("<user>one\n<assistant>\n<user>two\n<assistant"))


def test_what_cannot_be_asked_is_an_error_for_a_script(outrider, target) -> None:
    too_long = outrider("chat", "toy", stdin=b"x" * 700)
    assert too_long.code == 2
    assert "error: the prompt holds" in too_long.err
    misspelt = outrider("chat", "toy", stdin=b"/rest\n")
    assert (misspelt.code, misspelt.err) == (2, "error: unknown command '/rest'; did you mean '/reset'?\n")
