"""The promises of the solvers: what a result does not depend on, and that it is always defined."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from helpers.make_tasks import Task, make_batch, make_task, separable_problems
from hypothesis import given, settings

import tim_ext
from tim_ext import reference

SOLVERS = {
    "dual": partial(tim_ext.adm, form="dual"),
    "primal": partial(tim_ext.adm, form="primal"),
    "auto": tim_ext.adm,
    "gd": tim_ext.gd,
    "gd, order 2": partial(tim_ext.gd, entropy_order=2.0),
}
REFERENCES = {"reference adm": reference.adm, "reference gd": partial(reference.gd, iterations=30)}
ROBUST = {
    "robust": tim_ext.robust,
    "robust, primal": partial(tim_ext.robust, form="primal"),
}
solvers = pytest.mark.parametrize("solve", [*SOLVERS.values(), *ROBUST.values()], ids=[*SOLVERS, *ROBUST])
BOTH = SOLVERS | REFERENCES
all_solvers = pytest.mark.parametrize("solve", BOTH.values(), ids=BOTH)  # on the features as they are


def reference_of(solve):
    function, options = (solve.func, solve.keywords) if isinstance(solve, partial) else (solve, {})
    return partial(getattr(reference, function.__name__), **options)


OUTPUTS = ("probs", "predictions", "weights")
EVERYTHING = (*OUTPUTS, "proportions", "marginal_weight")


def identical(one, other) -> bool:
    """Bit for bit; NaN only marks history that was not reached."""
    terms = [(one.history.loss, other.history.loss)] if one.history else []
    return all(
        torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in [(getattr(one, name), getattr(other, name)) for name in EVERYTHING] + terms
    )


def task_of(result, t: int):
    """Task t of a batch as a result of its own."""
    parts = {name: getattr(result, name)[t] for name in EVERYTHING}
    history = result.history and tim_ext.History(
        *(
            getattr(result.history, n)[t]
            for n in ("cross_entropy", "marginal_entropy", "conditional_entropy", "loss")
        )
    )
    return tim_ext.Result(**parts, iterations=result.iterations[t], history=history)


def mixed_tasks(dtype: torch.dtype) -> list[Task]:
    """Shapes on both sides of every decision: small and large N, K and d, hard and easy."""
    shapes = [
        {"shots": (5,) * 5, "queries": 75, "d": 64, "noise": 1.5},
        {"shots": (1, 2), "queries": 1, "d": 64},
        {"shots": (1,) * 40, "queries": 90, "d": 64, "noise": 1.0},
        {"shots": (3, 1, 2), "queries": 700, "d": 64, "noise": 1.0},
        {"shots": (2,) * 9, "queries": 1500, "d": 64, "noise": 1.5},
        {"shots": (4, 4), "queries": 11, "d": 64, "padding": 6},
    ]
    return [make_task(seed, dtype=dtype, **shape) for seed, shape in enumerate(shapes)]


@solvers
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_task_does_not_depend_on_its_batch_or_on_threads(solve, dtype, set_threads):
    tasks = mixed_tasks(dtype)
    features, labels = [t.features for t in tasks], [t.labels for t in tasks]
    options = {"history": True, "iterations": 40}
    set_threads(1)
    alone = [solve(t.features, t.labels, **options) for t in tasks]
    for threads in (1, 3, 8):
        set_threads(threads)
        for t, task in enumerate(tasks):
            assert identical(solve(task.features, task.labels, **options), alone[t]), (threads, t)
        batch = solve(features, labels, **options)
        backwards = solve(features[::-1], labels[::-1], **options)
        for t in range(len(tasks)):
            assert identical(task_of(batch, t), alone[t]), (threads, t)
            assert identical(task_of(backwards, len(tasks) - 1 - t), alone[t]), (threads, t)


@solvers
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_task_of_a_rectangular_batch_equals_itself_alone(solve, dtype, set_threads):
    features, labels, _ = make_batch(range(17), noise=1.5, d=100, dtype=dtype)
    batch = solve(features, labels)
    set_threads(1)
    for t in range(17):
        assert identical(solve(features[t], labels[t]), task_of(batch, t))
    pool, rows = features.reshape(-1, 100), torch.arange(1700).view(17, 100)
    assert identical(solve(pool, labels, index=rows), batch)


@given(problem=separable_problems())
@settings(max_examples=25)
def test_batching_changes_no_bit_of_any_shape(problem):
    features, labels = problem.arguments
    options = problem.options | {"iterations": 5}
    for solve in (tim_ext.adm, tim_ext.gd):
        batch = solve(features, labels, **options)
        for t in range(len(features)):
            assert identical(solve(features[t], labels[t], **options), task_of(batch, t))


@solvers
def test_calls_from_several_python_threads(solve, set_threads):
    set_threads(2)
    tasks = mixed_tasks(torch.float32) * 4
    alone = [solve(task.features, task.labels, iterations=20) for task in tasks]
    with ThreadPoolExecutor(4) as pool:
        at_once = pool.map(lambda t: solve(t.features, t.labels, iterations=20), tasks)
        assert all(map(identical, at_once, alone))


@solvers
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("padding", [1, 5, 64, 400])
def test_padding_changes_no_bit(solve, dtype, padding):
    task = make_task(1, noise=1.5, padding=padding, dtype=dtype)
    used = task.labels != -100
    padded = solve(task.features, task.labels, history=True)
    bare = solve(task.features[used], task.labels[used], history=True)
    assert torch.equal(padded.probs[used], bare.probs)
    assert torch.equal(padded.predictions[used], bare.predictions)
    assert torch.equal(padded.weights, bare.weights)
    assert torch.equal(padded.history.loss, bare.history.loss)
    assert (padded.probs[~used] == 0).all()
    assert (padded.predictions[~used] == -100).all()


@all_solvers
def test_inputs_are_not_modified(solve):
    task = make_task(2, padding=3)
    features, labels = task.features.clone(), task.labels.clone()
    rows = torch.arange(len(labels)).flip(0)
    prior = torch.full((5,), 0.2)
    solve(features, labels, history=True, class_prior=prior)
    solve(features, labels, index=rows)
    solve([features], [labels])
    assert torch.equal(prior, torch.full((5,), 0.2))
    assert torch.equal(features, task.features)
    assert torch.equal(labels, task.labels)
    assert torch.equal(rows, torch.arange(len(labels)).flip(0))


# Edge cases: defined, finite, and as the reference defines them --------------------------------------

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def assert_finite(result):
    for name in OUTPUTS:
        assert getattr(result, name).isfinite().all(), name
    assert (result.probs >= 0).all()
    assert (result.probs <= 1 + 1e-6).all()
    torch.testing.assert_close(
        result.probs.sum(dim=-1), torch.ones(result.probs.shape[:-1], dtype=result.probs.dtype)
    )


@all_solvers
@dtypes
def test_no_query_gives_the_prototypes(solve, dtype):
    task = make_task(3, queries=0, d=20, dtype=dtype)
    result = solve(task.features, task.labels, normalize=False)
    assert result.iterations == 0
    for k in range(5):
        mean = task.features[task.labels == k].mean(dim=0)
        torch.testing.assert_close(result.weights[k], mean)
    assert torch.equal(result.predictions, task.truth)
    assert_finite(result)


@all_solvers
@dtypes
def test_a_zero_vector_stays_zero(solve, dtype):
    """Its logits are -tau/2 ||w_k||^2."""
    task = make_task(4, d=20, dtype=dtype)
    features, where = task.features.clone(), (task.labels == -1).nonzero()[0, 0]
    features[where] = 0
    result = solve(features, task.labels)
    assert_finite(result)
    expected = (-7.5 * result.weights.square().sum(dim=1)).softmax(dim=0)
    torch.testing.assert_close(result.probs[where], expected, rtol=0, atol=1e-5)


@all_solvers
@dtypes
def test_all_features_zero(solve, dtype):
    result = solve(torch.zeros(9, 4, dtype=dtype), [0, 1, 2] + 6 * [-1])
    assert_finite(result)
    torch.testing.assert_close(result.probs, torch.full((9, 3), 1 / 3, dtype=dtype))
    assert (result.weights == 0).all()


@all_solvers
@dtypes
def test_duplicate_features(solve, dtype):
    """All samples alike: no class can be told from another."""
    result = solve(torch.ones(12, 7, dtype=dtype), [0, 1, 2] + 9 * [-1])
    assert_finite(result)
    torch.testing.assert_close(result.probs, torch.full((12, 3), 1 / 3, dtype=dtype), rtol=0, atol=1e-5)


@solvers
@dtypes
def test_duplicates_of_one_sample_are_labelled_alike(solve, dtype):
    task = make_task(5, noise=0.5, d=20, dtype=dtype)
    result = solve(task.features.repeat(2, 1), task.labels.repeat(2))
    assert_finite(result)
    first, second = result.probs.chunk(2)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


@all_solvers
@dtypes
def test_a_single_class(solve, dtype):
    task = make_task(6, shots=(3,), queries=10, d=8, dtype=dtype)
    result = solve(task.features, task.labels, history=True)
    assert_finite(result)
    assert (result.probs == 1).all()
    assert (result.predictions == 0).all()
    assert result.history.loss.isfinite().all()


@all_solvers
@dtypes
def test_a_class_with_one_sample(solve, dtype):
    task = make_task(7, shots=(1, 5, 1), queries=12, d=8, dtype=dtype)
    result = solve(task.features, task.labels)
    assert_finite(result)
    assert task.accuracy(result.predictions) == 1.0


@all_solvers
@dtypes
def test_one_sample_of_one_class_and_nothing_else(solve, dtype):
    result = solve(torch.full((1, 1), 2.0, dtype=dtype), [0])
    assert_finite(result)
    assert result.weights.item() == 1.0


@all_solvers
@dtypes
@pytest.mark.parametrize("temperature", [1e-6, 1e6])
@pytest.mark.parametrize("noise", [0.1, 1.5])
@pytest.mark.parametrize("options", [{}, {"marginal_weight": 0.0}, {"lam": 0.0}, {"lam": 100.0}], ids=str)
def test_huge_and_tiny_temperatures(solve, dtype, temperature, noise, options):
    task = make_task(8, shots=(2,) * 4, queries=30, d=20, noise=noise, dtype=dtype)
    result = solve(task.features, task.labels, temperature=temperature, history=True, **options)
    assert_finite(result)
    assert result.history.loss.isfinite().all()
    if noise == 0.1 and temperature == 1e6:
        assert task.accuracy(result.predictions) == 1.0
    if temperature == 1e-6 and not options:
        torch.testing.assert_close(result.probs, torch.full_like(result.probs, 0.25), rtol=0, atol=1e-4)


@solvers
@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_huge_and_tiny_temperatures_agree_with_the_reference(solve, temperature):
    task = make_task(9, shots=(2,) * 4, queries=32, d=20)
    options = {"temperature": temperature, "iterations": 20}
    expected = reference_of(solve)(task.features, task.labels, **options)
    result = solve(task.features, task.labels, **options)
    torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=1e-8)
