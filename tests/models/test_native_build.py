"""The build of the compiled decoder: which instruction sets are compiled, and that none at all still installs."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETS = [line.split()[0] for line in (ROOT / "csrc/instruction_sets.txt").read_text().splitlines()]

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None, reason="no CMake outside of pip's build environment"
)


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def configured(folder: Path, compiler: str | Path) -> str:
    """What CMake says, configuring into `folder` with this compiler."""
    return run("cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", CXX=str(compiler))


def targets(folder: Path) -> str:
    return run("cmake", "--build", folder, "--target", "help")


def real_compiler() -> str:
    name = os.environ.get("CXX") or "c++"
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        pytest.skip("the decoder is built on x86-64 Linux")
    path = shutil.which(name)
    if path is None or subprocess.run([path, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"no C++ compiler {name!r}")
    return path


def refusing(folder: Path, flags: str) -> Path:
    """A compiler that fails when one of its arguments matches the shell pattern `flags`."""
    script = folder / "picky-c++"
    script.write_text(
        f'#!/bin/sh\nfor word in "$@"; do case "$word" in {flags}) exit 1;; esac; done\nexec {real_compiler()} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_without_a_compiler_everything_but_the_library_installs(tmp_path: Path):
    said = configured(tmp_path / "build", "false")
    assert "No working C++ compiler: installing without the native decoder" in said
    run("cmake", "--build", tmp_path / "build")
    run("cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "prefix")
    assert not [path for path in tmp_path.rglob("*.so") if path.is_file()]


def test_a_compiler_that_refuses_every_set_builds_nothing(tmp_path: Path):
    said = configured(tmp_path / "build", refusing(tmp_path, "-mavx*"))
    assert "No instruction set is left: installing without the native decoder" in said
    assert "outrider" not in targets(tmp_path / "build")


def test_a_set_whose_flags_are_refused_is_left_out(tmp_path: Path):
    said = configured(tmp_path / "build", refusing(tmp_path, "-mavx512bf16"))
    assert "The compiler refuses the flags of avx512vnni: left out" in said
    built = targets(tmp_path / "build")
    assert "outrider_avx512vnni" not in built
    assert "outrider_avx2" in built
    rules = "\n".join(
        path.read_text() for path in tmp_path.rglob("*") if path.name in ("flags.make", "build.ninja")
    )
    assert "-DOUTRIDER_WITHOUT_AVX512VNNI" in rules
    assert "-DOUTRIDER_WITHOUT_AVX2" not in rules


def test_where_a_compiler_is_the_library_is_installed_with_the_functions_of_its_header_alone():
    real_compiler()
    found = importlib.util.find_spec("outrider._native")
    assert found is not None, "outrider was installed before a C++ compiler was: install it again"
    if shutil.which("nm") is None:
        pytest.skip("nm lists the functions of a library, and is not here")
    lines = run("nm", "-D", "--defined-only", str(found.origin)).splitlines()
    names = {line.split()[-1] for line in lines}
    header = (ROOT / "csrc/outrider.h").read_text()
    declared = {word.split("(")[0].lstrip("*") for line in header.splitlines() if line.startswith("OUTRIDER_API")
                for word in line.split() if word.lstrip("*").startswith("outrider_")}  # fmt: skip
    assert names == declared


def test_every_set_that_the_dispatcher_knows_is_compiled():
    dispatcher = (ROOT / "csrc/isa.cpp").read_text()
    known = {
        line.split("(")[1].rstrip(")")
        for line in dispatcher.splitlines()
        if line.startswith("OUTRIDER_DECLARE(")
    }
    assert known == set(SETS)
    for name in SETS:
        assert f"OUTRIDER_WITHOUT_{name.upper()}" in dispatcher
