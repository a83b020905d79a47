"""Every draft method on the command line: the same text as without one, and garbage told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from method_rounds import head_for

from outrider.config import BUILT_IN_METHODS
from outrider.models.head_formats.write import write_head

FORMS = {"medusa": "medusa", "eagle": "eagle", "eagle3": "eagle3"}
GARBAGE = {
    "nothing": {},
    "no JSON": {"config.json": b"{", "model.safetensors": b"\x08\0\0\0\0\0\0\0{}      "},
    "no tensors": {"config.json": b"{}", "model.safetensors": b"\x02\0\0\0\0\0\0\0{}"},
    "noise": {"config.json": b"{}", "model.safetensors": bytes(range(256))},
    "a pickle": {"config.json": b"{}", "pytorch_model.bin": b"cos\nsystem\n(S'true'\ntR."},
}


def flags(name: str, target: object, folder: Path) -> list[str]:
    if name == "self_draft":
        return ["--speculative-config", json.dumps({"assistant_early_exit": 3})]
    if name not in FORMS:
        return []
    write_head(head_for(name, target), folder / name, FORMS[name])  # type: ignore[arg-type]
    return ["--draft-model", str(folder / name)]


@pytest.mark.parametrize("name", [name for name in BUILT_IN_METHODS if name not in ("none", "draft_model")])
def test_generate_and_demo_take_every_method(name: str, outrider, target, tmp_path: Path) -> None:
    given = flags(name, target, tmp_path)
    asked = ["generate", "toy", "abcabcabc", "--max-tokens", "24", "--json"]
    plain, fast = outrider(*asked), outrider(*asked, "--method", name, *given)
    assert (fast.code, fast.err) == (0, ""), fast.err
    one, other = json.loads(plain.out), json.loads(fast.out)
    assert one["token_ids"] == other["token_ids"]
    assert other["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    shown = outrider("demo", "--max-tokens", "8", "--method", name, *given)
    assert shown.code == 0, shown.err


def test_demo_takes_the_method_that_a_key_implies(outrider, target) -> None:
    config = '{"recycling_successors": 3}'
    shown = outrider("demo", "--max-tokens", "8", "--json", "--speculative-config", config)
    assert json.loads(shown.out)["method"] == ["recycling"]


@pytest.mark.parametrize("files", GARBAGE)
@pytest.mark.parametrize("name", FORMS)
def test_a_folder_of_garbage_is_told_in_one_line(
    name: str, files: str, outrider, target, tmp_path: Path
) -> None:
    for file, content in GARBAGE[files].items():
        (tmp_path / file).write_bytes(content)
    failed = outrider("generate", "toy", "abc", "--method", name, "--draft-model", str(tmp_path))
    assert (failed.code != 0, failed.out) == (True, "")
    assert failed.err.startswith(f"error: speculative_config 'model': {tmp_path}")
    assert failed.err.count("\n") == 1


def test_a_head_for_another_method_is_refused_naming_both(outrider, target, tmp_path: Path) -> None:
    given = flags("eagle3", target, tmp_path)
    failed = outrider("generate", "toy", "abc", "--method", "medusa", *given)
    assert "'eagle3'" in failed.err
    assert "'medusa'" in failed.err
    assert failed.err.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "demo", "chat"])
def test_help_names_every_method(command: str, outrider) -> None:
    told = " ".join(outrider(command, "--help").out.split())
    assert all(name in told for name in BUILT_IN_METHODS)
