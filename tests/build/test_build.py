"""The decisions of the build: whether torch is a build requirement, and whether there is a CUDA library."""

import re
import stat
from pathlib import Path

import cuda_toolkit
import pytest
import tim_ext_build
from helpers.paths import ROOT

from tim_ext.version import OLDEST_TORCH


def fake_toolkit(root: Path, release: str = "13.0", missing: str = "") -> None:
    """A toolkit in `root`/toolkit, and a wrapper script `root`/nvcc that answers for it."""
    for name in ("include/cuda_runtime.h", "lib64/libcudart.so"):
        if name != missing:
            file = root / "toolkit" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    nvcc = root / "nvcc"
    nvcc.write_text(
        f'#!/bin/sh\necho "release {release}, V{release}.88"\necho "#$ TOP={root}/toolkit/bin/.."\n'
    )
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    (root / "toolkit" / "bin").mkdir(parents=True, exist_ok=True)


@pytest.fixture(autouse=True)
def nvcc_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
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
    toolkit, reason = cuda_toolkit.plan_cuda("auto", True, "13.2")
    assert toolkit == tmp_path / "toolkit"
    assert reason == f"torch is built for CUDA 13.2, toolkit in {toolkit}"


@pytest.mark.parametrize(
    ("toolkit", "kernels", "torch_cuda", "reason"),
    [
        ({}, False, "13.0", "this version has no CUDA kernels yet"),
        ({}, True, None, "torch is a CPU build"),
        ({"release": "12.8"}, True, "13.0", "the major versions must agree"),
        ({"missing": "include/cuda_runtime.h"}, True, "13.0", "has no .*/include/cuda_runtime.h"),
        ({"missing": "lib64/libcudart.so"}, True, "13.0", "has no .*/lib64/libcudart.so"),
    ],
)
def test_no_cuda_library(
    tmp_path: Path, toolkit: dict[str, str], kernels: bool, torch_cuda: str | None, reason: str
) -> None:
    fake_toolkit(tmp_path, **toolkit)
    with pytest.raises(SystemExit, match=f"^tim_ext: TIM_EXT_CUDA=1, but .*{reason}"):
        cuda_toolkit.plan_cuda("1", kernels, torch_cuda)
    planned, said = cuda_toolkit.plan_cuda("auto", kernels, torch_cuda)
    assert planned is None
    assert re.search(reason, said)


def test_cuda_can_be_declined(tmp_path: Path) -> None:
    fake_toolkit(tmp_path)
    assert cuda_toolkit.plan_cuda("0", True, "13.0") == (None, "TIM_EXT_CUDA=0")


def test_wrong_wish_is_refused() -> None:
    with pytest.raises(SystemExit, match="TIM_EXT_CUDA must be 0, 1 or auto; it is 'yes'"):
        cuda_toolkit.plan_cuda("yes", True, "13.0")


def test_cuda_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_toolkit(tmp_path)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert cuda_toolkit.plan_cuda("auto", True, "13.0") == (
        None,
        "CUDA_HOME is /nowhere, which has no bin/nvcc",
    )


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
