"""The decisions of the build: whether torch is a build requirement, and whether there is a CUDA library."""

import re
import stat
from pathlib import Path
from typing import Any

import cuda_toolkit
import pytest
import tim_ext_build
from helpers.paths import ROOT

from tim_ext.version import OLDEST_TORCH

KNOWN = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)  # to nvcc 13.0


def fake_toolkit(
    root: Path, release: str = "13.0", missing: str = "", known: tuple[int, ...] = KNOWN
) -> None:
    """A toolkit in `root`/toolkit, and a wrapper script `root`/nvcc that answers for it."""
    for name in ("include/cuda_runtime.h", "lib64/libcudart.so"):
        if name != missing:
            file = root / "toolkit" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    said = f'echo "release {release}, V{release}.88"\necho "#$ TOP={root}/toolkit/bin/.."\n'
    said += "".join(f"echo compute_{number}\n" for number in known)
    (root / "toolkit" / "bin").mkdir(parents=True, exist_ok=True)
    for nvcc in (root / "nvcc", root / "toolkit/bin/nvcc"):
        nvcc.write_text(f"#!/bin/sh\n{said}")
        nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(autouse=True)
def nvcc_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("pyproject.toml", '"torch>={}"'),
        ("README.md", "torch >= {}"),
        (".github/workflows/ci.yml", '"torch=={}.0"'),
        ("csrc/common/torch_abi.h", "every torch from {} on"),
    ],
)
def test_oldest_torch_is_said_alike(file: str, sentence: str) -> None:
    """Where it cannot be read from tim_ext/version.py."""
    assert sentence.format(".".join(map(str, OLDEST_TORCH))) in (ROOT / file).read_text()


def test_toolkit_is_where_nvcc_says(tmp_path: Path) -> None:
    fake_toolkit(tmp_path)
    plan = cuda_toolkit.plan_cuda("auto", True, "13.2")
    assert plan.toolkit == tmp_path / "toolkit"
    assert plan.reason == f"torch is built for CUDA 13.2, toolkit in {plan.toolkit}"


@pytest.mark.parametrize(
    ("known", "architectures"),
    [
        (KNOWN, "7.5;8.0+PTX;8.6;8.9;9.0;10.0;12.0+PTX"),
        ((50, 60, 70, 75, 80, 86, 87, 89, 90), "7.5;8.0+PTX;8.6;8.9;9.0+PTX"),  # nvcc 12.6
    ],
)
def test_architectures_are_those_that_nvcc_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: tuple[int, ...], architectures: str
) -> None:
    fake_toolkit(tmp_path, known=known)
    assert cuda_toolkit.plan_cuda("1", True, "13.0").architectures == architectures
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    assert cuda_toolkit.plan_cuda("1", True, "13.0").architectures == "8.6"


def test_what_a_build_asks_of_the_driver() -> None:
    assert cuda_toolkit.driver_of("13.2") == "a driver for CUDA 13 (580 or newer on Linux)"
    assert cuda_toolkit.driver_of("12.6") == "a driver for CUDA 12 (525 or newer on Linux)"
    assert cuda_toolkit.driver_of("14.0") == "a driver for CUDA 14"


@pytest.mark.parametrize(
    ("toolkit", "kernels", "torch_cuda", "reason"),
    [
        ({}, False, "13.0", "this version has no CUDA kernels yet"),
        ({}, True, None, "torch is a CPU build"),
        ({"release": "12.8"}, True, "13.0", "the major versions must agree"),
        ({"missing": "include/cuda_runtime.h"}, True, "13.0", "has no .*/include/cuda_runtime.h"),
        ({"missing": "lib64/libcudart.so"}, True, "13.0", "has no .*/lib64/libcudart.so"),
        ({"known": (50, 60)}, True, "13.0", "--list-gpu-arch names none of 7.5, 8.0, "),
    ],
)
def test_no_cuda_library(
    tmp_path: Path, toolkit: dict[str, Any], kernels: bool, torch_cuda: str | None, reason: str
) -> None:
    fake_toolkit(tmp_path, **toolkit)
    with pytest.raises(SystemExit, match=f"^tim_ext: TIM_EXT_CUDA=1, but .*{reason}"):
        cuda_toolkit.plan_cuda("1", kernels, torch_cuda)
    plan = cuda_toolkit.plan_cuda("auto", kernels, torch_cuda)
    assert plan.toolkit is None
    assert re.search(reason, plan.reason)


def test_cuda_can_be_declined(tmp_path: Path) -> None:
    fake_toolkit(tmp_path)
    assert cuda_toolkit.plan_cuda("0", True, "13.0") == cuda_toolkit.Plan("TIM_EXT_CUDA=0")


def test_wrong_wish_is_refused() -> None:
    with pytest.raises(SystemExit, match="TIM_EXT_CUDA must be 0, 1 or auto; it is 'yes'"):
        cuda_toolkit.plan_cuda("yes", True, "13.0")


def test_cuda_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_toolkit(tmp_path)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    plan = cuda_toolkit.plan_cuda("auto", True, "13.0")
    assert plan == cuda_toolkit.Plan("CUDA_HOME is /nowhere, which has no bin/nvcc")


@pytest.mark.parametrize(
    ("installed", "required"),
    [(None, ["torch>=2.10"]), ("2.9.1", ["torch>=2.10"]), ("2.10.0+cpu", []), ("2.15.0", [])],
)
def test_torch_is_required_only_when_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, required: list[str]
) -> None:
    if installed:
        metadata = tmp_path / f"torch-{installed}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {installed}\n")
    monkeypatch.setattr(tim_ext_build, "_environment_path", lambda: [str(tmp_path)])
    assert tim_ext_build._torch_requirement() == required
