"""Prompts: which records are read, how they are rendered, what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from outrider.errors import ConfigError
from outrider.text import Tokenizer
from outrider.text.chat import ChatTemplate
from outrider.train.prompts import LEAST_PROMPTS, Prompt, file_hashes, read_prompts, render, split

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def written(folder: Path, name: str, *records: Any) -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def byte_tokenizer(template: str | None = None) -> Tokenizer:
    ids = {token: i for i, token in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[]))
    return Tokenizer(backend, template=None if template is None else ChatTemplate(template, {}))


@pytest.mark.parametrize(
    ("record", "asked"),
    [
        ("hello", ["hello"]),
        ({"prompt": "hello", "completion": "no"}, ["hello"]),
        ({"question": "why?", "answer": "so"}, ["why?"]),
        ({"turns": ["first", "second"]}, ["first"]),
        ({"instruction": "add", "input": "1 2", "output": "3"}, ["add\n\n1 2"]),
        ({"instruction": "sing", "input": ""}, ["sing"]),
        ({"instruction": "add", "instances": [{"input": "1", "output": "2"}]}, ["add\n\n1"]),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, ["s", "u"]),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
                               {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]},
            ["a", "b", "c"],
        ),
    ],
)  # fmt: skip
def test_records_of_the_common_shapes_are_asked_without_their_answers(
    tmp_path: Path, record: Any, asked: list[str]
) -> None:
    [found] = read_prompts([written(tmp_path, "some.jsonl", record)])
    assert [message["content"] for message in found.messages] == asked
    assert found.source == "some.jsonl"
    assert found.messages[-1]["role"] == "user"


def test_text_holds_a_prompt_per_line_and_json_a_list(tmp_path: Path) -> None:
    text, listed = tmp_path / "some.txt", tmp_path / "some.json"
    text.write_text("one\n\n two \n")
    listed.write_text(json.dumps([{"prompt": "three"}, "four"]))
    found = read_prompts([text, listed])
    assert [one.messages[0]["content"] for one in found] == ["one", "two", "three", "four"]


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85"])
def test_a_record_may_hold_what_only_python_takes_for_the_end_of_a_line(tmp_path: Path, inside: str) -> None:
    path = tmp_path / "a.jsonl"
    records = [json.dumps({"prompt": f"{number}{inside}x"}, ensure_ascii=False) for number in range(2)]
    path.write_bytes("\r\n".join(records).encode())
    assert [one.messages[0]["content"] for one in read_prompts([path])] == [f"0{inside}x", f"1{inside}x"]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8-sig")
    (tmp_path / "b.jsonl").write_text('"two"\n', encoding="utf-8-sig")
    found = read_prompts([tmp_path / "a.txt", tmp_path / "b.jsonl"])
    assert [one.messages[0]["content"] for one in found] == ["one", "two"]


def test_what_is_asked_twice_is_asked_once(tmp_path: Path) -> None:
    first = written(tmp_path, "a.jsonl", {"prompt": "x"}, {"question": "x"}, {"prompt": "y"})
    second = written(tmp_path, "b.jsonl", {"prompt": "y"}, {"prompt": "z"})
    assert [one.messages[0]["content"] for one in read_prompts([first, second])] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"prompt": "fine"}\n{"text": "what is this"}\n', "bad.jsonl:2: no prompt in a record of text"),
        ('{"prompt": 3}\n', "bad.jsonl:1"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}\n', "bad.jsonl:1"),
        ('{"prompt": "fine"}\n\n{"prompt": \n', "bad.jsonl:3: is not JSON"),
        (f'{{"prompt": "fine", "id": {"9" * 5000}}}\n', "bad.jsonl:1: is not JSON"),
        ("[" * 100_000, "bad.jsonl:1: is not JSON"),
    ],
    ids=["no known shape", "no text", "no user's turn", "torn", "a vast number", "deep"],
)  # fmt: skip
def test_a_record_without_a_prompt_is_named_by_file_and_line(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=names):
        read_prompts([path])


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl"):
        read_prompts([tmp_path / "absent.jsonl"])
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes\.txt"):
        read_prompts([tmp_path / "bytes.txt"])


def test_prompts_go_through_the_template_where_there_is_one(tmp_path: Path) -> None:
    asked = read_prompts([written(tmp_path, "a.jsonl", {"prompt": "hi"}, {"prompt": "a longer one"})])
    plain, chat = byte_tokenizer(), byte_tokenizer(TEMPLATE)
    assert [list(p.tokens) for p in render(asked[:1], plain, 99)] == [plain.encode("hi")]
    [short] = render(asked, chat, len("<user>hi>"))
    assert list(short.tokens) == plain.encode("<user>hi>"), "the longer one is left out"


def test_a_prompt_of_a_single_token_is_left_out(tmp_path: Path) -> None:
    asked = read_prompts([written(tmp_path, "a.jsonl", {"prompt": "h"}, {"prompt": "hi"})])
    assert [len(prompt.tokens) for prompt in render(asked, byte_tokenizer(), 99)] == [2]


def test_what_comes_to_the_same_tokens_is_one_prompt(tmp_path: Path) -> None:
    """Else one spelling could be trained on and the other be held out."""
    asked = read_prompts(
        [written(tmp_path, "a.jsonl", {"prompt": "hi"}, {"prompt": "hi "}, {"prompt": "ho"})]
    )
    trimming = byte_tokenizer("{% for m in messages %}{{ m.content | trim }}{% endfor %}")
    assert [p.tokens for p in render(asked, trimming, 99)] == [
        tuple(trimming.encode(text)) for text in ("hi", "ho")
    ]


def prompts(count: int) -> list[Prompt]:
    return [Prompt((i, i + 1, 7), "a") for i in range(count)]


def test_held_out_prompts_are_apart_and_chosen_by_themselves() -> None:
    found = split(prompts(200))
    assert len(found.held_out) == 200 // 16
    assert not set(found.train) & set(found.held_out)
    assert set(found.train) | set(found.held_out) == set(prompts(200))
    assert split(prompts(200)[::-1]) == found, "the order of the files has no part in it"


def test_few_prompts_leave_none_to_judge_by() -> None:
    with pytest.raises(ConfigError, match=f"{LEAST_PROMPTS - 1} usable prompts leave no held-out data"):
        split(prompts(LEAST_PROMPTS - 1))
    assert len(split(prompts(LEAST_PROMPTS)).held_out) == 8


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.txt").write_text(name)
    paths = [tmp_path / "a" / "some.txt", tmp_path / "b" / "some.txt"]
    assert file_hashes(paths[:1]).keys() == {"some.txt"}
    found = file_hashes(paths)
    assert found.keys() == {"a/some.txt", "b/some.txt"}
    assert len(set(found.values())) == 2
