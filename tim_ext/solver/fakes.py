"""The shapes and dtypes of what every operator returns, for torch.compile. Arguments: see csrc/ops.cpp."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .gradients import DIFFERENTIABLE
from .inputs import real_type

register_fake: Any = torch.library.register_fake  # untyped in torch
torch_ops: Any = torch.ops


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
    proportions_size: int,
    history: bool,
    sample_log_prior: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, ...]:
    dtype = real_type(features)
    tasks, terms = classes.shape[0], 3 if sample_log_prior is None else 4
    return (
        features.new_empty((probs_size,), dtype=dtype),
        labels.new_empty(labels.shape),
        features.new_empty((weights_rows, features.shape[1]), dtype=dtype),
        labels.new_empty((tasks,)),
        features.new_empty((tasks, iterations + 1 if history else 0, terms), dtype=dtype),
        features.new_empty((proportions_size,), dtype=dtype),
        features.new_empty((tasks,), dtype=dtype),
        labels.new_empty((tasks, 3)),
    )


def fake_distance_softmax(features: Tensor, weights: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    shape = (*features.shape[:-1], weights.shape[-2])  # [T, N, K]
    return weights.new_empty(shape), weights.new_empty(shape)


def fake_q_update(
    log_probs: Tensor, labels: Tensor, alpha: float, beta: float, marginal_weight: float
) -> Tensor:
    return log_probs.new_empty(log_probs.shape)  # [T, N, K]


def fake_w_update(features: Tensor, weights: Tensor, *others: object) -> Tensor:
    return weights.new_empty(weights.shape)  # [T, K, d]


def fake_gd_gradient(
    features: Tensor,
    weights: Tensor,
    labels: Tensor,
    class_prior: Tensor | None = None,
    **hyper_parameters: object,
) -> tuple[Tensor, Tensor, Tensor]:
    tasks = features.shape[0]
    return features.new_empty((tasks,)), features.new_empty((tasks, 3)), weights.new_empty(weights.shape)


def fake_shard_scale(features: Tensor, labels: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    return features.new_empty((features.shape[0],), dtype=real_type(features)), labels.new_empty((3,))


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
    features: Tensor, labels: Tensor, scale: Tensor, weights: Tensor, *, probs: bool, **options: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, dtype = features.shape[0], real_type(features)
    p = features.new_empty((n if probs else 0, weights.shape[0]), dtype=dtype)
    return p, labels.new_empty((n,)), features.new_empty((n,), dtype=dtype), labels.new_empty((3,))


def fake_gather_tasks(
    features: Tensor, rows: Tensor, labels: Tensor, *others: object
) -> tuple[Tensor, Tensor]:
    samples = features.new_empty((*rows.shape, features.shape[1]), dtype=real_type(features))
    return samples, rows.new_empty((rows.shape[0],))


def fake_method(
    features: Tensor,
    rows: Tensor,
    labels: Tensor,
    steps: str,
    base_mean: Tensor | None,
    classes: int,
    *others: object,
) -> tuple[Tensor, Tensor, Tensor]:
    (tasks, size), dtype = rows.shape, real_type(features)
    probs = features.new_empty((tasks, classes, size), dtype=dtype)
    weights = features.new_empty((tasks, classes, features.shape[1]), dtype=dtype)
    return probs, weights, rows.new_empty((tasks,))


def fake_laplacian_shot(*arguments: Any) -> tuple[Tensor, ...]:
    results = fake_method(*arguments)
    return *results, torch.empty_like(results[2])


def fake_out(*arguments: object, **options: object) -> None:
    """An overload that writes into tensors of the caller."""


FAKES: dict[str, Callable[..., Any]] = {
    "adm_solve": fake_solve,
    "gd_solve": fake_solve,
    "distance_softmax": fake_distance_softmax,
    "q_update": fake_q_update,
    "w_update": fake_w_update,
    "gd_gradient": fake_gd_gradient,
    **{f"{step}.out": fake_out for step in ("distance_softmax", "q_update", "w_update", "gd_gradient")},
    "shard_scale": fake_shard_scale,
    "shard_softmax": fake_shard_softmax,
    "shard_adm_sums": fake_shard_sums,
    "shard_gd_sums": fake_shard_sums,
    "shard_classify": fake_shard_classify,
    "gather_tasks": fake_gather_tasks,
    "bd_cspn": fake_method,
    "laplacian_shot": fake_laplacian_shot,
    "pt_map": fake_method,
}


ON_CPU = ("offsets", "classes", "class_prior")  # whatever the device of the other tensors


def checked(qualified: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """What the kernels check of devices and gradients, as a call with a `meta` tensor never reaches them."""
    operator, _, overload = qualified.partition(".")
    schema = getattr(getattr(torch_ops.tim_ext, operator), overload or "default")._schema
    names = [argument.name for argument in schema.arguments]

    @wraps(fake)
    def check_and_fake(*arguments: Any, **options: Any) -> Any:
        given = {**dict(zip(names, arguments, strict=False)), **options}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        device = next(iter(tensors.values())).device
        for name, tensor in tensors.items():
            if tensor.device != device and not (name in ON_CPU and tensor.device.type == "cpu"):
                raise RuntimeError(
                    f"{operator}: {name} must be on the device of {names[0]} ({device}), got {tensor.device}"
                )
            if qualified not in DIFFERENTIABLE and tensor.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(
                    f"{operator}: {name} must not require a gradient, as {operator} has none for it; "
                    f"pass {name}.detach()"
                )
        return fake(*arguments, **options)

    return check_and_fake


def register_fakes() -> None:
    """Once the library with the operators is loaded."""
    for operator, fake in FAKES.items():
        register_fake(f"tim_ext::{operator}", checked(operator, fake))
