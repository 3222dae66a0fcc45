"""The solvers on emulated GPUs of other sizes: where G lies, and how many blocks work on a task."""

from __future__ import annotations

import pytest
import torch
from helpers.backends import Emulated, needs_emulation
from helpers.make_tasks import Task, make_task
from helpers.parity import SOLVERS, assert_close, check, dtypes, lists, same_bits, solve, solve_truth, task_of
from helpers.sample_inputs import random_prior, random_weight
from torch import Tensor

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


LARGE = {
    "many samples": ((3, 4, 2, 1), 8200, 130),
    "many classes": ((2,) * 30, 2300, 40),
    "a large Gram matrix": ((2,) * 30, 1300, 40),
}


@dtypes
@pytest.mark.parametrize(
    ("solver", "shape"),
    [
        *((solver, shape) for solver in ("primal", "gd") for shape in ("many samples", "many classes")),
        ("dual", "a large Gram matrix"),
    ],
)
def test_a_large_task_is_shared_by_blocks(solver, dtype, shape):
    """By as many as the task is worth; their number changes no bit."""
    task, options = make_task(0, *LARGE[shape], noise=1.0), {"iterations": 1}
    truth = solve_truth(solver, task.features, task.labels, **options)
    results, barriers = [], []
    for processors in (1, 3):
        backend = Emulated(processors=processors)
        backend.module.take_barrier_counts()
        results.append(solve(backend, solver, task.features.to(dtype), task.labels, **options))
        barriers.append(sum(backend.module.take_barrier_counts().values()))
    assert_close(results[0], truth, dtype)
    assert same_bits(*results)
    assert barriers[1] > barriers[0]  # of every block


@pytest.mark.parametrize("solver", ["primal", "gd"])
def test_a_team_that_does_not_fit_is_one_block(solver):
    """Part of the device may be set aside for others: then the launch of a team is refused."""
    task, options = make_task(0, *LARGE["many samples"], noise=1.0), {"iterations": 1}
    whole, part = (
        solve(
            Emulated(processors=3, resident=resident), solver, task.features.float(), task.labels, **options
        )
        for resident in (0, 2)
    )
    assert same_bits(whole, part)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("device", [{}, {"processors": 3, "shared_per_block": 49152}])
def test_a_long_batch_comes_in_slices(solver, device):
    """Of at least one task; they change no bit. Tasks of every kernel: G in registers or not, a team."""
    tasks = [make_task(seed, (3, 1, 2), 30 + 60 * seed, 21, noise=1.0) for seed in range(4)]
    if device:
        tasks.append(make_task(4, (2,) * 9, 2000, 21, noise=1.0))
    options = {"iterations": 1}
    features, labels = lists(tasks, torch.float32)
    whole = solve(Emulated(**device), solver, features, labels, **options)
    for slice_, least in ((1.0, len(tasks) - 1), (6e4, 1)):
        backend = Emulated(**device, slice=slice_)
        backend.module.take_pauses()
        assert same_bits(whole, solve(backend, solver, features, labels, **options))
        assert least <= backend.module.take_pauses() <= len(tasks) - 1


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


def sample_inputs(tasks: list[Task]) -> dict[str, list[Tensor]]:
    return {
        "sample_weight": [random_weight(task, seed) for seed, task in enumerate(tasks)],
        "sample_prior": [random_prior(task, seed) for seed, task in enumerate(tasks)],
    }


@pytest.mark.parametrize("solver", SOLVERS)
@dtypes
@pytest.mark.parametrize("device", DEVICES)
def test_sample_inputs_on_every_device(solver, dtype, device):
    """With padding; and a task alone has the bits that it has in the batch."""
    tasks = [make_task(seed, (3, 1, 2, 1), 130, 21, noise=1.0, padding=seed) for seed in range(3)]
    tasks += [make_task(seed, (2,) * (6 + seed), 40, 21, noise=1.0) for seed in range(3, 5)]
    given, options = sample_inputs(tasks), {"iterations": 3, "history": True}
    truth = solve_truth(solver, *lists(tasks, torch.float64), **options, **given)
    backend, (features, labels) = Emulated(**DEVICES[device]), lists(tasks, dtype)
    together = check(backend, solver, (features, labels), truth, dtype, **options, **given)
    for t in (0, 2, 4):
        own = {name: [values[t]] for name, values in given.items()}
        alone = solve(backend, solver, features[t : t + 1], labels[t : t + 1], **options, **own)
        assert same_bits(task_of(alone, 0), task_of(together, t))


@pytest.mark.parametrize("solver", ["dual", "primal", "gd"])
def test_sample_inputs_of_a_task_that_is_shared_by_blocks(solver):
    task, options = make_task(0, (2,) * 30, 1300, 40, noise=1.0), {"iterations": 1}
    given = {name: values[0] for name, values in sample_inputs([task]).items()}
    truth = solve_truth(solver, task.features, task.labels, **options, **given)
    one, three = (
        solve(Emulated(processors=count), solver, task.features.float(), task.labels, **options, **given)
        for count in (1, 3)
    )
    assert_close(one, truth, torch.float32)
    assert same_bits(one, three)


@dtypes
@pytest.mark.parametrize("solver", SOLVERS)
def test_no_query_that_counts_among_tasks_that_have_some(solver, dtype):
    tasks = [make_task(seed, (2,) * 3, 25, 12, noise=1.0) for seed in range(3)]
    weights = [random_weight(task, seed) for seed, task in enumerate(tasks)]
    weights[1] = torch.zeros(len(weights[1]), dtype=torch.float64)
    options = {"iterations": 4, "history": True, "sample_weight": weights}
    truth = solve_truth(solver, *lists(tasks, torch.float64), **options)
    found = check(Emulated(), solver, lists(tasks, dtype), truth, dtype, **options)
    assert list(found.iterations) == [4, 0, 4]
    assert (found.proportions[1] == 0).all()
