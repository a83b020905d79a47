"""Ends the idle threads of torch's OpenMP pool, which spin for milliseconds after an operation and hold the cores."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

_SOFT = 1  # omp_pause_soft: the next parallel operation starts the threads again


def pool_pause() -> Callable[[], None]:
    """A call that ends the calling thread's pool, in under a microsecond when there is none.

    Does nothing where torch brings no GNU OpenMP, whose pool is the one that spins (`omp_pause_resource_all`,
    OpenMP 5.0).
    """
    for path in sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*")):
        try:
            pause = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        pause.argtypes, pause.restype = [ctypes.c_int], ctypes.c_int
        return lambda: pause(_SOFT) and None
    return lambda: None
