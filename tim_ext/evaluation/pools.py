"""The features that tasks are drawn from: checked, and transformed as each method wants them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..files.features import first_not_finite, row_blocks
from ..solver.inputs import to_features, to_integers
from ..transforms import Transform, make_transform
from .settings import Run


def check_pool(features: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Features [M, d], contiguous, finite in the rows that are used, and labels [M] int64 on the CPU."""
    pool = to_features("features", features)
    if pool.dim() != 2 or 0 in pool.shape:
        raise ValueError(f"features: expected shape [M, d], neither of them 0, got {list(pool.shape)}")
    classes = to_integers("labels", labels, None, pool.shape[:1], "features").cpu()
    row = first_not_finite(pool, classes)
    if row is not None:
        raise ValueError(f"features: expected finite values, got NaN or Inf in row {row}")
    return pool.contiguous(), classes


def check_base_mean(value: Any, pool: Tensor) -> Tensor:
    mean = to_features("base_mean", value)
    if mean.shape != pool.shape[1:]:
        expected = f"[{pool.shape[1]}] to match features"
        raise ValueError(f"base_mean: expected shape {expected}, got {list(mean.shape)}")
    if not mean.isfinite().all():
        raise ValueError("base_mean: expected finite values, got NaN or Inf")
    return mean.to(pool.device)


class Pools:
    """The features as each method wants them: steps of a transform that look at one row at a time are done
    once for all tasks, and methods with the same steps share the copy. Copies that would take more than
    `memory` are not made: the methods then transform what their tasks need of the pool, again and again.
    Nor is one for unit length alone, which costs the methods nothing."""

    def __init__(self, pool: Tensor, base_mean: Tensor | None, memory: int) -> None:
        self.pool, self.base_mean, self.memory = pool, base_mean, memory
        self._copies: dict[tuple[str, ...], Tensor] = {(): pool}

    def prepare(self, item: Run) -> tuple[Tensor, dict[str, Any]]:
        """Features, and the hyper-parameters left for them."""
        hyper = dict(item.hyper)
        if not item.method.takes_base_mean:
            return self.pool, hyper
        change = make_transform(hyper["transform"], self.base_mean, self.pool)
        done, left = change.steps[: change.rows_only], change.steps[change.rows_only :]
        if done == ("l2",) or (done not in self._copies and not self._copy(change._replace(steps=done))):
            done, left = (), change.steps
        base_mean = self.base_mean if "center" in left else None
        return self._copies[done], {**hyper, "transform": "+".join(left) or "none", "base_mean": base_mean}

    def _copy(self, change: Transform) -> bool:
        """Whether there was room for it."""
        dtype = torch.float64 if self.pool.dtype == torch.float64 else torch.float32
        size = self.pool.numel() * dtype.itemsize
        if size > self.memory:
            return False
        self.memory -= size
        copy = torch.empty(self.pool.shape, dtype=dtype, device=self.pool.device)
        for rows in row_blocks(self.pool):
            copy[rows] = change(self.pool[rows])
        self._copies[change.steps] = copy
        return True
