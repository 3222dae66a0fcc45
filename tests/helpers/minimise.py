"""The minimum of an objective, for tests of what an update minimises."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def minimise(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """By Newton's method with step halving, in float64."""
    x = start
    for _ in range(100):
        at = x.clone().requires_grad_()
        value = objective(at)
        (gradient,) = torch.autograd.grad(value, at)
        if gradient.abs().max() < 1e-12:
            return x
        hessian = torch.autograd.functional.hessian(objective, x, vectorize=True).view(x.numel(), -1)
        curvature, directions = torch.linalg.eigh(hessian)
        curvature = curvature.abs()
        # a softmax has directions without curvature: the same number added to a row
        inverse = torch.where(curvature > 1e-10 * curvature.max(), 1 / curvature, 0)
        step = (directions @ (inverse * (directions.T @ gradient.flatten()))).view_as(x)
        while objective(x - step) > value and step.abs().max() > 1e-9:
            step = step / 2
        x = x - step
    raise AssertionError(f"no minimum found: gradient {gradient.abs().max()}")
