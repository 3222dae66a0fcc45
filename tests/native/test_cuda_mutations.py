"""Every access of the CUDA kernels is checked, and every barrier in them is needed.

A few cases that together pass every barrier run in the emulation that checks each access of a kernel: bounds,
alignment, reads before writes, and races by CUDA's rules, whatever the schedule. Then each barrier in turn is
taken away, at run time, by its file and line; some case must notice. One that nobody misses is redundant, or
lies on a path that no case takes: the test fails and lists it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from cuda_emulation import build
from helpers.backends import Emulated, needs_emulation
from helpers.make_tasks import Task, make_task
from helpers.parity import (
    SOLVERS,
    assert_close,
    check_step,
    gradient_truth,
    lists,
    solve,
    solve_truth,
    step_case,
)
from helpers.processes import run_python
from helpers.sample_inputs import random_prior, random_weight

from tim_ext.solver.params import GdParams

pytestmark = needs_emulation

BUILD = os.environ.get("TIM_EXT_EMULATION_BUILD", "checked")
SEEDS = range(3)
SOURCES = sorted((build.CSRC / "cuda/core").glob("*.cu*"))
BARRIER = re.compile(r"\b(__syncthreads|__syncwarp|TIM_SYNC)\(")


def is_exempt(line: str) -> bool:
    """Whether to leave a barrier out: the definition of TIM_SYNC is one only where it is used."""
    return line.rstrip().endswith("\\")


def barriers() -> list[str]:
    """file:line of every __syncthreads, __syncwarp and TIM_SYNC in the kernels."""
    return [
        f"{source.name}:{number}"
        for source in SOURCES
        for number, line in enumerate(source.read_text().splitlines(), start=1)
        if BARRIER.search(line.split("//")[0]) and not is_exempt(line)
    ]


# The cases ------------------------------------------------------------------------------------------------


@cache
def tasks_of(*shapes: tuple[int, int, int, int]) -> list[Task]:
    """(classes, shots, queries, d), some with a little padding; the last one with much, if there are four."""
    return [
        make_task(seed, (shots,) * classes, queries, d, noise=1.0, padding=(0, 1, 0, 300)[seed % 4])
        for seed, (classes, shots, queries, d) in enumerate(shapes)
    ]


@cache
def truth_of(
    solver: str, shapes: tuple[tuple[int, int, int, int], ...], dtype: torch.dtype, options: tuple[Any, ...]
) -> Any:
    features, labels = lists(tasks_of(*shapes), dtype)
    return solve_truth(solver, [item.double() for item in features], labels, **dict(options))


def solver_case(
    solver: str, dtype: torch.dtype, *shapes: tuple[int, int, int, int], device: Any = None, **options: Any
) -> Callable[[str, int], None]:
    """A ragged batch on a device, against the reference."""
    options = {"iterations": 3, "history": True, **options}

    def run(variant: str, seed: int) -> None:
        backend = Emulated(variant, seed, **(device or {}))
        features, labels = lists(tasks_of(*shapes), dtype)
        truth = truth_of(solver, shapes, dtype, tuple(options.items()))
        result = solve(backend, solver, features, labels, **options)
        assert_close(result, truth, torch.float32 if dtype == torch.float16 else dtype)

    return run


def sample_case(
    solver: str, dtype: torch.dtype, *shapes: tuple[int, int, int, int], **options: Any
) -> Callable[[str, int], None]:
    """With a weight and a prior for every sample."""
    tasks = tasks_of(*shapes)
    given = {
        "sample_weight": tuple(random_weight(task, seed) for seed, task in enumerate(tasks)),
        "sample_prior": tuple(random_prior(task, seed) for seed, task in enumerate(tasks)),
        "sample_prior_weight": 0.3,
    }
    return solver_case(solver, dtype, *shapes, **options, **given)


def refused_case(solver: str, dtype: torch.dtype) -> Callable[[str, int], None]:
    """A block that takes one refused task after the other."""

    def run(variant: str, seed: int) -> None:
        features, labels = lists(tasks_of(*[(2, 2, 9, 6)] * 5), dtype)
        labels = [*labels[:1], *(item.clamp(min=0) + 2 for item in labels[1:])]
        with pytest.raises(ValueError, match=r"got [23] at sample 0 in task 1"):
            solve(
                Emulated(variant, seed, processors=1), solver, features, labels, num_classes=2, iterations=1
            )

    return run


def not_finite_case(solver: str) -> Callable[[str, int], None]:
    """Results beyond the range of float32: many threads find it, and all may say so."""

    def run(variant: str, seed: int) -> None:
        features, labels = lists(tasks_of(*THREE), SINGLE)
        extreme = {"normalize": False, "temperature": 1e8, "iterations": 2}
        with pytest.raises(ValueError, match="too extreme"):
            solve(Emulated(variant, seed), solver, [item * 1e18 for item in features], labels, **extreme)

    return run


def step_cases(variant: str, seed: int, dtype: torch.dtype) -> None:
    backend, case = Emulated(variant, seed), step_case(7)
    s = {name: value.to(dtype) if value.is_floating_point() else value for name, value in case.items()}
    probs = case["log_probs"].exp()
    backends = SingleSchedule(backend)
    check_step(
        backends,
        lambda run: run.distance_softmax(s["features"], s["weights"], 15.0),
        (probs, case["log_probs"]),
        dtype,
    )
    check_step(
        backends,
        lambda run: run.q_update(s["log_probs"], s["labels"], 0.2, 0.9, 1.1),
        (case["assignments"],),
        dtype,
    )
    weights = s["features"], s["weights"], probs.to(dtype), s["assignments"], s["labels"]
    check_step(backends, lambda run: run.w_update(*weights, 0.3, 0.2, 0.9), (case["new_weights"],), dtype)


def gradient_case(variant: str, seed: int, dtype: torch.dtype) -> None:
    case = step_case(7)
    options = {"lam": 0.3, "alpha": 0.2, "temperature": 9.0, "marginal_weight": 1.2}
    features, weights = case["features"].to(dtype), case["weights"].to(dtype)
    check_step(
        SingleSchedule(Emulated(variant, seed)),
        lambda run: run.gd_gradient(features, weights, case["labels"], **options),
        gradient_truth(case, GdParams(**options), None),
        dtype,
    )


class SingleSchedule:
    """A backend whose only schedule is its own."""

    def __init__(self, backend: Emulated) -> None:
        self.backend = backend

    def schedules(self, count: int) -> list[Emulated]:
        return [self.backend]


SINGLE, DOUBLE = torch.float32, torch.float64
THREE = (3, 2, 14, 19), (5, 1, 22, 19), (2, 3, 31, 19)  # more tasks than blocks, if there is one processor
FIRST = torch.randn(4, 19, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 4
ONE = {"processors": 1}
SMALL_TEAM = {"processors": 3, "shared_per_block": 49152}
LARGE = {"device": {"processors": 3}, "iterations": 2, "history": False, "tol": 1e-3}
CASES: dict[str, Callable[[str, int], None]] = {
    **{
        f"{solver}, {dtype}": solver_case(solver, dtype, *THREE, device=ONE)
        for solver in SOLVERS
        for dtype in (SINGLE, DOUBLE)
    },
    **{
        f"registers, N = {n}": solver_case("dual", SINGLE, (6, 2, n - 12, 35))
        for n in (40, 70, 90, 110, 128)  # a thread's tile of G of 4 x 4 to 8 x 8
    },
    "G in shared memory": solver_case(  # 117 KB of it
        "dual", SINGLE, (4, 3, 130, 21), (9, 1, 140, 21), device={"processors": 1, "shared_per_block": 232448}
    ),
    "G in global memory": solver_case(
        "dual", SINGLE, (4, 3, 130, 21), (9, 1, 140, 21), device={"processors": 1, "shared_per_block": 49152}
    ),
    "more than 128 columns": solver_case("dual", SINGLE, (3, 2, 14, 150), iterations=1),
    "more than 256 samples": solver_case("gd", SINGLE, (3, 2, 300, 9), iterations=1),
    "mostly padding": solver_case("dual", SINGLE, *THREE, (3, 2, 20, 19)),
    "mostly padding, primal": solver_case("primal", DOUBLE, *THREE, (3, 2, 20, 19)),
    "mostly padding, gd": solver_case("gd", SINGLE, *THREE, (3, 2, 20, 19)),
    "tol": solver_case("dual", SINGLE, *THREE, device=ONE, tol=1e-2),
    "tol, primal": solver_case("primal", SINGLE, *THREE, device=ONE, tol=1e-2),
    "tol, gd": solver_case("gd", SINGLE, *THREE, device=ONE, tol=1e-2),
    "auto": solver_case("dual", DOUBLE, (3, 2, 14, 19), marginal_weight="auto", iterations=27),
    "auto, registers": solver_case("dual", SINGLE, (3, 2, 14, 19), marginal_weight="auto"),
    **{
        f"chosen steps, {solver}, {dtype}": solver_case(solver, dtype, *THREE, device=ONE, relaxation="auto")
        for solver in ("dual", "primal")
        for dtype in (SINGLE, DOUBLE)
    },
    "chosen steps, G in global memory": solver_case(
        "dual", SINGLE, (4, 3, 130, 21), (9, 1, 140, 21), device=SMALL_TEAM, relaxation="auto"
    ),
    "chosen steps, no query": solver_case("dual", SINGLE, (3, 2, 0, 19), relaxation="auto"),
    "chosen steps of a team": solver_case(
        "dual", SINGLE, (4, 3, 150, 16), **LARGE | {"device": SMALL_TEAM}, smoothing=0.6, relaxation="auto"
    ),
    "chosen steps of a team, primal": solver_case(
        "primal", SINGLE, (4, 3, 250, 80), **LARGE, smoothing=0.6, relaxation="auto"
    ),
    **{
        f"smoothing, {solver}, {dtype}": solver_case(solver, dtype, *THREE, device=ONE, smoothing="auto")
        for solver in ("dual", "primal")
        for dtype in (SINGLE, DOUBLE)
    },
    "smoothing, G in global memory": solver_case(
        "dual", DOUBLE, (4, 3, 130, 21), device={"processors": 1, "shared_per_block": 49152}, smoothing=0.6
    ),
    "smoothing, more than a tile": solver_case("primal", DOUBLE, (4, 3, 130, 21), smoothing=0.6),
    "smoothing of a team": solver_case(
        "dual", SINGLE, (4, 3, 150, 16), **LARGE | {"device": SMALL_TEAM}, smoothing=0.6
    ),
    "smoothing of a team, primal": solver_case("primal", SINGLE, (4, 3, 250, 80), **LARGE, smoothing=0.6),
    "first weights": solver_case("primal", SINGLE, (4, 2, 30, 19), smoothing=0.6, weights=FIRST),
    "first weights, gd": solver_case("gd", DOUBLE, (4, 2, 30, 19), weights=FIRST),
    "first weights of a team": solver_case(
        "primal", SINGLE, (4, 3, 250, 19), **LARGE, smoothing=0.6, weights=FIRST
    ),
    "prior": solver_case("dual", SINGLE, (4, 2, 30, 19), class_prior=(0.4, 0.1, 0.3, 0.2)),
    **{
        f"sample inputs, {solver}, {dtype}": sample_case(solver, dtype, *THREE, device=ONE)
        for solver in ("dual", "primal", "gd")
        for dtype in (SINGLE, DOUBLE)
    },
    "sample inputs, auto": sample_case("dual", SINGLE, (3, 2, 14, 19), marginal_weight="auto", iterations=27),
    "sample inputs, more than 256 samples": sample_case("dual", SINGLE, (3, 2, 300, 9), iterations=1),
    "sample inputs of a team": sample_case(
        "dual", SINGLE, (4, 3, 150, 16), **LARGE | {"device": SMALL_TEAM}, smoothing=0.6
    ),
    "sample inputs of a team, primal": sample_case("primal", SINGLE, (4, 3, 250, 80), **LARGE, smoothing=0.6),
    "sample inputs of a team, gd": sample_case("gd", SINGLE, (16, 1, 2000, 80), **LARGE),
    "dual of a team": solver_case("dual", SINGLE, (10, 1, 720, 16), **LARGE),
    "primal of a team": solver_case("primal", SINGLE, (16, 1, 2000, 80), **LARGE),
    "gd of a team": solver_case("gd", SINGLE, (16, 1, 2000, 200), **LARGE),
    "gd of a team, in slices": solver_case("gd", SINGLE, (8, 1, 8200, 40), **LARGE),
    **{f"{solver}, refused": refused_case(solver, DOUBLE) for solver in SOLVERS},
    "registers, refused": refused_case("dual", SINGLE),
    **{f"{solver}, not finite": not_finite_case(solver) for solver in ("dual", "primal", "gd")},
    "no query": solver_case("dual", SINGLE, (3, 2, 0, 19)),
    "no query, primal": solver_case("primal", SINGLE, (3, 2, 0, 19)),
    "no query, gd": solver_case("gd", SINGLE, (3, 2, 0, 19)),
    "half": solver_case("gd", torch.float16, (3, 2, 14, 20)),
    "probs only": solver_case("auto", SINGLE, *THREE, device=ONE, outputs=("probs",), history=False),
    "steps, float32": lambda variant, seed: step_cases(variant, seed, SINGLE),
    "steps, float64": lambda variant, seed: step_cases(variant, seed, DOUBLE),
    "gradient, float32": lambda variant, seed: gradient_case(variant, seed, SINGLE),
    "gradient, float64": lambda variant, seed: gradient_case(variant, seed, DOUBLE),
}


# The tests ------------------------------------------------------------------------------------------------


LONG = {"smoothing of a team, primal", "chosen steps of a team, primal", "gd of a team, in slices"}
LONG |= {"sample inputs of a team, primal", "sample inputs of a team, gd"}
MARKED = [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES]


@pytest.mark.parametrize("name", MARKED)
def test_every_access_is_right(name):
    CASES[name](BUILD, seed=0)  # the checks follow CUDA's rules, not what a schedule happens to do


def passed_barriers() -> dict[str, list[str]]:
    """The cases that pass each barrier, the quickest first."""
    module = build.tim_ext_kernels(BUILD)
    effort = {}
    for name, case in CASES.items():
        module.take_barrier_counts()
        case(BUILD, 0)
        effort[name] = module.take_barrier_counts()
    cases = sorted(effort, key=lambda name: sum(effort[name].values()))
    return {site: [name for name in cases if site in effort[name]] for site in barriers()}


def is_missed(site: str, cases: list[str]) -> bool:
    """Whether a case fails without this barrier."""
    module = build.tim_ext_kernels(BUILD)
    module.remove_barrier(site)
    try:
        for seed in SEEDS:
            for name in cases:
                try:
                    CASES[name](BUILD, seed)
                except (RuntimeError, AssertionError, ValueError, pytest.fail.Exception):
                    return True
        return False
    finally:
        module.remove_barrier("")


@pytest.mark.slow
def test_every_barrier_is_needed():
    passed = passed_barriers()
    never = [site for site, cases in passed.items() if not cases]
    assert not never, f"no case passes the barriers at {never}: add one"
    redundant = [site for site, cases in passed.items() if not is_missed(site, cases)]
    assert not redundant, f"without the barriers at {redundant} nothing changes: remove them"


@pytest.mark.slow
def test_address_sanitizer_finds_nothing():
    """The same cases once more, with AddressSanitizer, which also sees local arrays."""
    build.tim_ext_kernels_path("address")
    arguments = ["-m", "pytest", "-q", "-n0", __file__, "-k", "test_every_access_is_right", "--slow"]
    done = run_python(*arguments, TIM_EXT_EMULATION_BUILD="address", **build.address_environment())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert f"{len(CASES)} passed" in done.stdout
