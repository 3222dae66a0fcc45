"""Decides whether the CUDA library is built, and with which toolkit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# sm_75 (Turing) to sm_120 (Blackwell), and PTX for what comes after.
DEFAULT_ARCHITECTURES = "7.5;8.0;8.6;8.9;9.0;10.0;12.0+PTX"


class ToolkitError(Exception):
    """Says why the CUDA library cannot be built."""


def plan_cuda(wish: str, has_kernels: bool, torch_cuda: str | None) -> tuple[Path | None, str]:
    """The toolkit to build with, or None, and the reason. `wish` is TIM_EXT_CUDA: 0, 1 or auto."""
    if wish not in ("0", "1", "auto"):
        raise SystemExit(f"tim_ext: TIM_EXT_CUDA must be 0, 1 or auto; it is {wish!r}")
    if wish == "0":
        return None, "TIM_EXT_CUDA=0"
    try:
        if not has_kernels:
            raise ToolkitError("this version has no CUDA kernels yet")
        if torch_cuda is None:
            raise ToolkitError("torch is a CPU build")
        toolkit = find_toolkit(torch_cuda)
    except ToolkitError as reason:
        if wish == "1":
            raise SystemExit(f"tim_ext: TIM_EXT_CUDA=1, but no CUDA library can be built: {reason}") from None
        return None, str(reason)
    return toolkit, f"torch is built for CUDA {torch_cuda}, toolkit in {toolkit}"


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
