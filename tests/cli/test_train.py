"""`outrider train` from the command line: what it prints, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "train"))

from tiny_target import save_target

SHORT = (
    "--max-new-tokens",
    "8",
    "--steps",
    "6",
    "--batch-tokens",
    "200",
    "--target",
    "torch",
    "--dtype",
    "float32",
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("targets") / "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for number, path in enumerate(paths):
        path.write_text("".join(f"ask {i} of file {number}\n" for i in range(20)))
    return [str(path) for path in paths]


def test_a_run_tells_its_cost_its_course_and_its_gain(
    outrider, target: str, prompts: list[str], tmp_path: Path
) -> None:
    """Files may follow --prompts, as a shell's pattern gives them."""
    shape = ("--target-layer-ids", "0,1,2", "--draft-vocab-size", "64", "--ttt-steps", "2")
    shown = outrider(
        "train", "eagle3", target, "--prompts", *prompts, "--output", str(tmp_path / "head"), *shape, *SHORT
    )
    assert shown.code == 0, shown.err
    for part in ("40 prompts, at most", "disk at most", "training 6 steps on 32 answers", "step 6 of 6",
                 "live on held-out prompts", "x plain decoding, 0 texts differ", "training.html"):  # fmt: skip
        assert part in shown.out
    found = json.loads((tmp_path / "head" / "provenance.json").read_text())
    assert found["prompts"].keys() == {"one.txt", "two.txt"}


def test_json_is_one_object(outrider, target: str, prompts: list[str], tmp_path: Path) -> None:
    shown = outrider(
        "train", "draft_model", target, "--prompts", *prompts, "--output", str(tmp_path / "draft"), "--layers", "0,1",
        "--draft-vocab-size", "64", *SHORT, "--json",
    )  # fmt: skip
    assert shown.code == 0, shown.err
    figures = json.loads(shown.out)
    assert figures["differing_texts"] == 0
    assert figures["tokens_per_pass"] >= 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layers", "0,x"], "--layers takes whole numbers"),
        (["--memory", "nan"], "--memory must be 0 GB or more, not nan"),
        (["--memory=-1"], "--memory must be 0 GB or more, not -1"),
        (["--num-heads", "3"], "num_heads is a setting of medusa"),
        (["--budget", "tomorrow"], "budget must be a time like 15m"),
        (["--loss-fn", "mse"], "loss_fn must be one of kl_div"),
        (["--export", "transformers"], "form must be one of eagle3, speculators, not 'transformers'"),
        (["--budget", "5m", "--steps", "3"], "budget and steps both say"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line(outrider, arguments: list[str], says: str) -> None:
    shown = outrider("train", "eagle3", "smollm2-135m", "--prompts", "a", "--output", "b", *arguments)
    assert shown.code == 2
    assert says in shown.err
    assert shown.err.count("\n") == 1


def test_each_process_loads_the_target_on_a_device_of_its_own(
    outrider, monkeypatch: pytest.MonkeyPatch, prompts: list[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "77")
    arguments = ("--prompts", prompts[0], "--output", str(tmp_path / "head"), "--device", "cuda")
    shown = outrider("train", "eagle3", "smollm2-135m", *arguments)
    assert (shown.code, "device 'cuda:77' is not on this machine" in shown.err) == (2, True), shown.err
