"""The threads of the compiled library: one team for all models and matrices, whoever calls, also after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from outrider.models.native_matrices import NativeLinear, NativeMatrices

pytestmark = pytest.mark.native

FORK = """
import os, threading, torch
from outrider.compiled.library import NativeError
from outrider.models.native_matrices import NativeMatrices

x, weight = torch.ones(4, 64), torch.ones(64, 64)

def made():
    return NativeMatrices("float32", threads=3).linear(weight)

known, over = made(), threading.Event()

def work():
    while not over.is_set():
        known(x)
        made()

worker = threading.Thread(target=work)
worker.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            known(x)
        except NativeError as error:
            refused = "fork" in str(error)
        good = refused and float(made()(x).sum()) == 4 * 64 * 64
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
over.set()
worker.join()
assert float(known(x).sum()) == 4 * 64 * 64
"""


def linear(seed: int, threads: int) -> NativeLinear:
    weight = torch.randn(90, 64, generator=torch.Generator().manual_seed(seed))
    return NativeMatrices("float32", threads=threads).linear(weight)


def settled(threads: int) -> bool:
    """Whether this process comes to have so many threads: one that has ended is listed for a moment longer."""
    end = time.monotonic() + 10.0
    while len(os.listdir("/proc/self/task")) != threads and time.monotonic() < end:
        time.sleep(0.01)
    return len(os.listdir("/proc/self/task")) == threads


def test_what_runs_on_as_many_threads_shares_them() -> None:
    before = len(os.listdir("/proc/self/task"))
    first, second = linear(1, 7), linear(2, 7)
    assert settled(before + 6)
    other = linear(3, 5)
    assert settled(before + 6 + 4)
    del first, other
    assert settled(before + 6)
    del second
    assert settled(before)


def test_calls_at_the_same_time_take_turns() -> None:
    products = [linear(seed, 2) for seed in range(3)]
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(9))
    alone = [product(x) for product in products]
    good = [0] * len(products)

    def work(index: int) -> None:
        for _ in range(100):
            good[index] += torch.equal(products[index](x), alone[index])

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(products))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert good == [100] * len(products)


def test_a_forked_child_has_threads_of_its_own() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
