"""Loads the native libraries, once, when it is imported.

`_C` holds the operators and their CPU kernels, `_cuda` the CUDA kernels. A failure to load is kept, not
raised, so that `tim_ext.reference` and `tim-ext info` work without them; a solver raises it at its first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..version import OLDEST_TORCH
from .fakes import register_fakes
from .gradients import register_gradients

torch_ops: Any = torch.ops  # untyped in torch

CPU = torch.device("cpu")
PACKAGE = Path(__file__).parents[1]  # where the libraries lie
BUILD = (
    "`pip install .` (or `pip install -e . --no-build-isolation` to work on it) in the tim_ext source tree"
)


def find_library(name: str) -> Path | None:
    files = sorted(PACKAGE.glob(f"{name}.*"))
    return next((file for file in files if file.suffix in (".so", ".pyd")), None)


def load_library(name: str) -> str | None:
    """Loads a library; returns the sentence that says why it could not, or None."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        return f"tim_ext needs torch >= {'.'.join(map(str, OLDEST_TORCH))}, found {torch.__version__}"
    library = find_library(name)
    if library is None:
        return f"the native library tim_ext/{name} is missing; build it with {BUILD}"
    try:
        torch_ops.load_library(library)
    except (OSError, RuntimeError) as error:
        failure = f"the native library {library} does not load in torch {torch.__version__}"
        return f"{failure} ({error}); rebuild it with {BUILD}"
    return None


def load_cuda_library() -> str | None:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is not a CUDA build"
    return cpu_failure or load_library("_cuda")


def require(device: torch.device) -> None:
    """Raises unless the operators have kernels for this device."""
    if cpu_failure is not None:
        raise ImportError(cpu_failure)
    if device == CPU:
        return
    if device.type != "cuda":
        raise ValueError(f"features: expected device cpu or cuda, got {device}")
    if cuda_failure is not None:
        raise ImportError(f"features are on {device}, but {cuda_failure}")


def call(operator: str, *arguments: Any, **options: Any) -> Any:
    """An operator that a signal may interrupt: then raises what the handler of the signal raised.

    torch knows only RuntimeError (csrc/common/interrupt.cpp). Python itself raises the other one, here or in
    what comes next, as soon as it calls anything: outside of `except`, so as not to name both.
    """
    try:
        return getattr(torch_ops.tim_ext, operator)(*arguments, **options)
    except RuntimeError as error:
        failure = error
    str(failure)
    raise failure


cpu_failure = load_library("_C")
cuda_failure = load_cuda_library()
if cpu_failure is None:
    register_fakes()
    register_gradients()
