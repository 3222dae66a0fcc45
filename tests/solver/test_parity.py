"""The solvers on every backend: the same tests, the same tolerances.

The truth is `tim_ext.reference` in float64. Where the backend is an emulated GPU, every case runs in several
schedules of its threads and must give the same bits in each.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.backends import BACKENDS, Backend, backends
from helpers.make_tasks import Task, make_task
from helpers.parity import (
    SCHEDULES,
    SOLVERS,
    TERMS,
    assert_close,
    check,
    dtypes,
    lists,
    same_bits,
    solve,
    solve_truth,
    task_of,
    tensors,
)
from torch import Tensor

import tim_ext

solvers = pytest.mark.parametrize("solver", SOLVERS)


# Shapes --------------------------------------------------------------------------------------------


BATCHES = range(7)  # of three tasks: 21 shapes


@cache
def ragged_batch(number: int) -> tuple[list[Task], dict[str, Any]]:
    """Three tasks: K 1..12, shots 1..3, N 4..140, d 3..70, some with padding; and options."""
    generator = torch.Generator().manual_seed(number)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    d = pick(3, 16) if number % 3 == 0 else pick(17, 70)
    tasks = []
    for _ in range(3):
        classes = pick(1, min(12, d))
        shots = [pick(1, 3) for _ in range(classes)]
        queries = classes + (pick(0, 20) if pick(0, 1) else pick(30, 139 - sum(shots) - classes))
        padding = pick(0, 2) * pick(0, 5)
        tasks.append(make_task(pick(0, 10**6), shots, queries, d, noise=pick(6, 14) / 10, padding=padding))
    options = {"iterations": pick(0, 6), "temperature": (4.0, 15.0)[pick(0, 1)]}
    return tasks, options | {"history": pick(0, 1) == 1, "normalize": pick(0, 3) > 0}


@cache
def ragged_truth(solver: str, number: int) -> tim_ext.Result:
    tasks, options = ragged_batch(number)
    return solve_truth(solver, *lists(tasks, torch.float64), **options)


@backends
@solvers
@dtypes
@pytest.mark.parametrize("number", BATCHES)
def test_ragged_batches(backend, solver, dtype, number):
    tasks, options = ragged_batch(number)
    check(backend, solver, lists(tasks, dtype), ragged_truth(solver, number), dtype, **options)


@backends
@solvers
@dtypes
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 7), (5, 70), (1, 4), (16, 16), (17, 33)], ids=str)
def test_extreme_shapes(backend, solver, dtype, shape):
    """One sample of one class and nothing else; one query; as many classes as dimensions."""
    classes, d = shape
    task = make_task(classes, shots=(1,) * classes, queries=classes - 1, d=d, noise=0.2)
    options = {"iterations": 3, "history": True, "normalize": False}
    truth = solve_truth(solver, task.features, task.labels, **options)
    check(backend, solver, (task.features.to(dtype), task.labels), truth, dtype, **options)


# Options -------------------------------------------------------------------------------------------


TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=20, noise=1.0, padding=3)
PRIOR = torch.tensor([0.4, 0.1, 0.3, 0.2])
OPTIONS = [
    {"marginal_weight": 0.0},
    {"alpha": 0.0},
    {"alpha": 0.0, "marginal_weight": 0.0},
    {"marginal_weight": 2.5, "lam": 3.0, "alpha": 0.5},
    {"lam": 0.0},
    {"temperature": 1.5},
    {"temperature": 60.0},
    {"normalize": False},
    {"num_classes": 4, "class_prior": PRIOR},
    {"class_prior": PRIOR, "marginal_weight": 0.3},
]


@backends
@solvers
@dtypes
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ", ".join(options))
def test_options(backend, solver, dtype, options):
    options = {"iterations": 4, "history": True, **options}
    truth = solve_truth(solver, TASK.features, TASK.labels, **options)
    check(backend, solver, (TASK.features.to(dtype), TASK.labels), truth, dtype, **options)


@backends
@dtypes
@pytest.mark.parametrize("order", [0.5, 2.0, 7.0, 1 + 1e-6])
def test_entropy_order(backend, dtype, order):
    options = {"iterations": 4, "history": True, "entropy_order": order}
    truth = solve_truth("gd", TASK.features, TASK.labels, **options)
    check(backend, "gd", (TASK.features.to(dtype), TASK.labels), truth, dtype, **options)


@backends
@dtypes
@pytest.mark.parametrize("solver", ["dual", "primal"])
def test_beta(backend, dtype, solver):
    options = {"iterations": 4, "beta": 0.7}
    truth = solve_truth(solver, TASK.features, TASK.labels, **options)
    check(backend, solver, (TASK.features.to(dtype), TASK.labels), truth, dtype, **options)


@backends
@dtypes
@pytest.mark.parametrize("solver", ["dual", "primal"])
@pytest.mark.parametrize("reach", [0.6, "auto"])
def test_smoothing(backend, dtype, solver, reach):
    options = {"iterations": 4, "history": True, "smoothing": reach}
    truth = solve_truth(solver, TASK.features, TASK.labels, **options)
    check(backend, solver, (TASK.features.to(dtype), TASK.labels), truth, dtype, **options)


@backends
@solvers
def test_tol_stops_each_task_by_itself(backend, solver):
    tasks = [make_task(seed, (3, 1, 2), 20, 12, noise=noise) for seed, noise in enumerate([0.2, 0.8, 1.2])]
    options = {"iterations": 12, "history": True, "tol": 0.05}
    truth = solve_truth(solver, *lists(tasks, torch.float64), **options)
    assert 1 < truth.iterations.max() < 12
    assert truth.iterations.unique().numel() > 1
    result = check(backend, solver, lists(tasks, torch.float64), truth, torch.float64, **options)
    assert result.history.loss.isnan().any()


@backends
@solvers
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("d", [20, 23])
def test_half_types_are_computed_in_float32(backend, solver, dtype, d):
    task = make_task(1, (3, 1, 4, 2), 30, d, noise=1.0)
    half, options = task.features.to(dtype), {"iterations": 4}
    truth = solve_truth(solver, half.double(), task.labels, **options)
    check(backend, solver, (half, task.labels), truth, torch.float32, **options)
    full = solve(backend, solver, half.float(), task.labels, **options)
    assert same_bits(solve(backend, solver, half, task.labels, **options), full)


@backends
@solvers
@dtypes
def test_no_query_gives_the_prototypes(backend, solver, dtype):
    task = make_task(3, (2, 1, 3), 0, 20)
    options = {"history": True, "iterations": 5}
    truth = solve_truth(solver, task.features, task.labels, **options)
    result = check(backend, solver, (task.features.to(dtype), task.labels), truth, dtype, **options)
    assert result.iterations == 0


@backends
@solvers
@pytest.mark.parametrize(
    "outputs", [(), ("probs",), ("predictions",), ("weights",), ("probs", "weights")], ids=str
)
def test_outputs(backend, solver, outputs):
    task, options = (TASK.features.float(), TASK.labels), {"iterations": 3, "history": True}
    whole = tensors(solve(backend, solver, *task, **options))
    for run in backend.schedules(2):
        part = tensors(solve(run, solver, *task, outputs=outputs, **options))
        assert part.keys() == {*outputs, "iterations", "proportions", "marginal_weight", *TERMS}
        for name in part:
            assert torch.equal(part[name][0], whole[name][0]), name


@backends
@solvers
@dtypes
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_lengths_near_the_edge_of_float32(backend, solver, dtype, scale):
    features = TASK.features.clone()
    features[::3] *= scale
    features[1] = 0
    truth = solve_truth(solver, features, TASK.labels, iterations=3)
    check(backend, solver, (features.to(dtype), TASK.labels), truth, dtype, iterations=3)


# Batches -------------------------------------------------------------------------------------------


SMOOTHED = [(solver, {"smoothing": "auto"}) for solver in ("dual", "primal", "auto")]


@backends
@pytest.mark.parametrize(("solver", "more"), [(solver, {}) for solver in SOLVERS] + SMOOTHED)
@dtypes
def test_a_task_does_not_depend_on_its_batch(backend, solver, dtype, more):
    shapes = [
        ((5,) * 5, 75, 1.2),
        ((1, 2), 1, 1.0),
        ((1,) * 11, 40, 1.0),
        ((3, 1, 2), 120, 1.5),
        ((4, 4), 11, 1.2),
    ]
    tasks = [
        make_task(i, shots, queries, 24, noise=noise) for i, (shots, queries, noise) in enumerate(shapes)
    ]
    features, labels = lists(tasks, dtype)
    options = {"iterations": 3, "history": True, **more}
    batch = solve(backend, solver, features, labels, **options)
    for t, run in zip(range(len(tasks)), backend.schedules(len(tasks)), strict=False):
        assert same_bits(solve(run, solver, features[t], labels[t], **options), task_of(batch, t))
    for run in backend.schedules(SCHEDULES):
        backwards = solve(run, solver, features[::-1], labels[::-1], **options)
        for t in range(len(tasks)):
            assert same_bits(task_of(backwards, len(tasks) - 1 - t), task_of(batch, t))


@backends
@solvers
@dtypes
def test_index_into_a_pool(backend, solver, dtype):
    """Tasks share rows of the pool; rows of padding may be anything."""
    tasks = [make_task(seed, (2, 1, 3), 14, 11, noise=1.0, padding=2) for seed in range(3)]
    pool = torch.cat([task.features for task in tasks]).to(dtype)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(pool), generator=generator)
    rows = torch.empty_like(order)
    rows[order] = torch.arange(len(pool))  # where each sample went
    index, labels = rows.view(3, -1).clone(), torch.stack([task.labels for task in tasks])
    options = {"iterations": 3, "history": True}
    truth = solve_truth(solver, pool.double().view(3, -1, 11), labels, **options)
    index[labels == -100] = 10**9
    check(backend, solver, (pool[order], labels), truth, dtype, index=index, **options)
    ragged = solve(backend, solver, pool[order], [*labels], index=[*index], **options)
    copied = solve(backend, solver, pool.view(3, -1, 11), labels, **options)
    for t in range(3):
        assert same_bits(task_of(ragged, t), task_of(copied, t))


@backends
@solvers
@dtypes
def test_padding_is_ignored(backend, solver, dtype):
    """Whatever its features are. A GPU chooses a kernel by N with padding: the last bits may differ."""
    for padding in (1, 30, 300):
        task = make_task(1, (2, 1, 3), 20, 13, noise=1.0, padding=padding)
        used, options = task.labels != -100, {"iterations": 3, "history": True}
        truth = solve_truth(solver, task.features, task.labels, **options)
        assert (truth.probs[~used] == 0).all()
        assert (truth.predictions[~used] == -100).all()
        features = task.features.to(dtype)
        features[~used] = torch.nan
        check(backend, solver, (features, task.labels), truth, dtype, **options)


@backends
@solvers
def test_many_small_tasks(backend, solver):
    """More tasks than a device runs at once, and a task table of more than one upload."""
    tasks = [make_task(seed, (1, 1), 2 + seed % 3, 5, noise=0.3) for seed in range(120)]
    options = {"iterations": 1}
    truth = solve_truth(solver, *lists(tasks, torch.float64), **options)
    assert_close(solve(backend, solver, *lists(tasks, torch.float64), **options), truth, torch.float64)


# Refusals: the same sentence as the reference's ----------------------------------------------------


def spoil(what: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Three tasks, the second of which must be refused."""
    tasks = [make_task(seed, (2, 1, 3), 300, 11, padding=2) for seed in range(3)]
    features = torch.stack([task.features for task in tasks])
    labels = torch.stack([task.labels for task in tasks])
    query, support = (labels[1] == -1).nonzero()[:, 0], (labels[1] >= 0).nonzero()[:, 0]
    options: dict[str, Any] = {"num_classes": 3}
    if what == "NaN":
        features[1, query[200], 3] = torch.nan
        features[1, query[270], 3] = torch.inf
    elif what == "infinite":
        features[1, support[1], 10] = -torch.inf
    elif what == "label too large":
        labels[1, query[250]] = 3
        labels[1, query[280]] = 7
    elif what == "label too small":
        labels[1, query[4]] = -7
    elif what == "class without support":
        labels[1, labels[1] == 1] = -1
    elif what == "no support":
        labels[1, labels[1] >= 0] = -1
    elif "row" in what:
        rows = torch.arange(labels.numel()).view(3, -1)
        rows[1, query[9]] = -1 if what == "row negative" else labels.numel()
        if what == "row, then label":
            labels[1, query[20]] = 3
        if what == "row of a query, then of a support sample":
            rows[1, support[support > query[9]][0]] = -4
        return features.view(-1, 11), labels, options | {"index": rows}
    return features, labels, options


@backends
@solvers
@dtypes
@pytest.mark.parametrize(
    "what",
    [
        *("NaN", "infinite", "label too large", "label too small", "class without support", "no support"),
        *("row too large", "row negative", "row, then label", "row of a query, then of a support sample"),
    ],
)
def test_refusals(backend, solver, dtype, what):
    features, labels, options = spoil(what)

    def refusal(solve, *arguments):
        with pytest.raises(ValueError, match="in task 1") as error:
            solve(*arguments, solver, features.to(dtype), labels, iterations=1, **options)
        return str(error.value)

    expected = refusal(solve, Backend())
    if what != "row of a query, then of a support sample":  # where the reference names the first
        assert expected == refusal(solve_truth)
    for run in backend.schedules(3):
        assert refusal(solve, run) == expected


@pytest.mark.parametrize("backend", BACKENDS[1:])
@solvers
@dtypes
def test_a_refused_task_is_marked_where_nobody_may_wait(backend, solver, dtype):
    """In a CUDA graph the status is not looked at: NaN says it, and the other tasks are as they are alone."""
    tasks = [make_task(seed, (2, 1, 3), 30, 11, noise=1.0) for seed in range(3)]
    features, labels = lists(tasks, dtype)
    features[1][7, 3] = torch.nan
    options = {"iterations": 2, "history": True}
    for run in backend.schedules(3):
        with patch("tim_ext.solver.solve.check_status"):
            result = solve(run, solver, features, labels, **options)
        assert result.probs[1].isnan().all()
        assert result.weights[1].isnan().all()
        assert result.history.loss[1].isnan().all()
        assert (result.predictions[1] == -100).all()
        assert result.iterations[1] == 0
        for t in (0, 2):
            assert same_bits(task_of(result, t), solve(run, solver, features[t], labels[t], **options))


@backends
@pytest.mark.parametrize("solver", ["dual", "primal", "gd"])
def test_a_result_that_is_not_finite(backend, solver):
    features = TASK.features.float() * 1e18
    for run in backend.schedules(3):
        with pytest.raises(ValueError, match="too extreme"):
            solve(run, solver, features, TASK.labels, normalize=False, temperature=1e8, iterations=2)
