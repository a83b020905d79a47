"""Chat templates, and what a model's folder says of its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vocabularies import (
    TEMPLATE,
    USER,
    byte_level,
)

from outrider.errors import ModelLoadError, ParameterError
from outrider.text import Tokenizer, load_tokenizer
from outrider.text.chat import ChatTemplate


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
