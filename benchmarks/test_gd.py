"""tim_ext.gd beside autograd and torch.optim.Adam: the same tensors, the same steps."""

from __future__ import annotations

import torch
from torch import Tensor

import tim_ext

from . import competitors
from .comparison import Candidate, Comparison
from .conftest import suite
from .tasks import Shape, Tasks

LOOP = "autograd + torch.optim.Adam"
COMPILED = "the same, loss under torch.compile"
RIVALS = {LOOP: competitors.torch_gd_loop, COMPILED: competitors.compiled_torch_gd_loop}
ALIKE = 0.999


def solve(tasks: Tasks, iterations: int) -> Tensor:
    if len(tasks.features) == 1:
        return tim_ext.gd(*tasks.one(), iterations=iterations).predictions[None]
    return tim_ext.gd(tasks.features, tasks.labels, iterations=iterations).predictions


def compare(
    shape: Shape,
    threads: int,
    iterations: int,
    *,
    rivals: tuple[str, ...] = (LOOP,),
    quick: bool = False,
) -> Comparison:
    def check(name: str, predictions: Tensor, tasks: Tasks) -> None:
        alike = (predictions == solve(tasks, iterations)).double().mean()
        assert alike >= ALIKE, f"{alike:.2%} of the predictions are those of tim_ext.gd, expected {ALIKE:.1%}"

    candidates = {
        "tim_ext.gd": Candidate(
            lambda tasks: solve(tasks, iterations), shape.gd_multiply_adds(iterations), shape.bytes()
        )
    }
    for name in rivals:
        candidates[name] = Candidate(
            lambda tasks, rival=RIVALS[name]: rival(tasks.features, tasks.labels, tasks.support, iterations)
        )
    return Comparison(
        f"{shape}, {iterations:,} steps, {threads} thread{'s' * (threads > 1)}",
        shape.make,
        candidates,
        check,
        reference=LOOP,
        tasks=shape.tasks,
        threads=threads,
        quick=quick,
        headline=True,
        devices=("cpu", "cuda"),
    )


THREADS = min(2, torch.get_num_threads())
COMPARISONS = [
    compare(Shape(50), THREADS, 100, rivals=tuple(RIVALS), quick=True),
    compare(Shape(1), 1, 1000, quick=True),
    compare(Shape(50), THREADS, 1000),
    compare(Shape(50, dim=1280), THREADS, 200),
    compare(Shape(4, ways=20), THREADS, 1000),
]


@suite("gd", COMPARISONS)
def test_gd(run, comparison, candidate, device):
    run(comparison, candidate, device)
