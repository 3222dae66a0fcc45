"""For tests of evaluations: tasks of every kind, stand-ins for methods, accuracies by counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tim_ext import tasks
from tim_ext.solver.result import Result
from tim_ext.tasks import Tasks

QUICK = {  # the slow ones, shortened
    "baseline": {"iterations": 10},
    "baseline++": {"iterations": 10},
    "pt-map": {"iterations": 5, "tol": 1e-2},
    "paddle": {"lam": 5.0},  # not slow, but distances of 16 features are small against the default
    **{name: {"iterations": 50, "lr": 1e-3} for name in ("ent-min", "tim-gd", "alpha-tim", "alpha-am")},
}


SAMPLERS = {
    "balanced": lambda labels: tasks.balanced(labels),
    "unbalanced": lambda labels: tasks.dirichlet(labels, queries=25),
    "few": lambda labels: tasks.few_classes(labels, queries=25),
    "random": lambda labels: tasks.meta_dataset(labels),
}
Stand = Callable[..., Result]  # in the place of a method


def guess(labels: Any) -> Result:
    """Class 0 for every sample."""
    one = isinstance(labels, Tensor)
    predictions = torch.zeros_like(labels) if one else [torch.zeros_like(item) for item in labels]
    return Result(None, predictions, None, torch.zeros(len(labels)))


def by_hand(predictions: list[Tensor], drawn: Tasks) -> list[float]:
    """Accuracies in percent, by counting."""
    percent = []
    for predicted, labels, truth in zip(predictions, drawn.labels, drawn.truth, strict=True):
        answers = zip(predicted.tolist(), labels.tolist(), truth.tolist(), strict=True)
        right = [p == t for p, y, t in answers if y == -1]
        percent.append(100 * sum(right) / len(right))
    return percent
