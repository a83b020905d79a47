"""A whole run on a tiny target: from prompts to a draft that decodes, whatever interrupts it."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_target import ARCH, save_target

from outrider import LLM, SamplingParams
from outrider.core.completion import SpeculationStats
from outrider.errors import ConfigError
from outrider.models.eagle_shapes import fresh_head
from outrider.models.head_formats.write import write_head
from outrider.models.load import resolve
from outrider.train import answers
from outrider.train.curve import Curve, Evaluation, TrainPoint
from outrider.train.distributed import ALONE
from outrider.train.eagle3 import eagle3_config
from outrider.train.estimate import Estimate
from outrider.train.inputs import Inputs
from outrider.train.job import Report, train_draft
from outrider.train.live import Live
from outrider.train.plan import Plan
from outrider.train.settings import DraftShape, TrainSettings

SHAPES = {
    "eagle3": DraftShape("eagle3", 64, (0, 1, 2), ttt_steps=2),
    "medusa": DraftShape("medusa", 64, num_heads=2),
    "draft_model": DraftShape("draft_model", 64, ttt_steps=2, layers=(0, 1)),
    "self_draft": DraftShape("draft_model", 64, ttt_steps=2, early_exit=1),
}


class Heard:
    """An observer that writes down what it hears, and may stop the run there."""

    def __init__(self, stop: str | None = None, count: int = 1) -> None:
        self.said: list[str] = []
        self.stages: list[str] = []
        self.plan: Plan | None = None
        self.found: Estimate | None = None
        self._stop, self._left = stop, count

    def estimated(self, found: Estimate) -> None:
        self.found = found
        self._hear("estimated")

    def doing(self, what: str) -> None:
        self.stages.append(what)

    def answered(self, texts: int, tokens: int, seconds: float) -> None:
        self._hear("answered")

    def planned(self, plan: Plan) -> None:
        self.plan = plan
        self._hear("planned")

    def began(self, steps: int, curve: Curve) -> None:
        self._hear("began")

    def stepped(self, point: TrainPoint) -> None:
        self._hear("stepped")

    def evaluated(self, evaluation: Evaluation) -> None:
        self._hear("evaluated")

    def saved(self, step: int) -> None:
        self._hear("saved")

    def proven(self, live: Live, offline: SpeculationStats) -> None:
        self._hear("proven")

    def _hear(self, what: str) -> None:
        self.said.append(what)
        if what == self._stop:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_target(tmp_path_factory.mktemp("targets") / "tiny")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "some.txt"
    path.write_text("".join(f"prompt number {i} of {i % 7}\n" for i in range(40)))
    return path


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_GROUP", 16)


@pytest.fixture
def settings(prompts: Path, tmp_path: Path) -> TrainSettings:
    return TrainSettings(
        SHAPES["eagle3"], (prompts,), tmp_path / "head", steps=12, most_new=12, batch_tokens=200, seed=1
    )


def run(target: str, settings: TrainSettings, heard: Heard | None = None) -> Report:
    llm = LLM(target, target="torch", dtype="float32")
    report = train_draft(
        llm,
        resolve(target),
        Inputs.read(settings),
        heard or Heard(),
        world=ALONE,
        command=("outrider", "train"),
    )
    assert report is not None, "this process is the first"
    return report


@pytest.mark.parametrize("method", SHAPES)
def test_a_run_leaves_a_draft_with_its_provenance(target: str, settings: TrainSettings, method: str) -> None:
    heard = Heard()
    report = run(target, replace(settings, shape=SHAPES[method]), heard)
    folder = settings.output
    assert report.folder == folder
    assert list(dict.fromkeys(heard.said))[:3] == ["estimated", "answered", "planned"]
    assert heard.said[-1] == "proven"
    assert list(dict.fromkeys(heard.stages)) == [
        "answering 8 held-out prompts", "judging 8 held-out texts",
        "decoding 8 held-out prompts with the draft, some also without",
    ]  # fmt: skip
    found = json.loads((folder / "provenance.json").read_text())
    assert found["command"] == "outrider train"
    assert found["prompts"].keys() == {"some.txt"}
    assert found["figures"]["train_texts"] == 32
    assert found["figures"]["differing_texts"] == 0
    assert "tokens per pass" in (folder / "training.html").read_text()
    card = (folder / "README.md").read_text()
    assert f'"method": "{method}"' in card
    assert "Prompts: some.txt." in card
    llm = LLM(target, target="torch", dtype="float32",
              speculative_config={"method": method, "model": str(folder), "check_draft": False})  # fmt: skip
    [done] = llm.generate("prompt number 3", SamplingParams(temperature=0.0, max_tokens=12))
    assert done.stats.num_draft_tokens > 0, "the folder drafts"


@pytest.mark.parametrize("method", SHAPES)
def test_what_was_counted_offline_is_what_decoding_comes_to(
    target: str, settings: TrainSettings, method: str
) -> None:
    report = run(target, replace(settings, shape=SHAPES[method]))
    assert report.live.differing == 0
    assert abs(report.live.apart(report.offline)) <= 0.02


@pytest.mark.parametrize(("stop", "count"), [("answered", 1), ("planned", 1), ("stepped", 5), ("proven", 1)])
def test_an_interrupted_run_comes_to_the_same_draft(
    target: str, settings: TrainSettings, stop: str, count: int
) -> None:
    whole = replace(settings, output=settings.output.with_name("whole"))
    report = run(target, whole)
    with pytest.raises(KeyboardInterrupt):
        run(target, settings, Heard(stop, count))
    assert not (settings.output / "config.json").exists(), "what is not finished is no draft"
    again = run(target, settings)
    assert again.curve == report.curve
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (settings.output, whole.output))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].float().allclose(theirs[name].float(), atol=1e-6) for name in ours)


def test_a_budget_ends_the_run(target: str, settings: TrainSettings) -> None:
    heard = Heard()
    report = run(target, replace(settings, steps=None, budget=4.0), heard)
    assert "timing steps, and a judgement of 8 held-out texts" in heard.stages
    assert heard.plan is not None
    assert heard.plan.steps == report.curve.points[-1].step


def test_runs_share_answers(target: str, settings: TrainSettings, tmp_path: Path) -> None:
    first = replace(settings, answers=tmp_path / "answers")
    run(target, first)
    heard = Heard()
    run(target, replace(first, shape=SHAPES["medusa"], output=tmp_path / "heads"), heard)
    assert "answered" not in heard.said


def test_the_estimate_counts_answers_that_are_there(
    target: str, settings: TrainSettings, tmp_path: Path
) -> None:
    shared = replace(settings, answers=tmp_path / "answers")
    before, after = Heard(), Heard("estimated")
    run(target, shared, before)
    with pytest.raises(KeyboardInterrupt):
        run(target, replace(shared, output=tmp_path / "again"), after)
    assert before.found is not None
    assert after.found is not None
    assert (before.found.answered, after.found.answered) == (0, 40)
    lines = [line for name in ("answers.jsonl", "held_out.jsonl")
             for line in (tmp_path / "answers" / name).read_text().splitlines()]  # fmt: skip
    texts = [json.loads(line) for line in lines]
    assert after.found.most_tokens == sum(len(text["prompt"]) + len(text["answer"]) for text in texts)
    assert after.found.most_tokens <= before.found.most_tokens
    assert after.found.disk_bytes < before.found.disk_bytes
    assert "40 prompts, 40 of them answered already, at most" in after.found.lines()[0]


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_training_goes_on_from_a_trained_head(
    target: str, settings: TrainSettings, tmp_path: Path, method: str
) -> None:
    first = replace(settings, shape=SHAPES[method], answers=tmp_path / "answers")
    trained = run(target, first)
    shape = DraftShape(method, ttt_steps=first.shape.ttt_steps)
    later = replace(
        first, shape=shape, output=tmp_path / "later", start_from=str(first.output), batch_tokens=150
    )
    again = run(target, later)
    begin, end = again.curve.evaluations[0], trained.curve.evaluations[-1]
    assert begin.step == 0
    assert begin.overlaps == pytest.approx(end.overlaps, abs=0.005), "what was learnt is there, in bfloat16"
    assert begin.overlaps[0] > trained.curve.evaluations[0].overlaps[0]
    found = json.loads((later.output / "provenance.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", found["settings"]["start_from"])


def marks_changed(folder: Path, **marks: Any) -> None:
    path = folder / "target.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **marks}))


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({"chat_template": "f00d"}, "another chat template f00d"),
        ({"tokenizer": "beef"}, "another tokenizer beef"),
        ({"most_new": 7}, "answers of up to 7 tokens, not 12: give --max-new-tokens 7, or answer anew"),
    ],
)
def test_answers_through_another_template_or_tokenizer_or_of_another_length_are_refused(
    target: str, settings: TrainSettings, tmp_path: Path, marks: dict[str, Any], says: str
) -> None:
    shared = replace(settings, answers=tmp_path / "answers")
    with pytest.raises(KeyboardInterrupt):
        run(target, shared, Heard("planned"))
    marks_changed(tmp_path / "answers", **marks)
    with pytest.raises(ConfigError, match=says):
        run(target, shared)


@pytest.mark.parametrize("file", ["target.json", "plan.json"])
@pytest.mark.parametrize("content", ["", "[1]", "5", "[" * 100_000], ids=["empty", "list", "number", "deep"])
def test_a_damaged_file_of_a_run_is_named(
    target: str, settings: TrainSettings, file: str, content: str
) -> None:
    settings.work.mkdir(parents=True)
    (settings.work / file).write_text(content)
    with pytest.raises(ConfigError, match=rf"{file} cannot be read \(.*\): remove"):
        run(target, settings)


@pytest.mark.parametrize("change", [{"run": 5}, {"steps": "x"}, {"texts": -1}, {"autocast": "half"}], ids=str)
def test_a_plan_of_other_content_is_named(
    target: str, settings: TrainSettings, change: dict[str, Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(target, settings, Heard("planned"))
    path = settings.work / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=r"plan.json cannot be read"):
        run(target, settings)


@pytest.mark.parametrize("place", ["head", "head/training", "answers"])
def test_what_stands_in_the_way_is_named(
    target: str, settings: TrainSettings, tmp_path: Path, place: str
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot be written \(.*\): choose another --output or --answers"):
        run(target, replace(settings, answers=tmp_path / "answers" if place == "answers" else None))


def few_prompts(settings: TrainSettings) -> TrainSettings:
    path = settings.output.with_name("few.txt")
    path.write_text("one\ntwo\n")
    return replace(settings, prompts=(path,))


def start_of_another_method(settings: TrainSettings) -> TrainSettings:
    folder = settings.output.with_name("other")
    shape = SHAPES["eagle3"]
    config = eagle3_config(ARCH, shape.target_layer_ids or (), 16)
    write_head(fresh_head(config, seed=0, token_map=torch.arange(16)), folder, "eagle3")
    return replace(settings, shape=DraftShape("medusa"), start_from=str(folder))


def finished_output(settings: TrainSettings) -> TrainSettings:
    settings.output.mkdir()
    (settings.output / "config.json").write_text("{}")
    return settings


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (few_prompts, "2 usable prompts leave no held-out data"),
        (finished_output, "holds a finished draft"),
        (
            lambda s: replace(s, shape=SHAPES["medusa"], forms=("medusa",)),
            "form 'medusa' has no place for a draft vocabulary",
        ),
        (
            lambda s: replace(s, shape=replace(s.shape, target_layer_ids=(0, 1, 99))),
            "--target-layer-ids: layer 99 is not one of the target's, 0 to 3",
        ),
        (start_of_another_method, "is a head for method 'eagle3', not 'medusa'"),
        (lambda s: replace(s, most_new=128), "answers of 128 tokens fill the context of 128"),
        (lambda s: replace(s, shape=replace(s.shape, target_layer_ids=None)), "no early, middle and late one"),
    ],
)  # fmt: skip
def test_what_cannot_become_a_draft_is_refused_before_anything_is_written(
    target: str, settings: TrainSettings, change: Callable[[TrainSettings], TrainSettings], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        run(target, change(settings))
    assert not settings.work.exists()


def test_too_little_disk_is_said_before_anything_is_written(
    target: str, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(ConfigError, match=r"MB of disk, .* has 0: choose another --output"):
        run(target, settings)
    assert not settings.output.exists()


def test_another_run_in_the_same_folder_is_refused(target: str, settings: TrainSettings) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(target, settings, Heard("stepped"))
    with pytest.raises(ConfigError, match="holds a run with another seed"):
        run(target, replace(settings, seed=2))
