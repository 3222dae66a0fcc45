"""Transforms of features [.., N, d]: pure functions, and what the `transform=` of a baseline stands for.

Half types are computed in float32. `l2_normalize` and `power` leave a zero vector zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from .solver.inputs import PADDING, QUERY, check_device, refuse_shape, to_features, to_integers
from .solver.params import check_number

STEPS = ("center", "l2", "power", "task_center", "joint_center", "min_max")
SHORT = {"none": (), "cl2": ("center", "l2")}


def l2_normalize(features: Any) -> Tensor:
    """z_i / ||z_i||; a zero vector stays zero.

    Example:
        >>> import torch
        >>> from tim_ext import transforms
        >>> transforms.l2_normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    z = _floats(features)
    length: Tensor = vector_norm(z, dim=-1, keepdim=True)
    least, most = (1e-15, 1e15) if z.dtype == torch.float32 else (1e-150, 1e150)
    extreme = ~((length > least) & (length < most))[..., 0]  # the squares may have under- or overflowed
    if extreme.any():
        z = z.clone()
        rows = z[extreme]
        largest = rows.abs().amax(dim=-1, keepdim=True)
        z[extreme] = rows = rows / torch.where(largest > 0, largest, 1)
        length[extreme] = vector_norm(rows, dim=-1, keepdim=True)
        length = torch.where(length > 0, length, 1)
    return z / length


def center(features: Any, mean: Any) -> Tensor:
    """z_i - mean, with the mean [d] of other samples: for CL2N of SimpleShot, those of the base classes."""
    z = _floats(features)
    return z - _mean("mean", mean, z)


def task_center(features: Any, labels: Any) -> Tensor:
    """Support samples minus the mean of the support, queries minus the mean of the queries, task by task.

    Args:
        features: [.., N, d].
        labels: [.., N], the class (>= 0) of a support sample, -1 for a query, -100 for padding, which
            becomes zero.
    """
    z = _floats(features)
    labels = to_integers("labels", labels, z, z.shape[:-1], "features")
    z = blank(z, labels == PADDING)
    sets = torch.stack([labels >= 0, labels == QUERY], dim=-1).to(z)  # [.., N, 2]
    means = sets.mT @ z / sets.sum(dim=-2).clamp(min=1)[..., None]  # [.., 2, d]
    return z - sets @ means


def joint_center(features: Any, labels: Any) -> Tensor:
    """All samples minus their mean, task by task; arguments as in `task_center`."""
    z = _floats(features)
    labels = to_integers("labels", labels, z, z.shape[:-1], "features")
    padding = labels == PADDING
    z = blank(z, padding)
    total = (~padding).sum(dim=-1)[..., None, None].clamp(min=1)
    return blank(z - z.sum(dim=-2, keepdim=True) / total, padding)


def min_max(features: Any, labels: Any) -> Tensor:
    """Every feature such that the queries of the task range from 0 to 1; without queries, the support.

    One that does not vary there is scaled by its range over all samples. Arguments as in `task_center`.
    """
    z = _floats(features)
    labels = to_integers("labels", labels, z, z.shape[:-1], "features")
    query, used = labels == QUERY, labels != PADDING
    z = blank(z, ~used)
    low, span = _range(z, torch.where(query.any(dim=-1, keepdim=True), query, used))
    span = torch.where(span > 0, span, _range(z, used)[1])
    return blank((z - low) / torch.where(span > 0, span, 1), ~used)


def _range(z: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Of each feature among the samples seen [.., N]: the least, and the largest minus it: [.., 1, d]"""
    low = z.masked_fill(~seen[..., None], torch.inf).amin(dim=-2, keepdim=True)
    return low, z.masked_fill(~seen[..., None], -torch.inf).amax(dim=-2, keepdim=True) - low


def power(features: Any, beta: float = 0.5) -> Tensor:
    """sign(z) |z|^beta of every number: makes the distribution of non-negative features less skewed."""
    z = _floats(features)
    beta = check_number("beta", beta, positive=True)
    return z.sign() * z.abs().pow(beta)


def blank(z: Tensor, padding: Tensor) -> Tensor:
    """Zeros in the place of padding [.., N], whatever was there, NaN or Inf too."""
    return z.masked_fill(padding[..., None], 0) if padding.any() else z


OF_A_TASK = {  # the steps that need more than the sample itself
    "task_center": task_center,
    "joint_center": joint_center,
    "min_max": min_max,
}


class Transform(NamedTuple):
    """What `transform=` and `base_mean=` of a baseline stand for."""

    steps: tuple[str, ...]
    base_mean: Tensor | None  # [d]

    def __call__(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """z [.., N, d]; labels [.., N] for steps that look at the task."""
        for step in self.steps:
            if step == "l2":
                z = l2_normalize(z)
            elif step == "center":
                z = center(z, self.base_mean)
            elif step == "power":
                z = power(z)
            else:
                z = OF_A_TASK[step](z, labels)
        return z

    @property
    def rows_only(self) -> int:
        """How many of the first steps need no more than the sample itself."""
        return next((i for i, step in enumerate(self.steps) if step in OF_A_TASK), len(self.steps))


def make_transform(transform: Any, base_mean: Any, features: Tensor) -> Transform:
    steps = parse_steps(transform)
    if "center" in steps and base_mean is None:
        raise ValueError(
            f"base_mean: expected the mean [d] of the base features, as transform={transform!r} "
            "subtracts it, got None"
        )
    return Transform(steps, None if base_mean is None else _mean("base_mean", base_mean, features))


def parse_steps(transform: Any) -> tuple[str, ...]:
    expected = (
        f"transform: expected {', '.join(map(repr, SHORT))}, or steps joined by '+' "
        f"out of {', '.join(map(repr, STEPS))}"
    )
    if not isinstance(transform, str):
        raise TypeError(f"{expected}, got {type(transform).__name__} {transform!r}")
    steps = SHORT.get(transform, tuple(transform.split("+")))
    if not set(steps) <= set(STEPS):
        raise ValueError(f"{expected}, got {transform!r}")
    return steps


def _floats(features: Any) -> Tensor:
    z = to_features("features", features)
    if z.dim() < 2:
        refuse_shape("features", "[.., N, d]", z)
    return z if z.dtype == torch.float64 else z.float()


def _mean(name: str, value: Any, features: Tensor) -> Tensor:
    mean = to_features(name, value)
    if mean.shape != features.shape[-1:]:
        refuse_shape(name, f"{list(features.shape[-1:])}, one number for each feature", mean)
    check_device(name, mean, features, "features")
    if not mean.isfinite().all():
        raise ValueError(f"{name}: expected finite values, got NaN or Inf")
    return mean.to(torch.float64 if features.dtype == torch.float64 else torch.float32)
