"""Several processes train what one would have trained."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_recipe import TinyRecipe, tiny_data

from outrider.train.checkpoint import FILE
from outrider.train.curve import Curve
from outrider.train.distributed import ALONE, World, local_device, world
from outrider.train.loop import LoopSettings, train

SETTINGS = LoopSettings(
    steps=30, learning_rate=0.02, batch_tokens=30, evaluate_every=15, checkpoint_every=0.0
)

TOGETHER = """
import sys
from pathlib import Path

import torch

sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)

from test_distributed import SETTINGS
from tiny_recipe import TinyRecipe, tiny_data
from outrider.train.distributed import world
from outrider.train.loop import train

with world("cpu") as own:
    recipe = TinyRecipe(dropout=0.0)
    if own.rank:
        torch.nn.init.zeros_(recipe.module[1].weight)  # the first process's weights count
    train(recipe, tiny_data(), SETTINGS, Path(sys.argv[2]), world=own)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_two_processes_come_to_the_weights_and_the_curve_of_one(tmp_path: Path) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    arguments = [sys.executable, "-c", TOGETHER, str(Path(__file__).parent), str(tmp_path / "two")]
    workers = [
        subprocess.Popen(arguments, env={**os.environ, **place, "RANK": str(rank)}) for rank in range(2)
    ]
    recipe = TinyRecipe(dropout=0.0)
    expected = train(recipe, tiny_data(), SETTINGS, tmp_path / "one")
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    found = torch.load(tmp_path / "two" / FILE, weights_only=True)
    for name, value in recipe.module.state_dict().items():
        torch.testing.assert_close(found["parameters"][name], value, rtol=1e-4, atol=1e-5)
    curve = Curve.of(found["curve"])
    assert [point.tokens for point in curve.points] == [point.tokens for point in expected.points]
    assert [p.loss for p in curve.points] == pytest.approx([p.loss for p in expected.points], rel=1e-4)
    for own, other in zip(curve.evaluations, expected.evaluations):
        assert own.losses == pytest.approx(other.losses, rel=1e-4)
        assert own.chain.num_emitted_tokens == other.chain.num_emitted_tokens
        assert abs(own.chain.num_rounds - other.chain.num_rounds) <= 1


def test_the_shares_of_all_processes_are_the_batch() -> None:
    batch = list(range(7))
    shares = [World(rank, 3).share(batch) for rank in range(3)]
    assert sorted(index for share in shares for index in share) == batch
    assert World(2, 3).share([5]) == []
    assert replace(ALONE).share(batch) == batch


def test_a_process_that_torchrun_did_not_start_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with world("cpu") as own:
        assert own == ALONE


def test_each_process_of_a_machine_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device("cuda") == "cuda:3"
    assert local_device("cuda:1") == "cuda:1"
    assert local_device("cpu") == "cpu"
