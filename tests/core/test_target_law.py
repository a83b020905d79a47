"""The target law: every processor against an independent formula, at any node, for any layout of the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.generation import logits_process as hf

from outrider.core.law import NodeLaw
from outrider.core.sampling import SamplingParams
from outrider.core.target_law import TargetLaw
from outrider.errors import ParameterError, ScoreError

Array = npt.NDArray[np.float64]


def law_of(row: Any, output: Sequence[int] = (), path: Sequence[int] = (), *, prompt: Sequence[int] = (),
           stop_ids: Sequence[int] = (), bad_word_ids: tuple[tuple[int, ...], ...] = (),
           **fields: Any) -> NodeLaw:  # fmt: skip
    row = row if isinstance(row, torch.Tensor) else np.asarray(row)
    law = TargetLaw(
        SamplingParams(**fields), prompt=prompt, stop_ids=frozenset(stop_ids), bad_word_ids=bad_word_ids
    )
    law.append(output)
    return law.node(row, path)


def dense(law: NodeLaw) -> Array:  # [vocab]
    """The law's logits over the whole vocabulary, -inf off the support."""
    logits = np.full(law.vocab_size, -np.inf)
    logits[slice(None) if law.tokens is None else law.tokens] = law.logits
    return logits


def support(law: NodeLaw) -> list[int]:
    return list(range(law.vocab_size)) if law.tokens is None else law.tokens.tolist()


def assert_bitwise_equal(left: NodeLaw, right: NodeLaw) -> None:
    assert left.greedy == right.greedy
    assert support(left) == support(right)
    assert left.logits.tobytes() == right.logits.tobytes()


def random_history(rng: np.random.Generator, vocab: int) -> tuple[list[int], list[int], list[int]]:
    prompt, output, path = (rng.integers(0, vocab, size).tolist() for size in rng.integers(2, 12, 3))
    return prompt, output, path


HF_PROCESSORS = {
    "repetition above 1": ({"repetition_penalty": 1.3}, hf.RepetitionPenaltyLogitsProcessor(1.3)),
    "repetition below 1": ({"repetition_penalty": 0.7}, hf.RepetitionPenaltyLogitsProcessor(0.7)),
    "2-grams": ({"no_repeat_ngram_size": 2}, hf.NoRepeatNGramLogitsProcessor(2)),
    "1-grams": ({"no_repeat_ngram_size": 1}, hf.NoRepeatNGramLogitsProcessor(1)),
    "temperature": ({"temperature": 0.6}, hf.TemperatureLogitsWarper(0.6)),
    "min_p": ({"min_p": 0.15}, hf.MinPLogitsWarper(0.15)),
    "top_k": ({"top_k": 5}, hf.TopKLogitsWarper(5)),
    "top_k beyond the vocabulary": ({"top_k": 500}, hf.TopKLogitsWarper(500)),
    "top_p": ({"top_p": 0.8}, hf.TopPLogitsWarper(0.8)),
    "tiny top_p": ({"top_p": 1e-6}, hf.TopPLogitsWarper(1e-6)),
}


@pytest.mark.parametrize("name", HF_PROCESSORS)
def test_agrees_with_transformers(name: str) -> None:
    fields, processor = HF_PROCESSORS[name]
    rng = np.random.default_rng(0)
    for _ in range(30):
        row = rng.normal(0, 2, 30)
        prompt, output, path = random_history(rng, 30)
        theirs = processor(torch.tensor([prompt + output + path]), torch.from_numpy(row)[None].clone())[
            0
        ].numpy()
        ours = dense(law_of(row, output, path, prompt=prompt, **fields))
        assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
        kept = np.isfinite(ours)
        np.testing.assert_allclose(ours[kept], (theirs - theirs.max())[kept], atol=1e-6)


def test_bad_words_agree_with_transformers_and_match_the_output_only() -> None:
    rng = np.random.default_rng(1)
    words = ((3,), (1, 2), (0, 1, 4), (2, 2, 5))
    processor = hf.NoBadWordsLogitsProcessor([list(word) for word in words])
    masked: Counter[int] = Counter()
    for _ in range(200):
        row = rng.normal(0, 2, 8)
        output, path = rng.integers(0, 6, 3).tolist(), rng.integers(0, 6, rng.integers(0, 3)).tolist()
        theirs = processor(torch.tensor([output + path]), torch.from_numpy(row)[None].clone())[0].numpy()
        ours = dense(law_of(row, output, path, prompt=[0, 1, 1], bad_word_ids=words))
        assert np.array_equal(np.isfinite(ours), np.isfinite(theirs))
        masked.update(np.flatnonzero(~np.isfinite(ours)).tolist())
    assert set(masked) == {2, 3, 4, 5}, "every word was at stake"
    assert support(law_of(np.zeros(8), prompt=[0, 1], bad_word_ids=((0, 1, 4),))) == list(range(8))
    assert 4 not in support(law_of(np.zeros(8), [0], [1], prompt=[7], bad_word_ids=((0, 1, 4), (9,))))


def test_min_tokens_agree_with_transformers_and_count_the_path() -> None:
    row = np.random.default_rng(2).normal(0, 1, 10)
    prompt, text = [1, 2, 3], [4, 5, 6, 7, 8]
    processor = hf.MinNewTokensLengthLogitsProcessor(len(prompt), 3, [0, 9])
    for written in range(len(text) + 1):
        ids = torch.tensor([prompt + text[:written]])
        theirs = processor(ids, torch.from_numpy(row)[None].clone())[0].numpy()
        for certain in range(written + 1):
            law = law_of(row, text[:certain], text[certain:written], prompt=prompt, stop_ids=[0, 40],
                         min_tokens=3, stop_token_ids=[9])  # fmt: skip
            assert support(law) == np.flatnonzero(np.isfinite(theirs)).tolist()


def test_presence_and_frequency_count_output_and_path_alone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        row = rng.normal(0, 2, 12)
        prompt, output, path = random_history(rng, 12)
        counts = np.bincount(output + path, minlength=12)
        expected = row - 0.7 * counts - (-0.4) * (counts > 0)
        ours = dense(law_of(row, output, path, prompt=prompt, frequency_penalty=0.7, presence_penalty=-0.4))
        np.testing.assert_allclose(ours, expected - expected.max(), atol=1e-12)


@pytest.mark.parametrize(
    ("row", "fields", "expected"),
    [
        pytest.param([2.0, 0.0], {"logit_bias": {0: -4.0}, "repetition_penalty": 2.0}, [-4.0, 0.0],
                     id="bias before repetition"),
        pytest.param([1.0, 0.0], {"repetition_penalty": 2.0, "frequency_penalty": 2.0}, [-1.5, 0.0],
                     id="repetition before frequency"),
        pytest.param([0.0, 0.0], {"frequency_penalty": 1.0, "temperature": 0.5}, [-2.0, 0.0],
                     id="frequency before temperature"),
        pytest.param([-1.0, 0.0], {"min_p": 0.2, "temperature": 0.5}, [-np.inf, 0.0],
                     id="temperature before min_p"),
        pytest.param(np.log([0.5, 0.3, 0.2]), {"min_p": 0.5, "top_p": 0.6}, [0.0, -np.inf, -np.inf],
                     id="min_p before top_p"),
        pytest.param(np.log([0.4, 0.3, 0.2, 0.1]), {"top_k": 2, "top_p": 0.5}, [0.0, *[-np.inf] * 3],
                     id="top_k before top_p"),
        pytest.param([0.0, 0.0], {"min_tokens": 9, "stop_token_ids": [1], "logit_bias": {1: 9.0}},
                     [0.0, -np.inf],
                     id="a mask outlives a bias"),
        pytest.param([9.0, 1.0, 0.0], {"bad_word_ids": ((0,),), "top_k": 1}, [-np.inf, 0.0, -np.inf],
                     id="masks before top_k"),
    ],
)  # fmt: skip
def test_processors_come_in_their_order(row: Any, fields: dict[str, Any], expected: list[float]) -> None:
    np.testing.assert_allclose(dense(law_of(row, [0], **fields)), expected, atol=1e-12)


def test_every_token_tied_with_the_last_one_kept_stays() -> None:
    row = np.array([1.0, 3.0, 1.0, 2.0, 1.0, 0.0])
    assert support(law_of(row, top_k=1)) == [1]
    assert support(law_of(row, top_k=3)) == [0, 1, 2, 3, 4]
    equal = np.log([0.25, 0.5, 0.125, 0.125])
    assert support(law_of(equal, top_p=0.8)) == [0, 1, 2, 3]
    assert support(law_of(np.zeros(6), top_p=0.01)) == list(range(6))
    assert support(law_of(np.zeros(6), top_k=2, top_p=0.3)) == list(range(6))


def naive_cut(row: Array, temperature: float, min_p: float, top_k: int | None, top_p: float) -> list[int]:
    """Supports by full sorts, one cut after the other."""
    probs = np.exp((row - row.max()) / temperature)
    probs /= probs.sum()
    kept = {token for token in range(len(row)) if probs[token] >= min_p * probs.max()}
    if top_k is not None:
        ranked = sorted(kept, key=lambda token: -row[token])
        kept = {token for token in kept if row[token] >= row[ranked[min(top_k, len(ranked)) - 1]]}
    if top_p < 1.0:
        ranked = sorted(kept, key=lambda token: -row[token])
        mass = np.cumsum(probs[ranked]) / probs[ranked].sum()
        last = ranked[int(np.argmax(mass >= top_p))]
        kept = {token for token in kept if row[token] >= row[last]}
    return sorted(kept)


def test_cut_sets_equal_full_sorts() -> None:
    rng = np.random.default_rng(4)
    sizes = set()
    for trial in range(300):
        vocab = int(rng.choice([3, 17, 200, 3000]))
        row = rng.normal(0, rng.choice([1e-9, 0.05, 1.0, 4.0]), vocab)
        if trial % 2:
            row = np.round(row * 2) / 2  # many ties
        temperature = float(rng.uniform(0.3, 2.0))
        min_p = float(rng.choice([0.0, rng.uniform(0, 0.3)]))
        top_k = None if rng.random() < 0.4 else int(rng.integers(1, vocab + 2))
        top_p = float(rng.choice([1.0, rng.uniform(0.01, 0.999)]))
        law = law_of(row, temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
        assert support(law) == naive_cut(row, temperature, min_p, top_k, top_p)
        np.testing.assert_array_equal(
            dense(law)[support(law)], ((row - row.max()) / temperature)[support(law)]
        )
        sizes.add(len(support(law)))
    assert len(sizes) > 50


@pytest.mark.parametrize("width", [3.0, 0.3, 1e-12])
def test_no_cut_sorts_the_vocabulary(monkeypatch: pytest.MonkeyPatch, width: float) -> None:
    row = np.random.default_rng(5).normal(0, width, 49_152)
    sort, partition = np.sort, np.partition
    seen: list[int] = []
    monkeypatch.setattr(np, "argsort", None)
    monkeypatch.setattr(np, "sort", lambda a: seen.append(a.size) or sort(a))
    monkeypatch.setattr(np, "partition", lambda a, k: seen.append(a.size) or partition(a, k))
    law_of(row, top_k=50)
    law = law_of(row, temperature=0.7, top_p=0.9)
    assert len(seen) == 3
    assert max(seen) < 2100
    probs = np.exp((row - row.max()) / 0.7)
    kept = probs[law.tokens].sum() / probs.sum()
    assert kept >= 0.9
    assert kept - probs[law.tokens].min() / probs.sum() < 0.9, "the smallest such set"


EVERYTHING: dict[str, Any] = {
    "temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2,
    "presence_penalty": 0.3, "frequency_penalty": 0.4, "no_repeat_ngram_size": 3, "min_tokens": 8,
    "stop_token_ids": [5], "logit_bias": {2: 1.5, 7: -2.0}, "bad_word_ids": ((3,), (1, 4)), "stop_ids": [0],
}  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.02},
    EVERYTHING,
]


@pytest.mark.parametrize("fields", SETTINGS)
def test_a_path_is_as_good_as_output(fields: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    fields = dict(fields)
    extra = {name: fields.pop(name) for name in ("bad_word_ids",) if name in fields}
    stop_ids = frozenset(fields.pop("stop_ids", ()))
    for _ in range(20):
        prompt, output, path = random_history(rng, 9)
        row = rng.normal(0, 1, 9)
        if not set(range(9)) - set(prompt + output + path):
            row[8] += 1.0
        grown = TargetLaw(SamplingParams(**fields), prompt=prompt, stop_ids=stop_ids, **extra)
        for token in output:  # asked in between, so that what it remembers of the log is exercised
            grown.node(row, path[:1])
            grown.append([token])
        ahead = grown.node(row, path)
        grown.append(path)
        assert_bitwise_equal(ahead, grown.node(row, ()))
        fresh = TargetLaw(SamplingParams(**fields), prompt=prompt, stop_ids=stop_ids, **extra)
        fresh.append(output + path)
        assert_bitwise_equal(ahead, fresh.node(row, ()))


@pytest.mark.parametrize("fields", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_the_law_is_a_function_of_the_row_bit_for_bit(fields: dict[str, Any], dtype: torch.dtype) -> None:
    row = torch.from_numpy(np.random.default_rng(7).normal(0, 3, 5003)).to(dtype)
    history: dict[str, Any] = dict(output=[1, 2, 1], path=[4, 2], prompt=[9, 8, 9, 8], **fields)
    expected = law_of(row.clone(), **history)
    for width in (2, 5):
        batch = torch.randn(width, 5003, generator=torch.Generator().manual_seed(width)).to(dtype)
        batch[1] = row
        assert_bitwise_equal(law_of(batch[1], **history), expected)
        assert_bitwise_equal(law_of(batch.T.contiguous()[:, 1], **history), expected)
        shifted = torch.cat([batch[0, :1], row])[1:]
        assert_bitwise_equal(law_of(shifted, **history), expected)
    wide = row.double().numpy()
    assert_bitwise_equal(law_of(wide, **history), expected)
    assert_bitwise_equal(law_of(wide[::-1].copy()[::-1], **history), expected)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert_bitwise_equal(law_of(row, **history), expected)
    finally:
        torch.set_num_threads(threads)


def test_a_path_that_was_not_taken_is_forgotten() -> None:
    law = TargetLaw(SamplingParams(no_repeat_ngram_size=2), prompt=[1, 2])
    assert support(law.node(np.zeros(5), [1, 3, 1])) == [0, 1, 4]
    assert support(law.node(np.zeros(5), [1])) == [0, 1, 3, 4]
    counted = TargetLaw(SamplingParams(frequency_penalty=1.0), prompt=[1])
    counted.append([2])
    assert counted.node(np.zeros(5), [2, 2, 3]).logits.tolist() == [0.0, 0.0, -3.0, -1.0, 0.0]
    assert counted.node(np.zeros(5), []).logits.tolist() == [0.0, 0.0, -1.0, 0.0, 0.0]


def test_a_repeating_path_under_a_frequency_penalty_is_judged_as_plain_decoding_would() -> None:
    row = np.array([3.0, 2.5, 0.0])
    plain: list[int] = []
    law = TargetLaw(SamplingParams(temperature=0.0, frequency_penalty=2.0), prompt=[0, 0, 0])
    for _ in range(6):
        plain.append(law.node(row, ()).token(0))
        law.append(plain[-1:])
    assert plain == [0, 1, 0, 1, 2, 0]
    ahead = TargetLaw(SamplingParams(temperature=0.0, frequency_penalty=2.0), prompt=[0, 0, 0])
    assert [ahead.node(row, plain[:n]).token(0) for n in range(6)] == plain
    assert [ahead.node(row, [0] * n).token(0) for n in range(4)] == [0, 1, 1, 1]


@pytest.mark.parametrize("fields", SETTINGS)
@pytest.mark.parametrize(
    ("bad", "message"), [(np.nan, "NaN"), (np.inf, r"\+inf")], ids=["nan", "inf"]
)  # fmt: skip
def test_a_row_with_nan_or_infinity_has_no_law(fields: dict[str, Any], bad: float, message: str) -> None:
    for place in (0, 3, 4, 9):
        row = np.linspace(0, 1, 10)
        row[place] = bad
        with pytest.raises(ScoreError, match=message) as error:
            law_of(torch.from_numpy(row).float(), [2, 3], **fields)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("fields", SETTINGS)
def test_masked_tokens_have_no_place_in_the_law(fields: dict[str, Any]) -> None:
    row = np.array([-np.inf, 1.0, -np.inf, 0.5, -np.inf, 0.2, 0.1, 0.0, -np.inf])
    law = law_of(row, **fields)
    assert set(support(law)) <= {1, 3, 5, 6, 7}
    assert law.tokens is not None
    assert np.isfinite(law.logits).all()
    with pytest.raises(ScoreError, match="-inf"):
        law_of(np.full(9, -np.inf), **fields)


def test_masking_everything_is_an_error() -> None:
    with pytest.raises(ScoreError, match="masked"):
        law_of(np.zeros(2), bad_word_ids=((0,), (1,)))
    with pytest.raises(ScoreError, match="masked"):
        law_of(np.zeros(2), [0, 1], temperature=0.0, no_repeat_ngram_size=1)
    with pytest.raises(ScoreError, match="repetition_penalty"):
        law_of(np.array([1e10, 0.0]), [0], repetition_penalty=1e-305)


def test_the_row_is_not_changed() -> None:
    for fields in SETTINGS:
        array = np.random.default_rng(8).normal(0, 1, 12)
        before = array.copy()
        array.flags.writeable = False
        law_of(array, [1, 2], [3], **fields)
        tensor = torch.from_numpy(before.copy())
        law_of(tensor, [1, 2], [3], **fields)
        np.testing.assert_array_equal(tensor.numpy(), before)


def test_tiny_temperatures_do_not_overflow() -> None:
    row = np.array([1.0, 3.0, -5.0, 3.0, 2.9])
    for temperature in (1e-3, 1e-100, 5e-324):
        law = law_of(row, temperature=temperature, top_p=0.99)
        assert support(law) == [1, 3]
        np.testing.assert_array_equal(law.logits, 0.0)
    assert support(law_of(row, temperature=5e-324)) == [1, 3]
    assert not law_of(row, temperature=5e-324).greedy


def test_greedy_takes_the_lowest_of_equals_whatever_the_cuts() -> None:
    row = np.array([1.0, 3.0, 3.0, 0.0])
    for extra in ({}, {"top_k": 3, "top_p": 0.9, "min_p": 0.1}, {"logit_bias": {3: 3.0}}, {"min_tokens": 2}):
        law = law_of(row, temperature=0.0, **extra)
        assert law.greedy
        assert support(law) == [1]
    assert support(law_of(row, temperature=0.0, min_tokens=2, stop_ids=[1])) == [2]


def test_ids_beyond_the_vocabulary() -> None:
    with pytest.raises(ParameterError, match="logit_bias names token 7"):
        law_of(np.zeros(5), logit_bias={1: 1.0, 7: 2.0})
    law = law_of(np.zeros(5), [6, 6], [8], prompt=[9, 9], stop_ids=[50], min_tokens=9, repetition_penalty=1.5,
                 frequency_penalty=1.0, no_repeat_ngram_size=1, bad_word_ids=((70,), (8, 71)))  # fmt: skip
    assert law.tokens is None
    np.testing.assert_array_equal(law.logits, 0.0)
