"""Opening the compiled library: what cannot be used says why, and nobody is left without a search."""

from __future__ import annotations

import ctypes.util
import importlib.util
from pathlib import Path

import pytest

from outrider.compiled import contenders, library
from outrider.compiled.library import NativeUnavailable, SharedLibrary, shared_library

ROOT = Path(__file__).parents[2]


def test_a_file_that_is_not_there_or_another_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailable, match="cannot be opened"):
        SharedLibrary(str(tmp_path / "missing.so"))
    other = ctypes.util.find_library("m")
    if other is not None:
        with pytest.raises(NativeUnavailable, match="outrider_abi"):
            SharedLibrary(other)


@pytest.mark.native
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("outrider._native")
    assert found is not None
    assert found.origin is not None
    assert shared_library().instruction_sets()
    monkeypatch.setattr(library, "_ABI", library._ABI + 1)
    with pytest.raises(NativeUnavailable, match="reinstall outrider"):
        SharedLibrary(found.origin)


def test_the_version_and_the_spare_room_are_those_of_the_header() -> None:
    header = (ROOT / "csrc/outrider.h").read_text()
    assert f"enum {{ OUTRIDER_ABI = {library._ABI} }};" in header
    assert f"enum {{ OUTRIDER_SPARE = {contenders._SPARE} }};" in header


def test_without_the_library_there_is_no_compiled_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> SharedLibrary:
        raise NativeUnavailable("not built")

    monkeypatch.setattr(contenders, "shared_library", missing)
    assert contenders.compiled_search.__wrapped__() is None
