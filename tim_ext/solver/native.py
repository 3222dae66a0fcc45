"""Loads the native libraries and tells torch the shapes their operators return.

`_C` holds the operators and their CPU kernels, `_cuda` the CUDA kernels. A failure to load is kept, not
raised, so that `tim_ext.reference` and `tim-ext info` work without them; a solver raises it at its first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..version import OLDEST_TORCH

torch_ops: Any = torch.ops  # untyped in torch
register_fake: Any = torch.library.register_fake

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


# The shapes and dtypes of what every operator returns, for torch.compile. Arguments: see csrc/ops.cpp


def fake_solve(
    features: Tensor,
    rows: Tensor | None,
    labels: Tensor,
    offsets: Tensor,
    classes: Tensor,
    *,
    iterations: int,
    probs_size: int,
    weights_rows: int,
    history: bool,
    **hyper_parameters: object,
) -> tuple[Tensor, ...]:
    dtype = real(features)
    tasks = classes.shape[0]
    return (
        features.new_empty((probs_size,), dtype=dtype),
        labels.new_empty(labels.shape),
        features.new_empty((weights_rows, features.shape[1]), dtype=dtype),
        labels.new_empty((tasks,)),
        features.new_empty((tasks, iterations + 1 if history else 0, 3), dtype=dtype),
        labels.new_empty((tasks, 3)),
    )


def fake_distance_softmax(features: Tensor, weights: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    shape = (*features.shape[:-1], weights.shape[-2])  # [T, N, K]
    return features.new_empty(shape), features.new_empty(shape)


def fake_q_update(
    log_probs: Tensor, labels: Tensor, alpha: float, beta: float, marginal_weight: float
) -> Tensor:
    return log_probs.new_empty(log_probs.shape)  # [T, N, K]


def fake_w_update(features: Tensor, weights: Tensor, *others: object) -> Tensor:
    return weights.new_empty(weights.shape)  # [T, K, d]


def fake_gd_gradient(
    features: Tensor, weights: Tensor, labels: Tensor, **hyper_parameters: object
) -> tuple[Tensor, Tensor, Tensor]:
    tasks = features.shape[0]
    return features.new_empty((tasks,)), features.new_empty((tasks, 3)), weights.new_empty(weights.shape)


def real(features: Tensor) -> torch.dtype:
    return torch.float64 if features.dtype == torch.float64 else torch.float32


def fake_shard_scale(features: Tensor, labels: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    return features.new_empty((features.shape[0],), dtype=real(features)), labels.new_empty((3,))


def fake_shard_softmax(
    features: Tensor, labels: Tensor, scale: Tensor, weights: Tensor, *others: object, **options: object
) -> tuple[Tensor, Tensor]:
    columns = features.new_empty((3, weights.shape[0]), dtype=torch.float64)
    return columns, features.new_empty((4,), dtype=torch.float64)


def fake_shard_sums(
    features: Tensor, labels: Tensor, scale: Tensor, log_probs: Tensor, factor: Tensor, **options: object
) -> tuple[Tensor, Tensor]:
    sums = features.new_empty((factor.shape[0], features.shape[1]), dtype=torch.float64)
    return sums, features.new_empty((factor.shape[0],), dtype=torch.float64)


def fake_shard_classify(
    features: Tensor, labels: Tensor, scale: Tensor, weights: Tensor, *, temperature: float, probs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, dtype = features.shape[0], real(features)
    p = features.new_empty((n if probs else 0, weights.shape[0]), dtype=dtype)
    return p, labels.new_empty((n,)), features.new_empty((n,), dtype=dtype), labels.new_empty((3,))


cpu_failure = load_library("_C")
cuda_failure = load_cuda_library()
if cpu_failure is None:
    register_fake("tim_ext::adm_solve", fake_solve)
    register_fake("tim_ext::gd_solve", fake_solve)
    register_fake("tim_ext::distance_softmax", fake_distance_softmax)
    register_fake("tim_ext::q_update", fake_q_update)
    register_fake("tim_ext::w_update", fake_w_update)
    register_fake("tim_ext::gd_gradient", fake_gd_gradient)
    register_fake("tim_ext::shard_scale", fake_shard_scale)
    register_fake("tim_ext::shard_softmax", fake_shard_softmax)
    register_fake("tim_ext::shard_adm_sums", fake_shard_sums)
    register_fake("tim_ext::shard_gd_sums", fake_shard_sums)
    register_fake("tim_ext::shard_classify", fake_shard_classify)
