"""The torch-free core by clang, and for Arm (NEON) by a cross compiler, run under qemu."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.core_build import build_core
from helpers.paths import ROOT

PROGRAMS = [ROOT / "tests/sanitizers/driver.cpp", ROOT / "tests/native/other_processors.cpp"]
FLAGS = ["-std=c++17", "-O2", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror"]
ARM = "aarch64-linux-gnu-g++"
X86 = ("baseline", "avx2", "avx512")  # each has those before it
CALLS = 6  # of solve in other_processors.cpp: three types, twice

pytestmark = pytest.mark.slow


QEMU = next((name for name in ("qemu-aarch64", "qemu-aarch64-static") if shutil.which(name)), "qemu-aarch64")


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What g++'s kernels for whatever every machine has compute here."""
    (program,) = build_core(tmp_path_factory.mktemp("gcc"), "g++", FLAGS, ["baseline"], PROGRAMS[1])
    return results([program], "baseline")


def results(command: list[str | Path], capability: str) -> list[np.ndarray]:
    """float64, float32 and float16 features, by each form."""
    environment = {**os.environ, "TIM_EXT_CPU_CAPABILITY": capability}
    run = subprocess.run(command, capture_output=True, env=environment, timeout=300, check=True)
    return np.split(np.frombuffer(run.stdout), CALLS)


def check(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    truth = expected[0]
    for number, (mine, reference) in enumerate(zip(found, expected, strict=True)):
        tolerance = 1e-11 if number % 3 == 0 else 2e-5
        np.testing.assert_allclose(mine, reference, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-4)


def batches_pass(command: list[str | Path], capability: str, batches: int) -> None:
    environment = {**os.environ, "TIM_EXT_CPU_CAPABILITY": capability}
    run = subprocess.run(
        [*command, "0", str(batches)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert f"{batches} batches on {capability}" in run.stdout


@needs("g++", "clang++")
def test_clang(tmp_path, expected):
    here = torch.ops.tim_ext.cpu_capability()
    if here not in X86:
        pytest.skip(f"x86 alone, this is {here}")
    driver, program = build_core(tmp_path, "clang++", FLAGS, X86, *PROGRAMS)
    for capability in X86[: X86.index(here) + 1]:
        batches_pass([driver], capability, 100)
        check(results([program], capability), expected)


@needs("g++", ARM, QEMU)
def test_arm(tmp_path, expected):
    driver, program = build_core(tmp_path, ARM, [*FLAGS, "-static"], ["baseline"], *PROGRAMS)
    batches_pass([QEMU, driver], "neon", 40)
    check(results([QEMU, program], "neon"), expected)
