"""The compiled library as a file: where it lies, whether it belongs to this version, what this machine runs of it."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Sequence
from ctypes import c_char_p, c_int
from typing import Any

from outrider.errors import ConfigError, OutriderError, nearest

_ABI = 5
_MODULE = "outrider._native"


class NativeError(OutriderError):
    """The compiled library refused a call: an argument it was given is wrong."""


class NativeUnavailable(OutriderError):
    """The compiled library cannot be used here; the message says why."""


Signatures = dict[str, tuple[Any, list[Any]]]
"""Functions of csrc/outrider.h, named without `outrider_`: the ctypes type of the result and those of the arguments."""

_SIGNATURES: Signatures = {
    "abi": (c_int, []),
    "error": (c_char_p, []),
    "instruction_sets": (c_char_p, []),
}


class SharedLibrary:
    """The opened library; whoever calls its functions declares them."""

    def __init__(self, path: str) -> None:
        """Raises `NativeUnavailable` where it cannot be opened or belongs to another version."""
        try:
            self._c = ctypes.CDLL(path)
            declared = self.declared(_SIGNATURES)
        except (OSError, AttributeError) as error:
            raise NativeUnavailable(f"the compiled library cannot be opened ({error})") from None
        if declared.outrider_abi() != _ABI:
            raise NativeUnavailable("the compiled library belongs to another version: reinstall outrider")

    def declared(self, signatures: Signatures) -> Any:
        """The library with types for these functions, its attributes `outrider_...`."""
        for name, (result, arguments) in signatures.items():
            function = getattr(self._c, f"outrider_{name}")
            function.restype, function.argtypes = result, arguments
        return self._c

    def instruction_sets(self) -> list[str]:
        """What this machine runs and the library was built for, best first."""
        return [name for name in self._c.outrider_instruction_sets().decode().split(",") if name]

    def refusal(self) -> NativeError:
        """Why the last call of this thread failed."""
        return NativeError(self._c.outrider_error().decode())


@functools.lru_cache(maxsize=1)
def shared_library() -> SharedLibrary:
    """The library of this installation, opened once. Raises `NativeUnavailable` saying why it is not there."""
    found = importlib.util.find_spec(_MODULE)
    if found is None or found.origin is None:
        raise NativeUnavailable(
            "outrider was installed without its compiled library, which takes x86-64 Linux and a C++ compiler such as "
            "g++ 12: install one and reinstall outrider"
        )
    opened = SharedLibrary(found.origin)
    if not opened.instruction_sets():
        raise NativeUnavailable("the processor has neither AVX2 with FMA nor AVX-512")
    return opened


def chosen_isa(sets: Sequence[str]) -> str:
    """The first of some sets, or the one that OUTRIDER_ISA names. Raises `ConfigError` if it is none of them."""
    wanted = os.environ.get("OUTRIDER_ISA")
    if not wanted:
        return sets[0]
    if wanted not in sets:
        raise ConfigError(
            f"OUTRIDER_ISA {wanted!r} is not one of {', '.join(sets)}, which this machine has{nearest(wanted, sets)}"
        )
    return wanted
