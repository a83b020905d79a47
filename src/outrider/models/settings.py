"""`RunSettings`: how a model is asked to run, checked before anything of it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import ConfigError, nearest

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64", "int8", "int4", "gguf")
NATIVE_ONLY = ("int8", "int4", "gguf")
"""Values of `dtype` that only the compiled decoder has."""
ACTIVATIONS = ("auto", "float32", "bfloat16", "int8")
MAX_THREADS = 1024


@dataclass(frozen=True)
class RunSettings:
    """Precision, threads and taps of one target, as `load` takes them. Raises `ConfigError`."""

    dtype: str = "auto"
    activations: str = "auto"
    threads: int | None = None
    taps: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("activations", self.activations, ACTIVATIONS)
        if not isinstance(self.taps, Sequence):
            raise ConfigError(f"taps must be a list of layers, not {self.taps!r:.60}")
        threads = self.threads
        if threads is None:
            return
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise ConfigError(f"threads must be a whole number from 1 to {MAX_THREADS}, not {threads!r}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises `ConfigError` naming the nearest choice."""
    if value not in choices:
        raise ConfigError(
            f"{name} must be one of {', '.join(choices)}, not {value!r}{nearest(str(value), choices)}"
        )
