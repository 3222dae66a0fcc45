"""The solvers on emulated GPUs of other sizes: where G lies, and how many blocks work on a task."""

from __future__ import annotations

import pytest
import torch
from helpers.backends import Emulated, needs_emulation
from helpers.make_tasks import make_task
from helpers.parity import SOLVERS, assert_close, check, dtypes, lists, same_bits, solve, solve_truth

pytestmark = needs_emulation

DEVICES = {
    "one processor": {"processors": 1},
    "shared memory of a T4": {"shared_per_block": 65536},
    "shared memory of an H100": {"shared_per_block": 232448},
    "little shared memory": {"shared_per_block": 49152, "processors": 2},
}


@pytest.mark.parametrize("solver", SOLVERS)
@dtypes
@pytest.mark.parametrize("device", DEVICES)
def test_every_device_gives_the_same(solver, dtype, device):
    """Where G lies, and how many tasks a block takes, follows from the device."""
    tasks = [make_task(seed, (3, 1, 2, 1), 130, 21, noise=1.0) for seed in range(3)]
    tasks += [make_task(seed, (2,) * 9, 40, 21, noise=1.0) for seed in range(3, 6)]
    options = {"iterations": 3, "history": True}
    truth = solve_truth(solver, *lists(tasks, torch.float64), **options)
    check(Emulated(**DEVICES[device]), solver, lists(tasks, dtype), truth, dtype, **options)


LARGE = {"many samples": ((3, 4, 2, 1), 8200, 70), "many classes": ((2,) * 30, 1300, 40)}


@dtypes
@pytest.mark.parametrize(
    ("solver", "shape"),
    [(solver, shape) for solver in ("primal", "gd") for shape in LARGE] + [("dual", "many classes")],
)
def test_a_large_task_is_shared_by_blocks(solver, dtype, shape):
    """By as many as the task is worth; their number changes no bit."""
    task, options = make_task(0, *LARGE[shape], noise=1.0), {"iterations": 1}
    truth = solve_truth(solver, task.features, task.labels, **options)
    one, three = (
        solve(Emulated(processors=processors), solver, task.features.to(dtype), task.labels, **options)
        for processors in (1, 3)
    )
    assert_close(one, truth, dtype)
    assert same_bits(one, three)


@dtypes
@pytest.mark.parametrize("solver", ["dual", "primal"])
def test_a_smoothed_task_is_shared_by_blocks(solver, dtype):
    task, options = make_task(0, (2, 3, 1, 2), 250, 40, noise=1.0), {"iterations": 1, "smoothing": 0.6}
    truth = solve_truth(solver, task.features, task.labels, **options)
    one, three = (
        solve(
            Emulated(processors=processors, shared_per_block=49152),
            solver,
            task.features.to(dtype),
            task.labels,
            **options,
        )
        for processors in (1, 3)
    )
    assert_close(one, truth, dtype)
    assert same_bits(one, three)
