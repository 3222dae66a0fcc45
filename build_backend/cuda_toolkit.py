"""Decides whether the CUDA library is built, and with which toolkit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

# sm_75 (Turing) to sm_120 (Blackwell), as far as nvcc knows them.
ARCHITECTURES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
# GPUs between two of them (8.7, 10.3, 11.0) compile the PTX of this one at first use, later ones
# the PTX of the newest.
PORTABLE = "8.0"
# The oldest driver for Linux that runs what a toolkit of this major version makes.
DRIVERS = {"12": "525", "13": "580"}


class ToolkitError(Exception):
    """Says why the CUDA library cannot be built."""


class Plan(NamedTuple):
    """What to build with, or why not."""

    reason: str
    toolkit: Path | None = None
    architectures: str = ""  # as TORCH_CUDA_ARCH_LIST has them


def plan_cuda(wish: str, has_kernels: bool, torch_cuda: str | None) -> Plan:
    """`wish` is TIM_EXT_CUDA: 0, 1 or auto."""
    if wish not in ("0", "1", "auto"):
        raise SystemExit(f"tim_ext: TIM_EXT_CUDA must be 0, 1 or auto; it is {wish!r}")
    if wish == "0":
        return Plan("TIM_EXT_CUDA=0")
    try:
        if not has_kernels:
            raise ToolkitError("this version has no CUDA kernels yet")
        if torch_cuda is None:
            raise ToolkitError("torch is a CPU build")
        toolkit = find_toolkit(torch_cuda)
        architectures = os.environ.get("TORCH_CUDA_ARCH_LIST") or default_architectures(toolkit)
    except ToolkitError as reason:
        if wish == "1":
            raise SystemExit(f"tim_ext: TIM_EXT_CUDA=1, but no CUDA library can be built: {reason}") from None
        return Plan(str(reason))
    return Plan(f"torch is built for CUDA {torch_cuda}, toolkit in {toolkit}", toolkit, architectures)


def find_toolkit(torch_cuda: str) -> Path:
    """The root of a toolkit of the same CUDA major version as torch.

    nvcc itself says where it lives: on PATH it may be a wrapper script far away from the headers.
    """
    nvcc = _find_nvcc()
    output = _run(nvcc, "--dryrun", "-x", "cu", "-c", os.devnull)
    top = re.search(r"^#\$ TOP=(.+)$", output, re.MULTILINE)
    if top is None:
        raise ToolkitError(f"{nvcc} --dryrun does not name its toolkit (no line with TOP=)")
    toolkit = Path(top[1].strip()).resolve()
    if not (toolkit / "include" / "cuda_runtime.h").exists():
        raise ToolkitError(f"the toolkit of {nvcc} has no {toolkit}/include/cuda_runtime.h")
    if not any((toolkit / lib / "libcudart.so").exists() for lib in ("lib64", "lib")):
        raise ToolkitError(f"the toolkit of {nvcc} has no {toolkit}/lib64/libcudart.so")
    release = re.search(r"release (\d+)\.(\d+)", _run(nvcc, "--version"))
    if release is None:
        raise ToolkitError(f"{nvcc} --version names no release")
    if release[1] != torch_cuda.split(".")[0]:
        raise ToolkitError(
            f"torch is built for CUDA {torch_cuda} but {nvcc} is CUDA {release[1]}.{release[2]}: "
            "the major versions must agree"
        )
    return toolkit


def default_architectures(toolkit: Path) -> str:
    """Those that this nvcc compiles for, as in TORCH_CUDA_ARCH_LIST: nvcc before 12.8 knows no sm_100."""
    nvcc = toolkit / "bin" / "nvcc"
    found = re.findall(r"^compute_(\d+)(\d)$", _run(str(nvcc), "--list-gpu-arch"), re.MULTILINE)
    known = {f"{major}.{minor}" for major, minor in found}
    chosen = [architecture for architecture in ARCHITECTURES if architecture in known]
    if not chosen:
        raise ToolkitError(f"{nvcc} --list-gpu-arch names none of {', '.join(ARCHITECTURES)}")
    return ";".join(one + "+PTX" * (one in (PORTABLE, chosen[-1])) for one in chosen)


def driver_of(cuda: str) -> str:
    """What a library that is built for this CUDA version asks of the driver, as a sentence."""
    major = cuda.split(".")[0]
    number = f" ({DRIVERS[major]} or newer on Linux)" if major in DRIVERS else ""
    return f"a driver for CUDA {major}{number}"


def _find_nvcc() -> str:
    cuda_home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if cuda_home:
        nvcc = Path(cuda_home, "bin", "nvcc")
        if not nvcc.exists():
            raise ToolkitError(f"CUDA_HOME is {cuda_home}, which has no bin/nvcc")
        return str(nvcc)
    nvcc_on_path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc_on_path is None:
        raise ToolkitError("no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
    return nvcc_on_path


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    except OSError as error:
        raise ToolkitError(f"{command[0]} cannot be run ({error})") from None
