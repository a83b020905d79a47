"""The loop: learns, and goes on after any interruption as if there had been none."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_recipe import TinyRecipe, TinyTexts, random_texts, tiny_data

from outrider.core.completion import SpeculationStats
from outrider.errors import ConfigError, TrainingError
from outrider.train.checkpoint import FILE
from outrider.train.curve import Curve, Evaluation, TrainPoint
from outrider.train.evaluation import HeldOut, evaluate
from outrider.train.loop import Autocast, Data, LoopSettings, Silent, train
from outrider.train.playback import play_back
from outrider.train.recipe import Judged
from outrider.train.texts import Batch

SETTINGS = LoopSettings(
    steps=24, learning_rate=0.02, batch_tokens=60, evaluate_every=10, checkpoint_every=0.0, seed=5
)


class Interrupting(Silent):
    """Raises at the hooks of chosen numbers, counted over all."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt

    def stepped(self, point: TrainPoint) -> None:
        self._count()

    def evaluated(self, evaluation: Evaluation) -> None:
        self._count()

    def saved(self, step: int) -> None:
        self._count()


class Keeping(Silent):
    """Keeps the curve, and ends the run after a step."""

    def __init__(self, until: int) -> None:
        self._until = until
        self.curve = Curve()

    def began(self, steps: int, curve: Curve) -> None:
        self.curve = curve

    def stepped(self, point: TrainPoint) -> None:
        self.curve = replace(self.curve, points=(*self.curve.points, point))
        if point.step == self._until:
            raise KeyboardInterrupt

    def evaluated(self, evaluation: Evaluation) -> None:
        self.curve = replace(self.curve, evaluations=(*self.curve.evaluations, evaluation))


def trained(folder: Path, settings: LoopSettings = SETTINGS) -> tuple[TinyRecipe, Curve]:
    recipe = TinyRecipe()
    return recipe, train(recipe, tiny_data(), settings, folder)


def assert_same(recipe: TinyRecipe, other: TinyRecipe) -> None:
    for own, theirs in zip(recipe.module.parameters(), other.module.parameters()):
        torch.testing.assert_close(own, theirs)


def test_training_lowers_the_loss_and_raises_the_overlap_of_held_out_texts(tmp_path: Path) -> None:
    _, curve = trained(tmp_path, replace(SETTINGS, steps=60))
    first, last = curve.evaluations[0], curve.evaluations[-1]
    assert [point.step for point in curve.points] == list(range(1, 61))
    assert [evaluation.step for evaluation in curve.evaluations] == [0, 10, 20, 30, 40, 50, 60]
    assert last.losses[0] < 0.7 * first.losses[0]
    assert last.overlaps[0] > first.overlaps[0] + 0.1


def test_tokens_count_the_answers_trained_on(tmp_path: Path) -> None:
    data = tiny_data()
    answers = sum(len(text.answer) for text in data.texts.texts)  # type: ignore[attr-defined]
    longest = max(data.texts.lengths()) * 30
    curve = train(TinyRecipe(), data, replace(SETTINGS, batch_tokens=longest, steps=3), tmp_path)
    assert [point.tokens for point in curve.points] == [answers, 2 * answers, 3 * answers]
    assert curve.evaluations[-1].tokens == 3 * answers


def test_a_run_interrupted_anywhere_comes_to_the_same_weights_and_curve(tmp_path: Path) -> None:
    straight, expected = trained(tmp_path / "straight")
    generator = random.Random(1)
    interruptions = 0
    while True:
        recipe = TinyRecipe()
        observer = Interrupting(generator.randrange(2, 12))
        try:
            curve = train(recipe, tiny_data(), SETTINGS, tmp_path / "often", observer=observer)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions > 4
    assert curve == expected
    assert_same(recipe, straight)


def test_a_run_that_saves_rarely_goes_back_to_its_last_checkpoint(tmp_path: Path) -> None:
    straight, expected = trained(tmp_path / "straight")
    rarely = replace(SETTINGS, checkpoint_every=3600.0)
    with pytest.raises(KeyboardInterrupt):
        train(TinyRecipe(), tiny_data(), rarely, tmp_path / "lost", observer=Interrupting(15))
    assert not (tmp_path / "lost" / FILE).exists()
    recipe, curve = trained(tmp_path / "lost", rarely)
    assert curve == expected
    assert_same(recipe, straight)


KILLED = """
import os, signal, sys, threading, time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)

from tiny_recipe import TinyRecipe, tiny_data
from outrider.train.loop import LoopSettings, Silent, train


class Killing(Silent):
    def saved(self, step):
        if step == 20:
            threading.Thread(target=self.kill, daemon=True).start()

    def kill(self):
        time.sleep(float(sys.argv[3]))
        os.kill(os.getpid(), signal.SIGKILL)


settings = LoopSettings(steps=100_000, learning_rate=0.02, batch_tokens=60, checkpoint_every=0.0, seed=5)
train(TinyRecipe(), tiny_data(), settings, Path(sys.argv[2]), observer=Killing())
"""


def test_a_killed_process_leaves_a_whole_checkpoint_that_is_gone_on_from(tmp_path: Path) -> None:
    delay = random.Random(7).random() * 0.01
    here, folder = str(Path(__file__).parent), str(tmp_path / "killed")
    process = subprocess.run([sys.executable, "-c", KILLED, here, folder, str(delay)], timeout=300)
    assert process.returncode == -signal.SIGKILL
    done = torch.load(tmp_path / "killed" / FILE, weights_only=True)["step"]
    assert done >= 20

    settings = replace(SETTINGS, steps=100_000, evaluate_every=200)
    curves: list[Curve] = []
    recipes = [TinyRecipe(), TinyRecipe()]
    for recipe, name in zip(recipes, ("killed", "straight")):
        observer = Keeping(until=done + 10)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tiny_data(), settings, tmp_path / name, observer=observer)
        curves.append(observer.curve)
    assert len(curves[0].points) == done + 10
    assert curves[0] == curves[1]
    assert_same(*recipes)


def test_a_finished_run_is_only_loaded(tmp_path: Path) -> None:
    straight, expected = trained(tmp_path)
    changed = (tmp_path / FILE).stat().st_mtime_ns
    recipe, curve = trained(tmp_path)
    assert curve == expected
    assert_same(recipe, straight)
    assert (tmp_path / FILE).stat().st_mtime_ns == changed


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(TrainingError, match=r"of a run with learning_rate 0.02, not 0.1; remove it"):
        trained(tmp_path, replace(SETTINGS, learning_rate=0.1))
    fewer = replace(tiny_data(), texts=TinyTexts(random_texts(29, 3)))
    with pytest.raises(TrainingError, match="of a run with texts 30, not 29"):
        train(TinyRecipe(), fewer, SETTINGS, tmp_path)
    trained(tmp_path, replace(SETTINGS, checkpoint_every=5.0))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a checkpoint")
    with pytest.raises(TrainingError, match=rf"{FILE} cannot be read; remove it to start again"):
        trained(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"run": None}, {"run": [1]}, {"step": "x"}, {"curve": {"points": [{}], "evaluations": []}}, {"optimizer": {}},
     {"parameters": {}}],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_of_other_content_is_named_in_one_line(
    tmp_path: Path, change: dict[str, object]
) -> None:
    trained(tmp_path)
    torch.save({**torch.load(tmp_path / FILE, weights_only=True), **change}, tmp_path / FILE)
    with pytest.raises(TrainingError, match=rf"{FILE} cannot be read; remove it to start again") as told:
        trained(tmp_path)
    assert "\n" not in str(told.value)


class Broken(TinyRecipe):
    """Its loss is no number from the third batch on."""

    seen = 0

    def judge(self, batch: Batch) -> Judged:
        self.seen += self.module.training
        found = super().judge(batch)
        return replace(found, loss=found.loss * torch.nan) if self.seen == 3 else found


def test_a_loss_that_is_no_number_ends_the_run_before_it_spoils_the_weights(tmp_path: Path) -> None:
    recipe = Broken()
    with pytest.raises(TrainingError, match=r"step 3 of 24: the loss is nan .*learning rate below 0.02"):
        train(recipe, tiny_data(), SETTINGS, tmp_path)
    assert all(parameter.isfinite().all() for parameter in recipe.module.parameters())


def test_parameters_that_are_not_trained_stay_and_are_not_saved(tmp_path: Path) -> None:
    recipe = TinyRecipe()
    frozen = recipe.module[1].weight.requires_grad_(False)
    before = frozen.clone()
    train(recipe, tiny_data(), replace(SETTINGS, steps=3), tmp_path)
    assert torch.equal(frozen, before)
    assert "1.weight" not in torch.load(tmp_path / FILE, weights_only=True)["parameters"]


def test_a_run_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    recipe = TinyRecipe()
    before = torch.get_rng_state()
    train(recipe, tiny_data(), replace(SETTINGS, steps=2), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_bfloat16_learns_what_float32_learns(tmp_path: Path) -> None:
    _, wide = trained(tmp_path / "wide")
    recipe, narrow = trained(tmp_path / "narrow", replace(SETTINGS, autocast=Autocast.BFLOAT16))
    assert narrow.points != wide.points
    assert narrow.evaluations[-1].losses == pytest.approx(wide.evaluations[-1].losses, rel=0.05)
    assert all(parameter.dtype == torch.float32 for parameter in recipe.module.parameters())


def test_bfloat16_is_chosen_only_where_the_processor_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported, expected in ((True, Autocast.BFLOAT16), (False, Autocast.OFF)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda found=supported: found)
        assert Autocast.fastest(torch.device("cpu")) is expected
    assert Autocast.fastest(torch.device("meta")) is Autocast.OFF


@pytest.mark.parametrize(
    ("field", "value"), [("steps", 0), ("learning_rate", 0.0), ("warm_up", 1.5), ("clip", float("nan"))]
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(SETTINGS, **{field: value})  # type: ignore[arg-type]


def test_a_run_without_texts_is_refused(tmp_path: Path) -> None:
    data = tiny_data()
    for without in (
        replace(data, texts=TinyTexts([])),
        Data(data.texts, HeldOut([], TinyTexts([]))),
    ):
        with pytest.raises(ConfigError, match="held-out"):
            train(TinyRecipe(), without, SETTINGS, tmp_path)


def test_an_evaluation_is_of_all_held_out_texts_whatever_the_batches() -> None:
    held_out = tiny_data().held_out
    recipe = TinyRecipe()
    whole = evaluate(recipe, held_out, batch_tokens=10_000)
    small = evaluate(recipe, held_out, batch_tokens=1)
    assert small.chain == whole.chain
    for name in ("losses", "overlaps", "hits"):
        assert getattr(small, name) == pytest.approx(getattr(whole, name), rel=1e-5)
    recipe.module.eval()
    greedy = [index for index, text in enumerate(held_out.texts) if text.temperature == 0.0]
    alone = [
        play_back(recipe.judge(held_out.source.batch([index])).hits[0],
                  prompt_tokens=len(held_out.texts[index].prompt),
                  answer_tokens=len(held_out.texts[index].answer), num_spec_tokens=3)
        for index in greedy
    ]  # fmt: skip
    assert whole.chain == SpeculationStats.total(alone)


def test_a_curve_survives_its_plain_form(tmp_path: Path) -> None:
    _, curve = trained(tmp_path)
    assert Curve.of(curve.plain()) == curve
