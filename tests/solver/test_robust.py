"""Tasks that decide their marginal weight, smoothing, relaxed steps, and `robust`, which is all of them."""

from __future__ import annotations

import pytest
import torch
from helpers.backends import BACKENDS, backends
from helpers.make_tasks import Task, make_task, separable_problems
from hypothesis import given, settings

import tim_ext
from tim_ext import distributed, reference
from tim_ext.solver.params import ROBUST

FORMS = ("dual", "primal")
ROBUST_OPTIONS = {"marginal_weight": "auto", "relaxation": 0.5, "lam": 0.3, "iterations": 60}
NAMES = ("probs", "weights", "proportions", "marginal_weight")


def assert_near(result: tim_ext.Result, expected: tim_ext.Result, atol: float = 1e-9) -> None:
    for name in NAMES:
        got, exact = getattr(result, name), getattr(expected, name)
        torch.testing.assert_close(
            got, exact, rtol=0, atol=atol, check_dtype=False, msg=lambda m, n=name: f"{n}: {m}"
        )
    torch.testing.assert_close(result.iterations, expected.iterations)


def unequal_task(seed: int, classes: int = 5, shots: int = 2, d: int = 64, noise: float = 1.0) -> Task:
    """Class 0 has about four times as many queries as any other."""
    task = make_task(seed, [shots] * classes, 8 * classes, d, noise=noise)
    kept = (task.labels >= 0) | (task.truth == 0) | (torch.arange(len(task.labels)) % 4 == 0)
    return Task(task.features[kept], task.labels[kept], task.truth[kept])


# The task decides -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(6))
@backends
def test_the_marginal_weight_is_that_of_the_reference(backend, seed, form):
    task = unequal_task(seed, classes=3 + seed, d=24)
    prior = None if seed % 2 else torch.arange(1.0, 4 + seed) / torch.arange(1.0, 4 + seed).sum()
    options = {**ROBUST_OPTIONS, "class_prior": prior, "history": True}
    expected = reference.adm(task.features, task.labels, **options)
    result = backend.adm(task.features, task.labels, form=form, **options)
    assert_near(result, expected)
    torch.testing.assert_close(result.history.loss, expected.history.loss, rtol=0, atol=1e-9)


@backends
def test_equal_proportions_keep_the_marginal_term_and_unequal_ones_give_it_up(backend):
    even = make_task(0, [5] * 5, 75, noise=0.3)
    one = torch.cat([even.labels[even.labels >= 0], torch.full((60,), -1)])
    kept = backend.adm(even.features, even.labels, marginal_weight="auto")
    assert float(kept.marginal_weight) == 1
    support = even.features[even.labels >= 0]
    same = support[even.labels[even.labels >= 0] == 0].mean(dim=0).expand(60, -1)
    given_up = backend.adm(torch.cat([support, same]), one, marginal_weight="auto")
    assert float(given_up.marginal_weight) < 0.01
    assert float(given_up.proportions[0]) > 0.95


@backends
def test_too_few_iterations_decide_at_the_prototypes_alone(backend):
    """And not for more than 0.1."""
    task = make_task(0)
    for iterations in (0, 25):
        found = backend.adm(task.features, task.labels, marginal_weight="auto", iterations=iterations)
        assert float(found.marginal_weight) == pytest.approx(0.1)
    task = unequal_task(0, noise=0.3)
    expected = reference.adm(task.features, task.labels, marginal_weight="auto", iterations=25)
    assert float(expected.marginal_weight) < 0.09
    for form in FORMS:
        found = backend.adm(task.features, task.labels, marginal_weight="auto", iterations=25, form=form)
        assert_near(found, expected)
    task = unequal_task(0)
    stopped = backend.adm(task.features, task.labels, marginal_weight="auto", tol=1.0)
    assert int(stopped.iterations) == 26  # not before it is decided


def test_distributed_decides_alike():
    task = unequal_task(1, d=24)
    for options in (ROBUST_OPTIONS, {**ROBUST_OPTIONS, "history": True, "tol": 1e-6}):
        expected = reference.adm(task.features, task.labels, **options)
        assert_near(distributed.adm(task.features, task.labels, **options), expected)


# Smoothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS[:2])  # the emulation is slow
@given(problem=separable_problems())
@settings(max_examples=12)
def test_smoothing_is_that_of_the_reference(backend, problem):
    options = {**problem.options, **ROBUST_OPTIONS, "smoothing": "auto", "iterations": 30}
    expected = reference.adm(*problem.arguments, **options)
    for form in FORMS:
        result = backend.adm(*problem.arguments, form=form, **options)
        for name in ("probs", "weights"):
            torch.testing.assert_close(getattr(result, name), getattr(expected, name), rtol=0, atol=1e-8)


SHAPES = [(1, 3, 4), (5, 1, 640), (2, 40, 16), (20, 9, 30), (7, 90, 33)]  # classes, queries of each, d


@pytest.mark.parametrize(("classes", "queries", "d"), SHAPES)
@pytest.mark.parametrize(("reach", "normalize"), [(0.3, False), (0.99, True)])
@pytest.mark.parametrize("form", FORMS)
@backends
def test_any_reach_and_shape(backend, form, reach, normalize, classes, queries, d):
    if backend.name == "cuda-emulated":
        queries = min(queries, 20)  # it is slow
    task = make_task(3, [2] * classes, classes * queries, d=d, noise=1.0)
    options = {"smoothing": reach, "iterations": 20, "normalize": normalize}
    expected = reference.adm(task.features, task.labels, **options)
    assert_near(backend.adm(task.features, task.labels, form=form, **options), expected, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@backends
def test_float32_with_a_large_common_part(backend, form):
    """Cosines of 0.9999; the graph may differ where two neighbours are equally near but for rounding."""
    near = 0
    for seed in range(12):
        task = make_task(seed, [3] * 5, 60, d=100, noise=1.0)
        features = (task.features + 100 * torch.ones(100, dtype=torch.float64) / 10).float()
        options = {"smoothing": "auto", "temperature": 100.0, "iterations": 40}
        truth = reference.adm(features.double(), task.labels, **options).probs
        error = (backend.adm(features, task.labels, form=form, **options).probs - truth).abs().max()
        plain = (reference.adm(features, task.labels, **options).probs - truth).abs().max()
        near += bool(error <= max(2 * plain, 1e-4))
    assert near >= 11


@pytest.mark.parametrize("form", FORMS)
@backends
def test_equally_near_neighbours_go_by_their_row(backend, form):
    """Copies are equally near to everything; of whole numbers, so that no rounding tells them apart."""
    generator = torch.Generator().manual_seed(0)
    some = torch.randint(-3, 4, (16, 8), generator=generator).double()
    features = torch.cat([some, some, some, some])
    labels = torch.full((64,), -1)
    labels[[40, 5, 30, 21]] = torch.tensor([0, 1, 2, 0])
    options = {"smoothing": 0.8, "iterations": 10, "normalize": False}
    assert_near(
        backend.adm(features, labels, form=form, **options),
        reference.adm(features, labels, **options),
        atol=1e-8,
    )


@pytest.mark.parametrize("form", FORMS)
@backends
def test_samples_without_neighbours_stay(backend, form):
    features = torch.eye(6, dtype=torch.float64) * 3
    features[4:] = 0
    labels = torch.tensor([0, 1, 2, -1, -1, 0])
    for normalize in (True, False):
        options = {"smoothing": 0.9, "iterations": 5, "normalize": normalize}
        expected = reference.adm(features, labels, **options)
        assert_near(backend.adm(features, labels, form=form, **options), expected, atol=1e-8)


@backends
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_sample_alone_or_with_one_neighbour(backend, form, rows):
    features = torch.tensor([[3.0, 4.0], [4.0, 3.0]], dtype=torch.float64)[:rows]
    labels = torch.tensor([0, -1])[:rows]
    expected = reference.robust(features, labels)
    assert_near(backend.robust(features, labels, form=form), expected)


# robust ---------------------------------------------------------------------------------------------


@backends
def test_robust_is_a_preset(backend):
    task = unequal_task(2)
    preset = {**vars(ROBUST), "form": "dual"}
    as_adm = backend.adm(task.features, task.labels, **preset)
    robust = backend.robust(task.features, task.labels, form="dual")
    assert all(torch.equal(getattr(robust, name), getattr(as_adm, name)) for name in NAMES)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@backends
def test_roots_of_what_has_no_negative_value(backend, dtype):
    """Task by task, and by the samples that count: padding and other rows of a pool do not matter."""
    tasks = [unequal_task(seed, d=20) for seed in range(3)]
    features = torch.stack([task.features for task in tasks]).to(dtype)
    labels = torch.stack([task.labels for task in tasks])
    features[1] = features[1].abs()
    features[2] = features[2].abs()
    features[2, -1] = -7
    labels[2, -1] = -100
    real = features if dtype == torch.float64 else features.float()
    rooted = real.clone()
    rooted[1:] = (real[1:].clamp(min=0) + 1e-6).sqrt()
    alone = [backend.robust(features[t], labels[t]) for t in range(3)]
    for t in range(3):  # torch rounds the roots in its own way
        expected = backend.adm(rooted[t], labels[t], **vars(ROBUST))
        assert_near(alone[t], expected, atol=1e-9 if dtype == torch.float64 else 1e-4)
    batch = backend.robust(features, labels)
    ragged = backend.robust(list(features), list(labels))
    size = features.shape[1]
    index = torch.arange(3 * size).view(3, size)
    pool = backend.robust(features.flatten(0, 1), labels, index=index)
    for t in range(3):
        for found in (batch, ragged, pool):
            assert all(torch.equal(getattr(found, name)[t], getattr(alone[t], name)) for name in NAMES), t
    if dtype == torch.float64:
        expected = reference.robust(features, labels)
        torch.testing.assert_close(batch.probs, expected.probs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"marginal_weight": "much"}, "marginal_weight: expected a number or \"auto\", got 'much'"),
        ({"smoothing": 1.0}, "smoothing: expected a number >= 0 and < 1, got 1.0"),
        ({"smoothing": -0.1}, "smoothing: expected a finite number >= 0, got -0.1"),
        ({"relaxation": 0.0}, "relaxation: expected a finite number > 0, got 0.0"),
    ],
)
def test_refusals(options, text):
    task = make_task(0)
    for solve in (tim_ext.adm, tim_ext.robust, reference.adm, reference.robust):
        with pytest.raises(ValueError, match="expected") as error:
            solve(task.features, task.labels, **options)
        assert str(error.value) == text
