"""`sample_weight=` and `sample_prior=`: every way through the kernels, and any input."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.backends import backends
from helpers.make_tasks import Task, make_task
from helpers.parity import TERMS, check, dtypes, lists, solve_truth, tensors
from helpers.sample_inputs import random_prior, random_weight

import tim_ext
from tim_ext import reference

SOLVERS = {
    "dual": partial(tim_ext.adm, form="dual"),
    "primal": partial(tim_ext.adm, form="primal"),
    "robust": tim_ext.robust,
    "gd": partial(tim_ext.gd, iterations=30, lr=1e-2),
}
every = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
GIVEN = {"weight": ("sample_weight",), "prior": ("sample_prior",), "both": ("sample_weight", "sample_prior")}
whichever = pytest.mark.parametrize("names", GIVEN.values(), ids=GIVEN)
MAKE = {"sample_weight": random_weight, "sample_prior": random_prior}

SMALL = [
    make_task(11, shots=(3, 1, 4, 2), queries=30, d=60, noise=1.0, padding=3),
    make_task(5, shots=(1, 2, 1), queries=40, d=60, noise=1.0),
]
POOL = [make_task(3, shots=(2,) * 7, queries=1300, d=40, noise=1.2, padding=5)]  # several blocks and chunks


def samples(tasks: list[Task], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: [MAKE[name](task, seed) for seed, task in enumerate(tasks)] for name in names}


@backends
@dtypes
@whichever
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("dual", {}),
        ("primal", {"normalize": False}),
        ("auto", {"sample_prior_weight": 0.7, "alpha": 0.3, "beta": 0.6, "marginal_weight": 0.4}),
        ("dual", {"tol": 0.02, "iterations": 20}),
        ("primal", {"tol": 0.02, "iterations": 20}),
        ("dual", {"relaxation": "auto", "iterations": 8}),
        ("primal", {"relaxation": "auto", "iterations": 8}),
        ("dual", {"marginal_weight": "auto", "smoothing": "auto", "relaxation": 0.5, "iterations": 27}),
        ("primal", {"marginal_weight": "auto", "smoothing": 0.5, "relaxation": 0.5, "iterations": 27}),
        ("dual", {"beta": 0.02}),  # powers that underflow
        ("primal", {"beta": 0.02}),
        ("dual", {"sample_prior_weight": 9.0, "history": False}),  # so do those of the priors alone
        ("primal", {"sample_prior_weight": 9.0, "history": False}),
        ("auto", {"temperature": 300.0}),  # large logits, for which float32 is not enough
        ("gd", {}),
        ("gd", {"entropy_order": 2.0, "sample_prior_weight": 0.7}),
        ("gd", {"temperature": 300.0}),
    ],
    ids=str,
)
def test_equals_the_reference(backend, dtype, names, solver, options):
    options = {"iterations": 4, "history": True, **options} | samples(SMALL, names)
    truth = solve_truth(solver, *lists(SMALL, torch.float64), **options)
    check(backend, solver, lists(SMALL, dtype), truth, dtype, **options)


@backends
@dtypes
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("solver", ["dual", "primal", "gd"])
def test_a_pool_equals_the_reference(backend, dtype, solver, history):
    options = {"iterations": 3, "history": history} | samples(POOL, GIVEN["both"])
    truth = solve_truth(solver, *lists(POOL, torch.float64), **options)
    check(backend, solver, lists(POOL, dtype), truth, dtype, **options)


@backends
@whichever
@pytest.mark.parametrize("classes", [1, 2, 3, 5, 6, 20])
@pytest.mark.parametrize("solver", ["dual", "primal", "gd"])
def test_any_number_of_classes(backend, names, classes, solver):
    task = make_task(classes, shots=(2,) * classes, queries=23, d=27, noise=0.8)
    given = {name: MAKE[name](task) for name in names}
    options = {"iterations": 5, "history": True, "sample_prior_weight": 0.3, **given}
    truth = solve_truth(solver, task.features, task.labels, **options)
    check(backend, solver, (task.features, task.labels), truth, torch.float64, **options)


@backends
@whichever
@pytest.mark.parametrize("solver", ["dual", "primal", "gd"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(backend, names, solver, dtype):
    task, half = SMALL[0], SMALL[0].features.to(dtype)
    options = {"iterations": 4} | {name: MAKE[name](task) for name in names}
    truth = solve_truth(solver, half.double(), task.labels, **options)
    check(backend, solver, (half, task.labels), truth, torch.float32, **options)


@backends
@whichever
def test_with_the_other_inputs(backend, names):
    """A first W, a class prior, class vectors."""
    task = SMALL[0]
    vectors = torch.randn(4, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 8
    given = {name: MAKE[name](task) for name in names} | {"class_prior": [0.1, 0.4, 0.2, 0.3]}
    for more in ({"weights": vectors}, {"class_vectors": vectors, "class_vector_weight": 3}):
        for solver in ("auto", "gd"):
            options = {"iterations": 4, "history": True, **given, **more}
            truth = solve_truth(solver, task.features, task.labels, **options)
            check(backend, solver, (task.features, task.labels), truth, torch.float64, **options)


@backends
@whichever
def test_robust_among_the_roots(backend, names):
    task = SMALL[0]
    options = {"iterations": 27} | {name: MAKE[name](task) for name in names}
    truth = reference.robust(task.features.abs(), task.labels, **options)
    found = backend.robust(task.features.abs(), task.labels, **options)
    torch.testing.assert_close(found.probs, truth.probs, rtol=0, atol=1e-9)


@every
@whichever
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_a_task_does_not_depend_on_batch_padding_index_or_threads(solve, names, dtype):
    tasks = [
        make_task(seed, (2,) * (2 + seed), 30, 16, noise=1.0, padding=seed, dtype=dtype) for seed in range(4)
    ] + [make_task(9, (2,) * 4, 1200, 16, noise=1.0, padding=3, dtype=dtype)]
    given = samples(tasks, names)
    together = solve(*lists(tasks, dtype), **given, history=True)
    for t, task in enumerate(tasks):
        used = (task.labels != -100).nonzero()[:, 0]
        own = {name: values[t][used] for name, values in given.items()}
        threads = torch.get_num_threads()
        torch.set_num_threads(1 + t % 2)
        alone = solve(task.features, task.labels[used], index=used, **own, history=True)
        torch.set_num_threads(threads)
        assert torch.equal(together.probs[t][used], alone.probs)
        assert torch.equal(together.weights[t], alone.weights)
        assert torch.equal(together.proportions[t], alone.proportions)
        for name in TERMS:
            one, other = getattr(together.history, name)[t], getattr(alone.history, name)
            assert torch.equal(one.nan_to_num(), other.nan_to_num()), name


@pytest.mark.parametrize("solve", [tim_ext.adm, tim_ext.gd, reference.adm, reference.gd])
@whichever
def test_forms_of_them(solve, names):
    """Arrays, lists, types and layouts of the same numbers; one task, a batch, a list; class vectors."""
    task = make_task(1, shots=(2, 1, 2), queries=20, d=12, noise=1.0)
    plain = {name: (MAKE[name](task).nan_to_num().clamp(min=0) * 8).round() for name in names}
    before = {name: value.clone() for name, value in plain.items()}

    def probs(features=task.features, labels=task.labels, change=lambda value: value, **more):
        changed = {name: change(value) for name, value in plain.items()}
        return solve(features, labels, iterations=3, sample_prior_weight=0.1, **changed, **more).probs

    expected = probs()
    assert not torch.equal(expected, solve(task.features, task.labels, iterations=3).probs)
    for change in (
        lambda value: value.numpy(),
        lambda value: value.tolist(),
        lambda value: value.int(),
        lambda value: value.to(torch.bfloat16),
        lambda value: value.float().requires_grad_(),
        lambda value: torch.stack([value, value + 1], dim=-1)[..., 0],
        lambda value: np.flip(np.flip(value.numpy(), 0).copy(), 0),
    ):
        assert torch.equal(probs(change=change), expected)
    twice = [torch.stack([value] * 2) for value in (task.features, task.labels)]
    reverse = partial(torch.flip, dims=(0,))
    batch = probs(*twice, change=lambda value: torch.stack([value, reverse(value)]))
    ragged = probs(*map(list, twice), change=lambda value: [value, reverse(value)])
    for found in (batch, ragged):
        assert torch.equal(found[0], expected)
        assert torch.equal(found[1], probs(change=reverse))
    vectors = torch.eye(3, 12, dtype=torch.float64)
    alone = probs(class_vectors=vectors)
    batch = probs(*twice, change=lambda value: torch.stack([reverse(value), value]), class_vectors=vectors)
    ragged = probs(*map(list, twice), change=lambda value: [reverse(value), value], class_vectors=vectors)
    for found in (batch, ragged):
        assert torch.equal(found[1], alone)
    assert all(torch.equal(plain[name], before[name]) for name in names)


@every
@whichever
@pytest.mark.parametrize("outputs", [(), ("probs",), ("predictions", "weights")], ids=str)
def test_outputs(solve, names, outputs):
    task = SMALL[0]
    options = {name: MAKE[name](task) for name in names}
    whole = tensors(solve(task.features, task.labels, **options))
    part = tensors(solve(task.features, task.labels, **options, outputs=outputs))
    assert part.keys() == {*outputs, "iterations", "proportions", "marginal_weight"}
    assert all(torch.equal(part[name][0], whole[name][0]) for name in part)
