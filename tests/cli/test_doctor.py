"""`outrider doctor` on a tiny model of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_folder import letters, save_model

from outrider.cli.options import EngineSettings
from outrider.config import SpeculativeConfig
from outrider.models.native_library import library

KEYS = ["target", "dtype", "activations", "isa", "threads", "cost_ms", "bandwidth_gbs", "product_gflops",
        "weight_bytes", "error", "draft"]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model with room for the built-in prompts."""
    monkeypatch.delenv("OUTRIDER_PROMPTS", raising=False)
    save_model(tmp_path, 256, letters())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 600}))
    return tmp_path


@pytest.mark.native
def test_the_report_has_exactly_these_keys_and_plausible_figures(outrider, folder: Path) -> None:
    arguments = ("--dtype", "int8", "--activations", "int8", "--threads", "1")
    done = outrider("doctor", str(folder), "--json", *arguments)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert list(report) == KEYS
    assert [report[key] for key in KEYS[:3]] == ["native", "int8", "int8"]
    assert report["isa"] in library().instruction_sets()
    assert report["threads"] == 1
    assert list(report["cost_ms"]) == ["1", "2", "4", "8", "12", "16"]
    assert all(cost > 0 for cost in report["cost_ms"].values())
    assert report["bandwidth_gbs"] > 0.2
    assert report["product_gflops"] > 0.5
    assert 256 * 16 < report["weight_bytes"] < 4 * 256 * 64
    assert report["draft"] is None
    assert list(report["error"]) == ["kl_nats", "top1"]
    assert 0 < report["error"]["kl_nats"] < 0.1
    assert 0.5 < report["error"]["top1"] <= 1


@pytest.mark.native
def test_float32_has_no_error_against_itself(outrider, folder: Path) -> None:
    report = json.loads(outrider("doctor", str(folder), "--json", "--dtype", "float32", "--threads", "1").out)
    assert report["error"] == {"kl_nats": 0.0, "top1": 1.0}


@pytest.mark.parametrize("kind", ["torch", "hf"])
def test_other_targets_have_no_instruction_set(outrider, folder: Path, kind: str) -> None:
    report = json.loads(outrider("doctor", str(folder), "--json", "--target", kind, "--threads", "1").out)
    assert list(report) == KEYS
    assert [report[key] for key in KEYS[:5]] == [kind, "float32", "float32", None, 1]
    assert report["error"]["kl_nats"] < 1e-8
    assert report["weight_bytes"] == pytest.approx(4 * (256 * 16 + 7 * 16 * 16), rel=0.02)


def test_the_table_names_the_prompts_and_the_cost_of_rows(outrider, folder: Path) -> None:
    done = outrider("doctor", str(folder), "--threads", "1")
    assert done.code == 0, done.err
    assert "built-in prompts" in done.out
    assert "1: " in done.out
    assert "(1.00x)" in done.out
    assert "\x1b" not in done.out


def test_drafts_are_timed_by_depth_beside_a_pass(outrider, folder: Path) -> None:
    arguments = (
        "doctor",
        str(folder),
        "--threads",
        "1",
        "--method",
        "ngram",
        "--num-speculative-tokens",
        "3",
    )
    report = json.loads(outrider(*arguments, "--json").out)
    draft = report["draft"]
    assert (draft["method"], draft["model"]) == (["ngram"], None)
    assert list(draft["cost_ms"]) == ["1", "2", "3"]
    assert all(cost > 0 for cost in draft["cost_ms"].values())
    assert draft["nodes"]["1"] == 1, "a text said twice has something to copy"
    assert draft["share_of_a_pass"] == pytest.approx(draft["cost_ms"]["3"] / report["cost_ms"]["1"], rel=0.2)
    assert (draft["acceptance"], draft["warning"]) == (None, None)
    assert "of a pass, nodes: 1)" in outrider(*arguments).out


def test_a_head_is_measured_and_compared(outrider, folder: Path, tmp_path: Path) -> None:
    head = tmp_path / "head"
    state = {"0.0.linear.weight": torch.zeros(16, 16), "0.0.linear.bias": torch.zeros(16)}
    head.mkdir()
    save_file(state | {"0.1.weight": torch.zeros(256, 16)}, head / "medusa_lm_head.safetensors")
    (head / "config.json").write_text(json.dumps({"medusa_num_heads": 1, "medusa_num_layers": 1}))
    arguments = ("doctor", str(folder), "--threads", "1", "--method", "medusa", "--draft-model", str(head))
    draft = json.loads(outrider(*arguments, "--json").out)["draft"]
    assert draft["model"] == str(head)
    assert len(draft["acceptance"]) == 1
    assert draft["acceptance"][0] < 0.1, "it says the same of every token"
    assert "use a head that was trained for this target" in draft["warning"]


def test_a_context_without_room_for_any_question_has_no_error(outrider, folder: Path) -> None:
    save_model(folder, 256, letters())
    report = json.loads(outrider("doctor", str(folder), "--json", "--threads", "1").out)
    assert report["error"] is None
    assert report["cost_ms"]["16"] > 0


@pytest.mark.native
def test_threads_on_the_command_line_are_those_of_the_target_that_takes_them(folder: Path) -> None:
    torch.set_num_threads(2)
    for target, threads, of_torch in (("native", None, 2), ("torch", 3, 3), ("native", 3, 1)):
        EngineSettings(str(folder), target, "auto", "auto", "cpu", threads, SpeculativeConfig()).open()
        assert torch.get_num_threads() == of_torch
