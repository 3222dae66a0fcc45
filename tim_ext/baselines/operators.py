"""What baselines do to the tasks of a piece: operators of csrc/ on the CPU, plain torch on a GPU.

This is the one place that chooses between them. An operator gathers and transforms the samples of a task and
solves it before it takes the next, so that they never leave the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..solver.inputs import PADDING
from ..solver.native import call, require
from ..transforms import Transform, blank


def native(features: Tensor) -> bool:
    """Whether the operators take them; without the library on the CPU, raises how to build it."""
    if not features.is_cpu:
        return False
    require(features.device)
    return True


class Source(NamedTuple):
    """B tasks that lie in a pool: their rows and labels [B, N], and what is to be done to the features."""

    features: Tensor  # [M, d]
    rows: Tensor
    labels: Tensor
    change: Transform

    def call(self, operator: str, *arguments: Any) -> Any:
        """An operator that takes such tasks first."""
        mean = None if self.change.base_mean is None else self.change.base_mean.contiguous()
        task = self.features.contiguous(), self.rows, self.labels, "+".join(self.change.steps), mean
        return call(operator, *task, *arguments)

    def gather(self) -> tuple[Tensor, bool]:
        """The samples [B, N, d], transformed, 0 for padding; and whether all their features are finite, which
        on a GPU is not looked at."""
        if native(self.features):
            z, finite = self.call("gather_tasks")
            return z, bool(finite.all())
        padding = self.labels == PADDING
        rows = self.rows.masked_fill(padding, 0)
        z = self.features.index_select(0, rows.flatten()).view(*rows.shape, -1)
        z = self.change(z if z.dtype == torch.float64 else z.float(), self.labels)
        return blank(z, padding), True
