"""Torch's idle threads: a pass of the compiled decoder finds none of them spinning, and torch works on afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from outrider.models.openmp import pool_pause

COUNT = """
import os, torch
from outrider.models.openmp import pool_pause
torch.set_num_threads(4)
pause = pool_pause()
torch.cos(torch.ones(1 << 20))
during = len(os.listdir("/proc/self/task"))
pause()
after = len(os.listdir("/proc/self/task"))
print(during, after)
"""


def gnu_openmp() -> bool:
    return any(Path(torch.__file__).parent.glob("lib/libgomp*.so*"))


@pytest.mark.skipif(
    not gnu_openmp() or not os.path.isdir("/proc/self/task"), reason="torch brings no GNU OpenMP"
)
def test_a_pause_ends_the_threads_of_the_pool() -> None:
    run = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    during, after = map(int, run.stdout.split())
    assert after <= during - 3


def test_torch_computes_the_same_after_a_pause() -> None:
    x = torch.linspace(0.0, 1.0, 1 << 18)
    expected = torch.cos(x)
    pool_pause()()
    assert torch.equal(torch.cos(x), expected)
