"""How the time of tim_ext.adm grows: tasks, ways, shots, queries, dimensions, threads, types; and where the
dual and the primal form cross. The points of a sweep take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import tim_ext

from . import competitors
from .comparison import Candidate, Comparison
from .conftest import suite
from .tasks import Shape, Tasks

THREADS = min(2, torch.get_num_threads())
SOME = 4  # tasks of a point that are compared with plain torch
ALIKE = 0.99


@dataclass(frozen=True)
class Point:
    """One place of a sweep; call(tasks) -> predictions [T, N]."""

    shape: Shape
    call: Callable[[Tasks], Tensor]
    x: float
    dtype: torch.dtype = torch.float32
    threads: int | None = None
    iterations: int = 150


def plain(tasks: Tasks) -> Tensor:
    return tim_ext.adm(tasks.features, tasks.labels).predictions


def sweep(
    name: str, variable: str, points: dict[str, Point], *, quick: bool = False, seconds: float = 4.0
) -> Comparison:
    def make(device: torch.device) -> Callable[[Point], Tasks]:
        return cache(lambda point: point.shape.make(device, point.dtype))

    def check(who: str, predictions: Tensor, data: Callable[[Point], Tasks]) -> None:
        point = points[who]
        tasks = data(point)
        first = tasks.features[:SOME].float(), tasks.labels[:SOME]
        expected = competitors.torch_regrouped_loop(*first, tasks.support, point.iterations)
        alike = (predictions[:SOME] == expected).double().mean()
        assert alike >= ALIKE, (
            f"{alike:.2%} of the predictions are those of plain torch, expected {ALIKE:.0%}"
        )

    candidates = {
        who: Candidate(
            lambda data, point=point: point.call(data(point)),
            multiply_adds=point.shape.adm_multiply_adds() if point.shape.samples < 2 * point.shape.dim else 0,
            bytes=point.shape.bytes(),
            tasks=point.shape.tasks,
            threads=point.threads,
            double=point.dtype == torch.float64,
            x={variable: point.x},
        )
        for who, point in points.items()
    }
    return Comparison(name, make, candidates, check, threads=THREADS, quick=quick, seconds=seconds)


def numbered(variable: str, values: tuple[int, ...], base: Shape) -> dict[str, Point]:
    return {f"{value:,}": Point(replace(base, **{variable: value}), plain, value) for value in values}


# Many tasks come from one pool of features, as users have them.


def tasks_sweep() -> Comparison:
    """10,000 tasks through `index=`: the rows of 100 tasks, in another order for each."""
    counts, shape = (1, 10, 100, 1000, 10_000), Shape(100)

    def make(device: torch.device) -> dict[int, tuple[Tensor, Tensor, Tensor, Tensor]]:
        made = shape.make(device)
        pool = made.features.flatten(0, 1)
        data = {}
        for count in counts:
            chosen = torch.arange(count, device=device) % shape.tasks
            index = chosen[:, None] * shape.samples + torch.arange(shape.samples, device=device)
            data[count] = pool, made.labels[chosen], index, made.truth[chosen]
        return data

    def solve(data: Any, count: int) -> Tensor:
        pool, labels, index, _ = data[count]
        return tim_ext.adm(pool, labels, index=index, outputs=("predictions",)).predictions

    def check(who: str, predictions: Tensor, data: Any) -> None:
        pool, labels, index, _ = data[int(who.replace(",", ""))]
        expected = competitors.torch_regrouped_loop(pool[index[:SOME]], labels[:SOME], shape.support)
        alike = (predictions[:SOME] == expected).double().mean()
        assert alike >= ALIKE, (
            f"{alike:.2%} of the predictions are those of plain torch, expected {ALIKE:.0%}"
        )

    candidates = {
        f"{count:,}": Candidate(
            lambda data, count=count: solve(data, count),
            multiply_adds=replace(shape, tasks=count).adm_multiply_adds(),
            tasks=count,
            x={"tasks": count},
        )
        for count in counts
    }
    return Comparison("tasks", make, candidates, check, threads=THREADS, devices=("cpu", "cuda"))


def dtypes() -> dict[str, Point]:
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    return {str(kind).removeprefix("torch."): Point(Shape(50), plain, 0, kind) for kind in kinds}


def threads() -> dict[str, Point]:
    return {str(n): Point(Shape(200), plain, n, threads=n) for n in range(1, THREADS + 1)}


SWEEPS = [
    tasks_sweep(),
    sweep("ways", "ways", numbered("ways", (5, 10, 20, 50), Shape(4))),
    sweep("shots", "shots", numbered("shots", (1, 5, 20), Shape(20))),
    sweep("dimensions", "d", numbered("dim", (64, 128, 256, 512, 1024, 2048), Shape(20))),
    sweep(
        "queries",
        "queries",
        {
            f"{5 * per_class:,}": Point(Shape(1, queries=per_class), plain, 5 * per_class)
            for per_class in (15, 60, 200, 600, 2000, 6000, 20_000)
        },
    ),
    sweep("threads", "threads", threads()),
    sweep("types", "type", dtypes()),
]


@suite("sweep", SWEEPS)
def test_sweep(run, comparison, candidate, device):
    run(comparison, candidate, device)


# The two forms of the solver ----------------------------------------------------------------------


def forms(samples: int, dim: int, ways: int, iterations: int, *, quick: bool = False) -> Comparison:
    """One task on one thread: the dual form, the primal form, and what `auto` makes of it."""
    shape = Shape(1, ways=ways, shots=1, queries=samples // ways - 1, dim=dim)

    def call(form: str) -> Callable[[Tasks], tim_ext.Result]:
        return lambda tasks: tim_ext.adm(*tasks.one(), iterations=iterations, form=form)

    x: dict[str, float] = {"N": shape.samples, "d": dim, "K": ways, "iterations": iterations}

    def check(who: str, result: tim_ext.Result, tasks: Tasks) -> None:
        dual, primal = (call(form)(tasks) for form in ("dual", "primal"))
        if who == "auto":  # the two forms differ in their last bits: that tells which one it was
            x["picks_dual"] = torch.equal(result.probs, dual.probs)
            assert x["picks_dual"] or torch.equal(result.probs, primal.probs), "neither of the two forms"
        alike = (result.predictions == primal.predictions).double().mean()
        assert alike >= ALIKE, (
            f"{alike:.2%} of the predictions are those of the primal form, expected {ALIKE:.0%}"
        )

    candidates = {form: Candidate(call(form), x=x) for form in ("dual", "primal", "auto")}
    name = f"N = {shape.samples}, d = {dim}, K = {ways}, {iterations} iterations"
    return Comparison(name, shape.make, candidates, check, quick=quick, seconds=0.4)


GRID = [
    forms(
        samples,
        dim,
        ways,
        iterations,
        quick=(samples, dim, ways, iterations) in ((100, 640, 5, 150), (1600, 64, 5, 15)),
    )
    for dim in (64, 256, 640, 2048)
    for samples in (100, 200, 400, 800, 1600, 3200)
    for ways in (5, 20)
    for iterations in (15, 150)
]


@suite("forms", GRID)
def test_forms(run, comparison, candidate, device):
    run(comparison, candidate, device)
