"""Random sample weights and sample priors of a task."""

from __future__ import annotations

import torch
from torch import Tensor

from .make_tasks import Task


def random_weight(task: Task, seed: int = 0) -> Tensor:
    """[N]  Some are 0; what stands at other samples than queries must not be read."""
    generator = torch.Generator().manual_seed(seed)
    weight = 3 * torch.rand(len(task.labels), generator=generator, dtype=torch.float64)
    weight[torch.rand(len(weight), generator=generator) < 0.2] = 0
    return weight.masked_fill(task.labels != -1, torch.nan)


def random_prior(task: Task, seed: int = 0) -> Tensor:
    """[N, K]  Some are 0, and some whole rows; rows of padding must not be read."""
    generator = torch.Generator().manual_seed(seed + 100)
    shape = len(task.labels), int(task.labels.max()) + 1
    prior = torch.rand(*shape, generator=generator, dtype=torch.float64) ** 3
    prior[prior < 0.01] = 0
    prior[torch.rand(len(prior), generator=generator) < 0.2] = 0
    return prior.masked_fill((task.labels == -100)[:, None], -1)
