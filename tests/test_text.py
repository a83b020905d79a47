"""Tokenizers, chat templates, streaming text and stop strings."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from outrider.errors import ModelLoadError, ParameterError
from outrider.text import Detokenizer, StopChecker, TextTracker, Tokenizer, bad_word_ids, load_tokenizer
from outrider.text.chat import ChatTemplate
from outrider.text.gguf import gguf_tokenizer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
PIECES = [chr(0x2581) + "a", "a", "b", "n", "an", chr(0x2581), chr(0x2581) + "ban", "ban", "\ufffd", "c"]


def byte_level() -> Tokenizer:
    """One token per byte, a few merges, and two special tokens."""
    vocab = {token: index for index, token in enumerate([*BYTES, "th", "the", "Ġthe", "ĠĠ"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<turn>", special=True)])
    return Tokenizer(backend, eos_token_ids=[len(vocab)])


def sentencepiece_fields(**changes: Any) -> dict[str, Any]:
    """Metadata of a Llama 2 kind of vocabulary: byte tokens, a few pieces, scores by id."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    fields = {
        "model": "llama",
        "tokens": tokens,
        "scores": [-float(index) for index in range(len(tokens))],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def test_a_text_without_tokens_in_the_vocabulary_is_named() -> None:
    words = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")))
    assert words.encode("a") == [0]
    for encode in (words.encode, words.encode_part):
        with pytest.raises(ParameterError, match="the text 'b' cannot be written in this model's tokens"):
            encode("b")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "outrider" / "tokenizers"


def both_kinds() -> list[Tokenizer]:
    return [byte_level(), Tokenizer(gguf_tokenizer(sentencepiece_fields()))]


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


def test_special_tokens_are_recognised_in_text_and_not_shown() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("a<end>b")
    assert tokenizer.eos_token_ids[0] in ids
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<end>b"


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


def test_bad_words_are_taken_with_and_without_a_leading_space() -> None:
    tokenizer = byte_level()
    plain, spaced = tokenizer.encode_part("the"), tokenizer.encode_part(" the")
    assert set(bad_word_ids(tokenizer, ["the"])) == {tuple(plain), tuple(spaced)}
    sentencepiece = both_kinds()[1]
    forms = {tuple(map(sentencepiece.id_to_token, ids)) for ids in bad_word_ids(sentencepiece, ["ban"])}
    assert ("ban",) in forms
    assert (chr(0x2581) + "ban",) in forms


def test_sentencepiece_metadata_gives_bos_merges_and_byte_fallback() -> None:
    tokenizer = both_kinds()[1]
    ids = tokenizer.encode("a é")
    assert ids[0] == 1
    assert [tokenizer.id_to_token(i) for i in ids[1:]] == [chr(0x2581) + "a", chr(0x2581), "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "a é"


def test_an_invalid_byte_spoils_only_itself() -> None:
    tokenizer = both_kinds()[1]
    good, bad = tokenizer.encode_part("b é")[-2:], [3 + 0xFF]
    assert tokenizer.decode(good + bad) == "é\ufffd"


def gpt2_fields(**changes: Any) -> dict[str, Any]:
    tokens = [*BYTES, "12", "Ċ Ċ".replace(" ", ""), "<end>"]
    fields = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "merges": ["1 2", "Ċ Ċ"],
        "token_type": [*[1] * (len(tokens) - 1), 3],
        "bos_token_id": len(tokens) - 1,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "12", ["1", "2"]),
        ("gpt-2", "12", ["12"]),
        ("qwen2", "12", ["1", "2"]),
        ("llama-bpe", "12", ["<end>", "12"]),
        ("smollm", "\n\n7", ["ĊĊ", "7"]),
        ("gpt-2", "\n\n7", ["Ċ", "Ċ", "7"]),
    ],
)
def test_words_are_cut_as_the_pre_name_says(pre: str, text: str, expected: list[str]) -> None:
    assert gguf_tokenizer(gpt2_fields(pre=pre)).encode(text).tokens == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "mystery"}, "mystery"),
        ({"model": "bert"}, "bert"),
        ({"tokens": []}, "no tokenizer"),
        ({"merges": ["12"]}, "damaged"),
        ({"merges": ["q zz"]}, "do not fit"),
    ],
)
def test_unknown_or_damaged_metadata_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        gguf_tokenizer(gpt2_fields(**changes))


def test_the_cache_is_written_once_and_rebuilt_when_damaged(cache: Path) -> None:
    expected = gguf_tokenizer(gpt2_fields()).encode("a 12").ids
    (file,) = cache.iterdir()
    content = file.read_text()
    file.write_text(content[: len(content) // 2])
    assert gguf_tokenizer(gpt2_fields()).encode("a 12").ids == expected
    assert file.read_text() == content
    gguf_tokenizer(gpt2_fields(pre="gpt-2"))
    assert len(list(cache.iterdir())) == 2


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert gguf_tokenizer(gpt2_fields()).encode("12").tokens == ["1", "2"]


TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}\n{% endfor %}"
USER = [{"role": "user", "content": "hi"}]


def test_chat_renders_with_the_special_tokens() -> None:
    backend = byte_level()._backend
    template = ChatTemplate(
        TEMPLATE + "{% if add_generation_prompt %}[assistant]{% endif %}", {"bos_token": "<turn>"}
    )
    tokenizer = Tokenizer(backend, template=template)
    prompt = tokenizer.chat(USER)
    assert prompt.text == "<turn>[user]hi\n[assistant]"
    assert prompt.token_ids == tokenizer.encode_part(prompt.text)
    assert tokenizer.fingerprint != Tokenizer(backend, template=ChatTemplate(TEMPLATE, {})).fingerprint


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{% for m in messages %}{% break %}{% endfor %}z", "z"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_templates_may_use_what_transformers_offers(source: str, expected: str) -> None:
    assert ChatTemplate(source, {}).render(USER) == expected


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "list"),
        ([], "empty"),
        (["hi"], r"messages\[0\]"),
        ([{"role": "user"}], "content"),
        ([{"role": 3, "content": "hi"}], "role"),
        ([{"role": "tool", "content": "hi"}], "only users"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, message: str) -> None:
    source = "{% if messages[0].role != 'user' %}{{ raise_exception('only users') }}{% endif %}"
    with pytest.raises(ParameterError, match=message):
        ChatTemplate(source, {}).render(messages)


def test_a_model_without_template_and_a_broken_template_say_so() -> None:
    with pytest.raises(ParameterError, match="no chat template"):
        byte_level().chat(USER)
    with pytest.raises(ModelLoadError, match="line 1"):
        ChatTemplate("{% if %}", {})
    with pytest.raises(ParameterError, match="refuses"):
        ChatTemplate("{{ ''.__class__.__mro__ }}{{ messages.append(1) }}", {}).render(USER)


@pytest.mark.parametrize("prompt", [None, 3, b"bytes", "\ud800"])
def test_what_is_not_text_is_refused(prompt: Any) -> None:
    with pytest.raises(ParameterError):
        byte_level().encode(prompt)


def folder_source(folder: Path) -> Any:
    from outrider.models.load import ModelSource, SourceKind

    return ModelSource("test", SourceKind.FOLDER, folder)


def write_folder(folder: Path, **files: Any) -> None:
    backend = byte_level()._backend
    backend.enable_truncation(4)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": [3, 2]}, "config": {"eos_token_id": 9}}, (2, 3)),
        ({"generation_config": {}, "config": {"eos_token_id": 9}}, (9,)),
        ({"tokenizer_config": {"eos_token": {"content": "<turn>"}}}, (261,)),
        ({}, ()),
    ],
)
def test_eos_ids_come_from_the_first_file_that_names_them(
    tmp_path: Path, files: Any, expected: tuple[int, ...]
) -> None:
    write_folder(tmp_path, **files)
    tokenizer = load_tokenizer(folder_source(tmp_path))
    assert tokenizer.eos_token_ids == expected
    assert len(tokenizer.encode("longer than four")) > 4


def test_a_template_is_found_in_its_file_or_the_configuration(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}]
    write_folder(tmp_path, tokenizer_config={"chat_template": named, "eos_token": "<end>"})
    assert load_tokenizer(folder_source(tmp_path)).chat(USER).text == "<end>"
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert load_tokenizer(folder_source(tmp_path)).chat(USER).text == "file <end>"


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_tokenizer(folder_source(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        load_tokenizer(folder_source(tmp_path))


def test_a_transformers_tokenizer_is_wrapped_and_left_alone() -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level()._backend, eos_token="<end>")
    theirs.chat_template = TEMPLATE
    theirs.backend_tokenizer.enable_truncation(2)
    ours = Tokenizer.of_transformers(theirs)
    assert ours.encode("the <end>")[-1] == ours.eos_token_ids[0] == theirs.eos_token_id
    assert ours.chat(USER).text == "[user]hi\n"
    assert theirs.backend_tokenizer.truncation is not None
    with pytest.raises(ModelLoadError, match="int"):
        Tokenizer.of_transformers(3)


def smollm2() -> Tokenizer:
    from outrider.models.load import resolve

    return load_tokenizer(resolve("smollm2-135m"))


@pytest.mark.model
def test_smollm2_prompts_equal_the_reference_ids() -> None:
    folder = os.environ.get("OUTRIDER_PROMPTS")
    if not folder:
        pytest.skip("OUTRIDER_PROMPTS names no folder of prompt sets")
    tokenizer = smollm2()
    prompts = json.loads((Path(folder) / "peer_prompts.json").read_text())
    assert prompts
    for prompt in prompts:
        chat = tokenizer.chat([{"role": "user", "content": prompt["user"]}])
        assert chat.text == prompt["text"]
        assert chat.token_ids == prompt["ids"] == tokenizer.encode(prompt["text"])
    assert tokenizer.eos_token_ids == (2,)


@pytest.mark.model
@pytest.mark.full
def test_smollm2_equals_the_tokenizer_of_transformers() -> None:
    from transformers import AutoTokenizer

    from outrider.models.load import resolve

    path = resolve("smollm2-135m").path
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    # transformers does not read `tokenizer.ggml.pre`, which asks for one token per digit.
    digits = pre_tokenizers.Digits(individual_digits=True)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([digits, theirs.pre_tokenizer])
    assert theirs.normalizer is None or isinstance(theirs.normalizer, normalizers.Normalizer)
    tokenizer, chooser = smollm2(), random.Random(7)
    words = ("👩‍👩‍👧", "'s", "\u00a0", "def f(x):\n    return x", "<|im_start|>", "<|im_end|>", "   ", "\n\n")
    atoms = [
        *"abcXYZ  \t\n\r0123456789.,!?'-_(){}[]\"éüßñ中文日本語한국어αλж😀🇩🇪½²٣४",
        *words,
        " the",
        " 1984",
    ]
    for _ in range(200):
        text = "".join(chooser.choices(atoms, k=chooser.randint(1, 60)))
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids)
