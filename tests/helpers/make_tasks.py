"""Tasks to solve: seeded, of every shape, and separable or not as asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

PADDING = -100


@dataclass
class Task:
    features: Tensor  # [N, d]
    labels: Tensor  # [N]  with -1 for queries and -100 for padding
    truth: Tensor  # [N]  the true class of every sample

    def accuracy(self, predictions: Tensor) -> float:
        query = self.labels == -1
        return (predictions == self.truth)[query].double().mean().item()


def class_means(classes: int, d: int, generator: torch.Generator) -> Tensor:
    """[K, d], sqrt(2) apart or more: orthogonal unit vectors, or points of a grid where d is too small."""
    if classes <= d:
        means, _ = torch.linalg.qr(torch.randn(d, classes, generator=generator, dtype=torch.float64))
        return means.T
    side = next(side for side in range(2, classes + 1) if side**d >= classes)
    digits = torch.arange(classes)[:, None] // side ** torch.arange(d) % side
    return 1.5 * (digits - digits.double().mean(dim=0))


def make_task(
    seed: int,
    shots: Sequence[int] = (5, 5, 5, 5, 5),
    queries: int = 75,
    d: int = 64,
    *,
    noise: float = 0.1,
    padding: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Task:
    """Samples at their class mean plus noise of length about `noise`, in random order. Queries go round the
    classes: a class without any query makes TIM pull at the others' queries, and the iteration unstable."""
    generator = torch.Generator().manual_seed(seed)
    classes = len(shots)
    support = torch.repeat_interleave(torch.arange(classes), torch.tensor(shots))
    truth = torch.cat([support, torch.arange(queries) % classes, torch.zeros(padding, dtype=torch.int64)])
    labels = truth.clone()
    labels[len(support) :] = -1
    labels[len(support) + queries :] = PADDING
    scatter = torch.randn(len(truth), d, generator=generator, dtype=torch.float64) / d**0.5
    features = class_means(classes, d, generator)[truth] + noise * scatter
    order = torch.randperm(len(truth), generator=generator)
    return Task(features[order].to(dtype), labels[order], truth[order])


def make_batch(seeds: range, **shape: Any) -> tuple[Tensor, Tensor, list[Task]]:
    """Features [T, N, d], labels [T, N] of tasks of one shape."""
    tasks = [make_task(seed, **shape) for seed in seeds]
    return torch.stack([t.features for t in tasks]), torch.stack([t.labels for t in tasks]), tasks


@dataclass
class Problem:
    """A ragged batch of well-separated tasks, and for how many iterations they stay so."""

    tasks: list[Task]
    normalize: bool
    iterations: int

    @property
    def arguments(self) -> tuple[list[Tensor], list[Tensor]]:
        return [task.features for task in self.tasks], [task.labels for task in self.tasks]

    @property
    def options(self) -> dict[str, Any]:
        return {"normalize": self.normalize, "iterations": self.iterations}


@st.composite
def separable_problems(draw: Callable[..., Any]) -> Problem:
    """One to three tasks: K 2..60, unequal shots 1..5, 1..500 queries, d 2..2048, some with padding."""
    d = draw(st.one_of(st.integers(2, 64), st.integers(65, 2048)))
    tasks, stable, work = [], True, 0
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        classes = draw(st.one_of(st.integers(2, 10), st.integers(11, 60)))
        seed = draw(st.integers(0, 10**6))
        generator = torch.Generator().manual_seed(seed)
        most = draw(st.sampled_from([1, 5]))
        shots = torch.randint(1, most + 1, (classes,), generator=generator).tolist()
        queries = draw(st.one_of(st.integers(1, 60), st.integers(61, 500)))
        tasks.append(make_task(seed, shots, queries, d, padding=draw(st.sampled_from([0, 0, 1, 7]))))
        stable &= queries >= classes
        work += (sum(shots) + queries) * classes * d
    normalize = all(task.truth.max() < d for task in tasks) and draw(st.booleans())
    iterations = (150 if work < 5e6 else 30) if stable else 10
    return Problem(tasks, normalize, iterations)
