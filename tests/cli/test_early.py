"""What is wrong with a setting whatever the model is, is told before a model is read, by every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from outrider import LLM, generate_with
from outrider.errors import ConfigError
from outrider.models.hf import HfTarget

MODEL = "smollm2-135m"
COMMANDS = {
    "generate": ["generate", MODEL, "hello"],
    "chat": ["chat", MODEL],
    "demo": ["demo"],
    "doctor": ["doctor", MODEL],
}
DRAFTING = (
    (["--method", "ngrm"], "unknown method 'ngrm'; did you mean 'ngram'?"),
    (["--method", "ngram,sufix"], "unknown method 'sufix'; did you mean 'suffix'?"),
    (["--method", "eagle3", "--speculative-config", '{"draft_dtype": "int4"}'], "not 'int4'"),
    (["-md", "x", "--speculative-config", '{"draft_dtype": "int7"}'], "'draft_dtype': dtype must be one of"),
    (["-md", "x", "--speculative-config", '{"draft_dtype": "float16"}'], "'draft_dtype': dtype 'float16'"),
    (["-md", "x", "--speculative-config", '{"draft_device": "gpu"}'], "draft_device 'gpu' is unknown"),
    (["--method", "auto", "--speculative-config", '{"draft_dtype": "int7"}'], "draft_dtype must be one of"),
)
LOADING = (
    (["--dtype", "int7"], "dtype must be one of"),
    (["--dtype", "float16"], "dtype 'float16' is not supported on the CPU"),
    (["--dtype", "int8", "--target", "torch"], "dtype 'int8' needs target 'native'"),
    (["--dtype", "bfloat16", "--activations", "int8"], "do not go with dtype 'bfloat16'"),
    (["--activations", "float32"], "do not go with dtype 'auto'"),
    (["--threads", "5000"], "threads must be a whole number from 1 to 1024"),
)


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be looked for, nor wrapped."""

    def read(*model: object, **given: object) -> None:
        raise AssertionError(f"{model} is read")

    for place in ("outrider.llm.resolve", "outrider.llm.load"):
        monkeypatch.setattr(place, read)
    monkeypatch.setattr(HfTarget, "wrap", read)


def refused(outrider, arguments: list[str], told: str) -> None:
    failed = outrider(*arguments)
    assert (failed.code, failed.out, failed.err.count("\n")) == (2, "", 1), failed.err
    assert told in failed.err


@pytest.mark.parametrize(("settings", "told"), [*DRAFTING, *LOADING])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_before_it_reads(command: str, settings, told: str, outrider) -> None:
    refused(outrider, [*COMMANDS[command], *settings], told)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        *LOADING,
        (["--draft", MODEL, "--draft-dtype", "int7"], "'draft_dtype': dtype must be one of"),
        (["--draft", MODEL, "--draft-device", "gpu"], "draft_device 'gpu' is unknown"),
    ],
)
def test_inspect_refuses_before_it_reads(settings, told: str, outrider) -> None:
    refused(outrider, ["inspect", MODEL, *settings], told)


def test_train_looks_at_its_files_first(outrider, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "some.jsonl").write_text('{"words": 1}\n')
    for prompts, output, told in (
        ("none.jsonl", "head", "no such file of prompts"),
        ("some.jsonl", "head", "some.jsonl:1: no prompt in a record of words"),
        ("some.jsonl", ".", "holds a finished draft"),
    ):
        arguments = ("--prompts", str(tmp_path / prompts), "--output", str(tmp_path / output))
        refused(outrider, ["train", "eagle3", MODEL, *arguments], told)


def test_doctor_looks_at_its_questions_first(outrider, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OUTRIDER_PROMPTS", str(tmp_path))
    refused(outrider, ["doctor", MODEL], "unset OUTRIDER_PROMPTS")


@pytest.mark.parametrize(("settings", "told"), DRAFTING)
def test_the_library_refuses_before_it_reads(settings: list[str], told: str) -> None:
    config = {} if "-md" not in settings else {"method": "draft_model", "model": "x"}
    config |= {"method": settings[1].split(",")} if settings[0] == "--method" else {}
    config |= json.loads(settings[-1]) if "--speculative-config" in settings else {}
    with pytest.raises(ConfigError) as raised:
        LLM(MODEL, speculative_config=config)
    assert told in str(raised.value)


def test_a_callers_model_is_not_wrapped_for_a_method_that_nobody_has() -> None:
    model = torch.nn.Linear(2, 2)
    model.config = None  # type: ignore[assignment]
    for call in (LLM.from_model, lambda *given, **settings: generate_with(*given, "hello", **settings)):
        with pytest.raises(ConfigError, match="did you mean 'ngram'"):
            call(model, None, speculative_config={"method": "ngrm"})
