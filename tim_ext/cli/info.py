"""`tim-ext info`: versions, native libraries, CPU and CUDA state."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

import tim_ext

from ..solver import native


def add_command(commands: Any) -> None:
    add = commands.add_parser("info", help="versions, native libraries, CPU and CUDA state (the default)")
    add.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Returns 1 if the solvers cannot run at all."""
    for name, value in describe():
        print(f"{name:<15} {value}")
    return 0 if native.cpu_failure is None else 1


def describe() -> list[tuple[str, str]]:
    usable = native.cpu_failure is None
    library = native.find_library("_C")
    return [
        ("tim_ext", tim_ext.__version__),
        ("torch", torch.__version__),
        ("python", platform.python_version()),
        ("native library", library.name if usable and library else f"not usable: {native.cpu_failure}"),
        ("built with", f"torch {_build_info().get('torch_version', 'unknown')}"),
        ("CPU capability", torch.ops.tim_ext.cpu_capability() if usable else "unknown"),
        ("threads", str(torch.get_num_threads())),
        ("CUDA torch", torch.version.cuda or "no, torch is built without CUDA"),
        ("CUDA library", _cuda_library()),
        ("CUDA device", _cuda_device()),
    ]


def _cuda_library() -> str:
    library = native.find_library("_cuda")
    if library is None:
        return f"not built: {_build_info().get('reason', 'unknown reason')}"
    built = _build_info()
    architectures = built.get("architectures") or "unknown architectures"
    state = f"not loaded: {native.cuda_failure}" if native.cuda_failure else "loaded"
    driver = f"; needs {built['driver']}" if built.get("driver") else ""
    return f"{library.name}, {state}, for {architectures}{driver}"


def _build_info() -> dict[str, str]:
    """What setup.py wrote next to the libraries."""
    file = Path(tim_ext.__file__).with_name("_build_info.json")
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _cuda_device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
