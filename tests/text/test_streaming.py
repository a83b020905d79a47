"""Text as tokens come: deltas, split characters, stop strings."""

from __future__ import annotations

import random

import pytest
from vocabularies import (
    both_kinds,
    byte_level,
)

from outrider.text import Detokenizer, StopChecker, TextTracker, Tokenizer


def streamed(tokenizer: Tokenizer, ids: list[int], chooser: random.Random) -> str:
    detokenizer, text, done = Detokenizer(tokenizer), "", 0
    while done < len(ids):
        step = chooser.randint(1, 8)
        text += detokenizer.append(ids[done : done + step])
        done += step
    return text + detokenizer.finish()


@pytest.mark.parametrize("kind", [0, 1])
def test_joined_deltas_equal_the_whole_text_for_any_tokens(kind: int) -> None:
    tokenizer = both_kinds()[kind]
    chooser = random.Random(kind)
    for _ in range(300):
        ids = [chooser.randrange(tokenizer.vocab_size + 3) for _ in range(chooser.randint(0, 40))]
        if chooser.random() < 0.5:
            ids += tokenizer.encode_part("naïve 😀 ✓ the  end")
        assert streamed(tokenizer, ids, chooser) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_split_emoji_is_held_back_until_whole(kind: int) -> None:
    tokenizer = both_kinds()[kind]
    ids = tokenizer.encode_part("a😀b")
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.append([token]) for token in ids]
    assert "".join(deltas) == "a😀b"
    assert not any("\ufffd" in delta for delta in deltas)
    assert sum(delta == "" for delta in deltas) >= 3


def test_an_unfinished_character_appears_as_replacement_at_the_end_only() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode_part("x😀")[:-1]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.append(ids) == "x"
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("text", ["the", "\x80"])
def test_cost_per_token_does_not_grow_with_the_text(text: str) -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode_part(text)[-1:]
    decoded = 0

    class Counting:
        def is_shown(self, token_id: int) -> bool:
            return tokenizer.is_shown(token_id)

        def decode(self, ids: list[int]) -> str:
            nonlocal decoded
            decoded += len(ids)
            return tokenizer.decode(ids)

    detokenizer = Detokenizer(Counting())
    for _ in range(2000):
        detokenizer.append(tokens)
    assert decoded <= 20 * 2000


def tracked(stop: tuple[str, ...], text: str, min_tokens: int = 0) -> tuple[TextTracker, list[str], int]:
    """Feeds `text` byte by byte; returns the tracker, its deltas, and how many tokens went in."""
    tokenizer = byte_level()
    tracker, deltas = TextTracker(tokenizer, stop, min_tokens), []
    ids = [tokenizer.encode_part(char) for char in text]
    count = 0
    for token in (token for part in ids for token in part):
        count += 1
        stopped = tracker.append(token)
        deltas.append(tracker.delta())
        if stopped:
            break
    tracker.finish()
    deltas.append(tracker.delta())
    return tracker, deltas, count


@pytest.mark.parametrize(
    ("stop", "text", "min_tokens", "expected", "tokens"),
    [
        (("END",), "one ENEND two", 0, "one EN", 9),
        (("zz", "b c"), "a b c d", 0, "a ", 5),
        (("é",), "caféx", 0, "caf", 5),
        (("\n\n",), "a\nb\n\nc", 0, "a\nb", 5),
        (("ab",), "ab ab", 2, "ab ", 5),
        (("ab",), "ab ab", 1, "", 2),
        (("nope",), "no nop", 0, "no nop", 6),
        ((), "plain 😀", 0, "plain 😀", 10),
    ],
)
def test_stop_strings_end_the_text(
    stop: tuple[str, ...], text: str, min_tokens: int, expected: str, tokens: int
) -> None:
    tracker, deltas, count = tracked(stop, text, min_tokens)
    assert tracker.text == expected
    assert "".join(deltas) == expected
    assert count == tokens


def test_no_delta_shows_what_a_stop_string_takes_back() -> None:
    _, deltas, _ = tracked(("STOP!",), "go STOPSTOP! on")
    shown = ""
    for delta in deltas:
        shown += delta
        assert "go STOP".startswith(shown)


def test_of_two_stop_strings_in_one_token_the_earlier_wins() -> None:
    tokenizer = byte_level()
    the = tokenizer.encode_part("the")
    assert len(the) == 1
    checker = StopChecker(tokenizer, ("e", "h"), 0)
    assert checker.append(the[0]) == 1


def test_a_stop_token_ends_the_text_without_its_own() -> None:
    tokenizer = byte_level()
    tracker = TextTracker(tokenizer, ("b!",), 0)
    for token in tokenizer.encode_part("ab"):
        tracker.append(token)
    assert tracker.delta() == "a"
    tracker.append_stop_token(tokenizer.encode_part("the")[0])
    assert tracker.delta() == "b"
    assert tracker.text == "ab"
