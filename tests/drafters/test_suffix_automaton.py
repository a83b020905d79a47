"""The suffix automaton against counting by hand, and the corpus that drops its oldest texts."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import pytest

from outrider.drafters.suffix_automaton import BYTES_PER_TOKEN, Match, SuffixAutomaton
from outrider.drafters.suffix_corpus import SuffixCorpus

Texts = Sequence[Sequence[int]]


def automaton(texts: Texts, longest: int) -> SuffixAutomaton:
    made = SuffixAutomaton(longest)
    for text in texts:
        made.begin()
        made.read(text)
    return made


def followers(texts: Texts, context: Sequence[int]) -> Counter[int]:
    """What follows the context in the texts, by scanning them; in the order of their last occurrence."""
    found: Counter[int] = Counter()
    size = len(context)
    for text in texts:
        for end in range(size, len(text)):
            if list(text[end - size : end]) == list(context):
                count = found.pop(text[end], 0)
                found[text[end]] = count + 1
    return found


def occurs(texts: Texts, part: Sequence[int]) -> bool:
    size = len(part)
    return any(list(text[i : i + size]) == list(part) for text in texts for i in range(len(text) - size + 1))


def assert_counts(found: SuffixAutomaton, texts: Texts, longest: int, tail: Sequence[int]) -> None:
    """Every end of `tail` that was followed is guessed for, with the counts of a scan."""
    match = found.find(tail)
    size = max(n for n in range(min(longest, len(tail)) + 1) if occurs(texts, tail[len(tail) - n :]))
    assert match.length == size
    guesses = {guess.length: guess for guess in found.guesses(match)}
    children: dict[int, Counter[int]] = {}
    for guess in found.children(match, 100):
        children.setdefault(guess.length, Counter())[guess.token] = guess.times
    wanted: Counter[int] = Counter()
    for length in range(1, size + 1):
        counts = followers(texts, tail[len(tail) - length :])
        if length in guesses:
            best = guesses[length]
            latest = max(reversed(counts), key=lambda token: counts[token])
            assert (best.token, best.times, best.total) == (latest, counts[latest], counts.total())
            assert children[length] == counts
    for length in range(
        size, 0, -1
    ):  # a context without a guess is followed by just what the next longer one is
        wanted = followers(texts, tail[len(tail) - length :])
        longer = min((n for n in guesses if n >= length), default=None)
        if longer is None:
            assert not wanted
        else:
            assert wanted == children[longer]


@pytest.mark.parametrize("longest", [1, 2, 3, 7])
@pytest.mark.parametrize("vocab", [1, 2, 5])
def test_contexts_are_counted_as_a_scan_counts_them(longest: int, vocab: int) -> None:
    rng = random.Random(longest * 10 + vocab)
    text: list[int] = []
    found = SuffixAutomaton(longest)
    for _ in range(60):
        new = [rng.randrange(vocab) for _ in range(rng.choice([1, 1, 4]))]
        text += new
        found.read(new)
        assert found.end == found.find(text)
        assert_counts(found, [text], longest, text)
        assert_counts(found, [text], longest, [rng.randrange(vocab) for _ in range(5)])


def test_texts_are_counted_together_and_nothing_runs_across_their_borders() -> None:
    rng = random.Random(3)
    for _ in range(60):
        texts = [[rng.randrange(3) for _ in range(rng.randrange(1, 12))] for _ in range(rng.randrange(1, 5))]
        found = automaton(texts, 4)
        for _ in range(8):
            assert_counts(found, texts, 4, [rng.randrange(3) for _ in range(6)])
    assert not list(automaton([[1, 2], [3, 4]], 4).guesses(automaton([[1, 2], [3, 4]], 4).find([1, 2])))


def test_a_match_goes_on_with_its_longest_end_that_occurs() -> None:
    found = automaton([[1, 2, 3, 9, 2, 4]], 8)
    assert found.after(found.find([1, 2]), 3).length == 3
    assert found.after(found.find([1, 2]), 4).length == 2
    assert found.after(found.find([1, 2]), 9).length == 1
    assert found.after(found.find([1, 2]), 7) == found.find([]) == Match(0, 0)


def test_the_longest_context_that_was_followed_is_found() -> None:
    found = automaton([[1, 2, 3, 9, 2, 3]], 8)
    assert (found.end.length, found.followed(found.end).length) == (6, 2)
    assert found.followed(found.find([1, 2])).length == 2
    once = automaton([[1, 2]], 8)
    assert (once.end.length, once.followed(once.end).length) == (2, 0)


def worst_texts(length: int) -> dict[str, list[int]]:
    rng = random.Random(1)
    words = [[rng.randrange(50_000) for _ in range(rng.randrange(1, 9))] for _ in range(60)]
    spoken = [token for _ in range(length) for token in rng.choice(words)]
    return {
        "distinct": list(range(100_000, 100_000 + length)),
        "one token": [70_000] * length,
        "two tokens": [rng.randrange(2) for _ in range(length)],
        "many splits": [1000, *[2000] * (length // 2), *[1000, 2000] * (length // 4)],
        "words": spoken[:length],
    }


@pytest.mark.parametrize("name", worst_texts(1))
def test_memory_is_bounded_per_token_and_reported(name: str) -> None:
    text = worst_texts(4000)[name]
    tracemalloc.start()
    try:
        found = automaton([text], 24)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert found.memory_bytes <= BYTES_PER_TOKEN * len(text)
    assert 0.7 * held <= found.memory_bytes <= 1.4 * held


def test_a_text_read_again_takes_no_more_memory() -> None:
    text = worst_texts(300)["words"]
    once = automaton([text], 24).memory_bytes
    assert automaton([text, text[:40], text], 24).memory_bytes <= 1.02 * once


def outputs_in(corpus: SuffixCorpus, count: int) -> list[int]:
    """Which of the outputs (n, n + 1000) it still knows."""
    return [n for n in range(count) if any(list(half.guesses(half.find([n]))) for half in corpus)]


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_the_oldest_texts_go_first(most: int) -> None:
    corpus = SuffixCorpus(4, most)
    for n in range(35):
        corpus.add([n, n + 1000])
        known = outputs_in(corpus, 35)
        assert known == list(range(known[0], n + 1))
        assert min(n + 1, most // 2 + 1) <= len(known) <= most


def test_a_corpus_holds_no_more_tokens_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuffixCorpus, "most_tokens", 100)
    corpus = SuffixCorpus(4, 1000)
    for start in range(0, 3000, 30):
        corpus.add(range(start, start + 30))
        assert sum(half.tokens_read for half in corpus) <= 100
        assert corpus.memory_bytes <= 100 * BYTES_PER_TOKEN
    corpus.add(range(5000, 5400))
    assert sum(half.tokens_read for half in corpus) <= 100
    corpus.add([])
    assert sum(half.tokens_read for half in corpus) <= 100
