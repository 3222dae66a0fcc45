"""A solve that starts from given weights instead of the prototypes: `weights=`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.backends import backends
from helpers.make_tasks import Task, make_task
from helpers.parity import check, dtypes, lists, solve_truth
from torch import Tensor

import tim_ext
from tim_ext import reference

SOLVERS = {"adm": tim_ext.adm, "robust": tim_ext.robust, "gd": tim_ext.gd}
every = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)

TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=60, noise=1.0, padding=3)


def random_weights(task: Task, seed: int = 0) -> Tensor:
    """Near the class means, and with d > N not in the span of the samples."""
    generator = torch.Generator().manual_seed(seed)
    classes, d = int(task.labels.max()) + 1, task.features.shape[1]
    noise = torch.randn(classes, d, generator=generator, dtype=torch.float64) / d**0.5
    means = torch.stack([task.features[task.truth == k].mean(dim=0) for k in range(classes)])
    return means + 0.5 * noise


WEIGHTS = random_weights(TASK)


@backends
@dtypes
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("auto", {}),
        ("primal", {"normalize": False, "tol": 0.02, "iterations": 30}),
        ("primal", {"smoothing": "auto", "relaxation": 0.5}),
        ("primal", {"temperature": 60.0}),
        ("auto", {"iterations": 0}),
        ("gd", {"entropy_order": 2.0}),
        ("gd", {"iterations": 0, "normalize": False}),
    ],
    ids=str,
)
def test_equals_the_reference(backend, dtype, solver, options):
    tasks = [TASK, make_task(5, shots=(1, 2, 1), queries=40, d=60, noise=1.0)]
    weights = [WEIGHTS, random_weights(tasks[1], 1)]
    options = {"iterations": 4, "history": True, **options, "weights": weights}
    truth = solve_truth(solver, *lists(tasks, torch.float64), **options)
    if options["iterations"] == 0:
        torch.testing.assert_close(truth.weights[0], WEIGHTS, rtol=0, atol=0)
    check(backend, solver, lists(tasks, dtype), truth, dtype, **options)


@backends
def test_robust_starts_among_the_roots(backend):
    features = TASK.features.abs()
    options: dict[str, Any] = {"iterations": 3, "weights": WEIGHTS.abs().sqrt()}
    truth = reference.robust(features, TASK.labels, **options)
    found = backend.robust(features, TASK.labels, **options)
    torch.testing.assert_close(found.probs, truth.probs, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.weights, truth.weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("solver", ["adm", "gd"])
def test_large_logits_of_float32(solver):
    """Which the CPU solves in float64, the weights with them."""
    features, weights = TASK.features.float(), WEIGHTS.float()
    options = {"iterations": 3, "temperature": 300.0}
    truth = getattr(reference, solver)(features.double(), TASK.labels, weights=weights.double(), **options)
    found = getattr(tim_ext, solver)(features, TASK.labels, weights=weights, **options)
    torch.testing.assert_close(found.probs.double(), truth.probs, rtol=0, atol=1e-6)
    assert torch.equal(found.predictions, truth.predictions)


@backends
@pytest.mark.parametrize("smoothing", [0.0, "auto"])
def test_two_solves_are_one(backend, smoothing):
    """The weights that a solve ends with, in whatever form, are where the next goes on."""
    options = {"smoothing": smoothing, "relaxation": 0.5}
    whole = backend.adm(TASK.features, TASK.labels, iterations=7, **options)
    first = backend.adm(TASK.features, TASK.labels, iterations=3, **options)
    second = backend.adm(TASK.features, TASK.labels, iterations=4, weights=first.weights, **options)
    torch.testing.assert_close(second.probs, whole.probs, rtol=0, atol=1e-9)
    torch.testing.assert_close(second.weights, whole.weights, rtol=0, atol=1e-9)
    assert int(second.iterations) == 4


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_a_task_does_not_depend_on_batch_padding_index_or_threads(solve, dtype):
    tasks = [
        make_task(seed, (2,) * (2 + seed), 30, 16, noise=1.0, padding=seed, dtype=dtype) for seed in range(4)
    ]
    weights = [random_weights(task, seed).to(dtype) for seed, task in enumerate(tasks)]
    together = solve(*lists(tasks, dtype), weights=weights, iterations=20)
    for t, task in enumerate(tasks):
        used = (task.labels != -100).nonzero()[:, 0]
        threads = torch.get_num_threads()
        torch.set_num_threads(1 + t % 2)
        alone = solve(task.features, task.labels[used], index=used, weights=weights[t], iterations=20)
        torch.set_num_threads(threads)
        assert torch.equal(together.probs[t][used], alone.probs)
        assert torch.equal(together.weights[t], alone.weights)


@pytest.mark.parametrize("solve", [tim_ext.adm, tim_ext.gd, reference.adm, reference.gd])
def test_forms_of_the_weights(solve):
    features, labels, other = TASK.features, TASK.labels, WEIGHTS.flip(0)
    options = {"iterations": 3}
    expected = solve(features, labels, weights=WEIGHTS, **options).probs
    assert not torch.equal(expected, solve(features, labels, **options).probs)
    strided = torch.stack([WEIGHTS, other], dim=2)[..., 0].requires_grad_()
    before = WEIGHTS.clone()
    for same in (WEIGHTS.numpy(), strided):
        assert torch.equal(solve(features, labels, weights=same, **options).probs, expected)
    as_float = solve(features, labels, weights=WEIGHTS.float(), **options).probs
    assert torch.equal(as_float, solve(features, labels, weights=WEIGHTS.float().double(), **options).probs)
    for batch in ((torch.stack([features] * 2), torch.stack([labels] * 2)), ([features] * 2, [labels] * 2)):
        for both in (torch.stack([WEIGHTS, other]), [WEIGHTS, other.numpy()]):
            probs = solve(*batch, weights=both, **options).probs
            assert torch.equal(probs[0], expected)
            assert not torch.equal(probs[1], expected)
        assert torch.equal(solve(*batch, weights=WEIGHTS, **options).probs[1], expected)
    assert torch.equal(WEIGHTS, before)


def test_a_few_more_labels_take_fewer_iterations():
    task = make_task(3, shots=(2,) * 6, queries=300, d=24, noise=0.9)
    before = tim_ext.adm(task.features, task.labels)
    query = (task.labels == -1).nonzero()[:10, 0]
    labels = task.labels.index_put((query,), task.truth[query])
    cold = tim_ext.adm(task.features, labels, tol=1e-3)
    warm = tim_ext.adm(task.features, labels, tol=1e-3, weights=before.weights)
    assert int(warm.iterations) < int(cold.iterations) // 2
    torch.testing.assert_close(warm.proportions, cold.proportions, rtol=0, atol=0.02)
