"""All baselines, and tasks for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import torch
from helpers.make_tasks import Task, make_task
from hypothesis import strategies as st
from torch import Tensor

from tim_ext import baselines, transforms
from tim_ext.solver.result import Result

NAN = torch.nan
METHODS = {name: getattr(baselines, name) for name in baselines.__all__}
FAST = {  # the same with fewer iterations
    name: partial(method, iterations=10) if "iterations" in inspect.signature(method).parameters else method
    for name, method in METHODS.items()
}
every = pytest.mark.parametrize("method", FAST.values(), ids=FAST)


# One task, without padding, in float64: probabilities [N, K] and weights [K, d] --------------------


def means(z: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([z[labels == k].mean(dim=0) for k in range(int(labels.max()) + 1)])


def transformed(name: str, task: Task, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The samples that are no padding."""
    used = task.labels != -100
    change = transforms.make_transform(name, mean, task.features)
    return change(task.features[used], task.labels[used]), task.labels[used]


def ragged(seed: int, least_classes: int = 1, least_queries: int = 1) -> list[Task]:
    """Tasks of different size, classes and shots, with padding, hard to tell apart."""
    random = Random(seed)
    d, tasks = random.randint(2, 9), []
    for _ in range(random.randint(1, 4)):
        shots = [random.randint(1, 3) for _ in range(random.randint(least_classes, 4))]
        queries, padding = random.randint(least_queries, 12), random.choice([0, 0, 2])
        tasks.append(make_task(random.randrange(10**6), shots, queries, d, noise=1.5, padding=padding))
        tasks[-1].features[tasks[-1].labels == -100] = random.choice([NAN, torch.inf, 0.0])
    return tasks


seeds = st.integers(0, 10**6)


def task_lists(tasks: list[Task]) -> tuple[list[Tensor], list[Tensor]]:
    return [task.features for task in tasks], [task.labels for task in tasks]


Loop = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # z, labels of a task -> probabilities, weights


def assert_solves(
    result: Result, tasks: list[Task], loop: Loop, name: str, mean: Tensor | None = None
) -> None:
    """A list result against the loop."""
    for task, probs, predictions, weights in zip(
        tasks, result.probs, result.predictions, result.weights, strict=True
    ):
        expected, w = loop(*transformed(name, task, mean))
        used = task.labels != -100
        torch.testing.assert_close(probs[used], expected, atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(weights, w, atol=1e-8, rtol=1e-6)
        assert (probs[~used] == 0).all()
        assert (predictions[~used] == -100).all()
        best = probs[used].topk(min(2, len(w)), dim=1)
        clear = best.values[:, 0] - best.values[:, -1] > 1e-6 if len(w) > 1 else torch.tensor([])
        if len(w) > 1:
            assert torch.equal(predictions[used][clear], expected.argmax(dim=1)[clear])
