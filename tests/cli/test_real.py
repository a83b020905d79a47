"""The installed command on real files: models that do not load, and SmolLM2 itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.models.native_library import library

MODEL = "smollm2-135m"


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outrider", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
    )


def assert_one_error_line(err: str, told: str) -> None:
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert told in err


@pytest.mark.parametrize("name", ["smollm3-135m", "no/such/path/model.gguf"])
def test_an_unknown_model_is_one_line(outrider, name) -> None:
    failed = outrider("generate", name, "hello")
    assert (failed.code, failed.out) == (2, "")
    assert_one_error_line(failed.err, name)


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_a_corrupt_file_is_one_line(outrider, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    for arguments in (["generate", str(path), "hello"], ["inspect", str(path)]):
        failed = outrider(*arguments)
        assert (failed.code, failed.out) == (2, "")
        assert_one_error_line(failed.err, "broken.gguf")


def test_a_folder_without_a_model_is_one_line(outrider, tmp_path: Path) -> None:
    failed = outrider("inspect", str(tmp_path))
    assert failed.code == 2
    assert_one_error_line(failed.err, tmp_path.name)


@pytest.mark.model
def test_generate_reads_a_pipe_and_prints_one_object() -> None:
    prompt = "one two three four one two three four one two"
    arguments = (MODEL, "-", "--max-tokens", "16", "--json")
    plain = command("generate", *arguments, stdin=prompt)
    assert plain.returncode == 0, plain.stderr
    fast = command("generate", *arguments, "--method", "ngram", stdin=prompt)
    first, second = json.loads(plain.stdout), json.loads(fast.stdout)
    assert first["text"] == second["text"]
    assert first["usage"] == second["usage"]
    assert first["metrics"]["speculative_decoding"] is None
    assert second["metrics"]["speculative_decoding"]["tokens_per_pass"] > 1.0
    assert first["timings"]["prompt_ms"] > 0
    assert first["timings"]["predicted_per_second"] > 0


WATCHED = """
import sys
from outrider.cli.main import run
code = run({arguments!r})
sys.exit("imported transformers" if "transformers" in sys.modules else code)
"""


@pytest.mark.model
@pytest.mark.native
@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", MODEL, "hello", "--max-tokens", "4"],
        ["generate", MODEL, "hello", "--chat", "--max-tokens", "4", "--method", "draft_model", "-md", MODEL],
        ["inspect", MODEL, "--dtype", "int8"],
    ],
)
def test_the_compiled_decoder_never_imports_transformers(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED.format(arguments=arguments)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    assert done.stdout


@pytest.mark.model
@pytest.mark.native
def test_the_first_token_is_there_within_three_and_a_half_seconds_of_a_later_start() -> None:
    seconds = []
    for _ in range(
        4
    ):  # the first start fills the cache; the best of the others, since a busy machine only adds
        begin = time.perf_counter()
        arguments = (
            sys.executable,
            "-m",
            "outrider",
            "generate",
            MODEL,
            "Once upon a time",
            "--max-tokens",
            "4",
        )
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.read(1)
            seconds.append(time.perf_counter() - begin)
    assert min(seconds[1:]) < 3.5


@pytest.mark.model
@pytest.mark.native
def test_inspect_and_demo_say_that_the_text_is_kept_bitwise() -> None:
    report = json.loads(
        command("inspect", MODEL, "--dtype", "int8", "--activations", "int8", "--json").stdout
    )
    shown = {name: report[name] for name in ("target", "dtype", "activations", "row_invariant", "guarantee")}
    assert shown == {
        "target": "native", "dtype": "int8", "activations": "int8", "row_invariant": True, "guarantee": "same_text",
    }  # fmt: skip
    assert report["isa"] in library().instruction_sets()
    done = command("demo", "--max-tokens", "12", "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert "target native, dtype gguf, activations bfloat16" in done.stdout
    assert "bitwise equal at any width" in done.stdout


@pytest.mark.model
@pytest.mark.native
@pytest.mark.full
def test_doctor_measures_the_model() -> None:
    done = command("doctor", "--json", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["target"], report["dtype"], report["activations"]) == ("native", "bfloat16", "bfloat16")
    assert report["weight_bytes"] > 2 * 130e6
    assert 0 < report["error"]["kl_nats"] <= 0.001
    assert report["error"]["top1"] >= 0.98


@pytest.mark.model
def test_inspect_describes_the_model_and_its_pair_with_itself() -> None:
    done = command("inspect", MODEL, "--draft", MODEL, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    shape = {key: report[key] for key in ("family", "layers", "hidden_size", "vocab_size")}
    assert shape == {"family": "llama", "layers": 30, "hidden_size": 576, "vocab_size": 49152}
    assert report["tokenizer"]["kind"] == "BPE"
    assert report["device"] == "cpu"
    draft = {name: report[name] for name in ("target", "dtype", "activations", "isa", "device")}
    draft["threads"] = report["pair"]["draft"]["threads"]
    assert report["pair"] == {"verdict": "compatible", "first_difference": None, "draft": draft}


@pytest.mark.model
def test_demo_prints_one_object_with_all_rows() -> None:
    done = command("demo", "--max-tokens", "6", "--dtype", "float32", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["rows"]) == 6
    assert all(row["plain_tps"] > 0 and row["spec_tps"] > 0 for row in report["rows"])
    assert all(row["same_text"] for row in report["rows"])
    assert report["same_text"] is True


@pytest.mark.model
def test_a_prompt_over_the_context_of_the_model_is_one_line() -> None:
    failed = command("generate", MODEL, "-", stdin="word " * 9000)
    assert (failed.returncode, failed.stdout) == (2, "")
    *waiting, told = failed.stderr.splitlines(keepends=True)
    assert all(line.startswith("loading ") for line in waiting), failed.stderr
    assert_one_error_line(told, "shorten the prompt")
