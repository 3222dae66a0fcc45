"""Numbers of tasks: accuracies, their mean and its 95 % confidence interval, proportions of the queries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..solver.inputs import QUERY
from ..tasks import Tasks

NORMAL_QUANTILE = 1.959963984540054  # of 95 % in the middle


def accuracies(predictions: Tensor | list[Tensor], tasks: Tasks) -> Tensor:
    """Percent of the queries of each task that are right: [T], float64, on the CPU."""
    predicted, labels, truth = (_flat(item).cpu() for item in (predictions, tasks.labels, tasks.truth))
    query = labels == QUERY  # [R]
    if isinstance(predictions, Tensor):  # the same, some times faster
        shape = predictions.shape
        right = torch.eq(predicted, truth) & query
        return 100 * right.view(shape).sum(dim=1).double() / query.view(shape).sum(dim=1)
    sizes = torch.tensor([len(item) for item in predictions])
    owner = torch.repeat_interleave(sizes)[query]  # the task of each query
    right = torch.eq(predicted, truth)[query]
    counts = torch.bincount(owner, minlength=len(sizes))
    return 100 * torch.bincount(owner, right.double(), minlength=len(sizes)) / counts


def _flat(batch: Tensor | list[Tensor]) -> Tensor:
    return batch.flatten() if isinstance(batch, Tensor) else torch.cat(batch)


def mean_and_ci95(values: Tensor) -> tuple[float, float | None]:
    """The mean of values [T], and half the width of its 95 % confidence interval; None for a single value."""
    return values.mean().item(), None if len(values) < 2 else ci95(values).item()


def ci95(values: Tensor) -> Tensor:
    """1.96 s / sqrt(T) of values [T, ..] over the first dimension, with s^2 = sum (x - mean)^2 / (T - 1)."""
    return NORMAL_QUANTILE * values.std(dim=0) / math.sqrt(len(values))


def query_proportions(tasks: Tasks) -> Tensor | list[Tensor]:
    """(n_k + 1) / (n + K) of each task, with n_k of its n queries in class k: > 0 for every class."""
    shares = []
    for labels, truth, classes in zip(tasks.labels, tasks.truth, tasks.classes, strict=True):
        counts = torch.bincount(truth[labels == QUERY], minlength=len(classes)).double() + 1
        shares.append(counts / counts.sum())
    return torch.stack(shares) if isinstance(tasks.labels, Tensor) else shares
