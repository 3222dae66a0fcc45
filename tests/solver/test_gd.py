"""tim_ext.gd computes what autograd and torch.optim.Adam compute."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from helpers.gd_terms import ABLATIONS, gradient_by_kernel
from helpers.make_tasks import Problem, make_batch, make_task, separable_problems
from hypothesis import given, settings
from hypothesis import strategies as st

import tim_ext
from tim_ext import reference
from tim_ext.solver.params import GdParams


def assert_close(result, expected, atol):
    for name in ("probs", "weights"):
        torch.testing.assert_close(getattr(result, name), getattr(expected, name), rtol=0, atol=atol)
    torch.testing.assert_close(result.predictions, expected.predictions)
    torch.testing.assert_close(result.iterations, expected.iterations)


# The trajectory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"noise": 0.1}, {}),
        ({"shots": (1, 2, 3, 1, 2, 3, 1), "queries": 49, "d": 30, "noise": 0.2}, {}),
        ({"shots": (2, 1, 1), "queries": 40, "d": 9}, {"entropy_order": 2.0, "class_prior": [0.4, 0.4, 0.2]}),
    ],
    ids=["5-way 5-shot", "7-way", "order 2, prior"],
)
def test_a_thousand_steps_end_where_the_reference_ends(shape, options):
    task = make_task(20, **shape)
    expected = reference.gd(task.features, task.labels, **options)
    assert_close(tim_ext.gd(task.features, task.labels, **options), expected, atol=1e-8)
    assert expected.iterations == 1000


@given(
    problem=separable_problems(), order=st.sampled_from([1.0, 1.0, 0.5, 2.0, 7.0]), with_prior=st.booleans()
)
@settings(max_examples=20)
def test_float64_equals_the_reference(problem: Problem, order: float, with_prior: bool):
    # with Adam's usual eps, a coordinate whose gradient is all rounding moves by lr * 1e-16 / 1e-8
    options = {
        "normalize": problem.normalize,
        "entropy_order": order,
        "iterations": 8,
        "lr": 1e-3,
        "eps": 1e-6,
    }
    if with_prior:
        counts = [int(task.labels.max()) + 1 for task in problem.tasks]
        options["class_prior"] = [torch.arange(1, count + 1) * 2 / (count * (count + 1)) for count in counts]
    expected = reference.gd(*problem.arguments, **options)
    assert_close(tim_ext.gd(*problem.arguments, **options), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("shots", "queries", "d"),
    [
        ((1, 1), 30, 200),
        ((5,) * 5, 75, 128),
        ((1, 2, 3, 4, 5, 1, 2), 80, 50),
    ],
)
def test_float32_is_as_exact_as_the_reference_in_float32(shots, queries, d):
    features, labels, tasks = make_batch(range(5), shots=shots, queries=queries, d=d, noise=1.2)
    options = {"iterations": 250, "lr": 4e-4}
    truth = reference.gd(features, labels, **options)
    plain = reference.gd(features.float(), labels, **options)
    result = tim_ext.gd(features.float(), labels, **options)
    assert result.probs.dtype == result.weights.dtype == torch.float32

    def median_error(probs):
        return (probs.double() - truth.probs).abs().amax(dim=(1, 2)).median().item()

    assert median_error(result.probs) <= 2 * median_error(plain.probs)

    good = [t for t, task in enumerate(tasks) if task.accuracy(truth.predictions[t]) > 0.6]
    assert len(good) > 2  # else this test says nothing
    query = labels[good] == -1
    same = (result.predictions[good] == truth.predictions[good])[query]
    assert same.double().mean() >= 0.999


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype):
    task = make_task(4, d=30, noise=0.8, dtype=dtype)
    result = tim_ext.gd(task.features, task.labels, iterations=200)
    assert result.probs.dtype == torch.float32
    expected = tim_ext.gd(task.features.float(), task.labels, iterations=200)
    torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64, 100])
def test_every_number_of_classes(classes):
    task = make_task(classes, shots=[1 + k % 3 for k in range(classes)], queries=2 * classes + 1, d=110)
    options = {"iterations": 6, "lr": 1e-2}
    expected = reference.gd(task.features, task.labels, **options)
    assert_close(tim_ext.gd(task.features, task.labels, **options), expected, atol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 129, 1000])
def test_every_dimension(d):
    task = make_task(d, shots=(2, 1, 3), queries=13, d=d)
    options = {"iterations": 6, "lr": 1e-2, "normalize": False}
    expected = reference.gd(task.features, task.labels, **options)
    assert_close(tim_ext.gd(task.features, task.labels, **options), expected, atol=1e-9)


def test_many_samples():
    task = make_task(0, shots=(4, 4, 4, 4), queries=9000, d=24)
    options = {"iterations": 10, "lr": 1e-2}
    expected = reference.gd(task.features, task.labels, **options)
    assert_close(tim_ext.gd(task.features, task.labels, **options), expected, atol=1e-9)


# Options -------------------------------------------------------------------------------------------


TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=20, noise=1.5)
FAST = {"iterations": 60, "lr": 2e-3}


@lru_cache
def expected_probs(solve: Callable, options: tuple) -> torch.Tensor:
    return solve(TASK.features, TASK.labels, **dict(options)).probs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", ["gd", "adm"])
def test_ablations_of_the_paper(name, ablation, dtype):
    options = ABLATIONS[ablation] | (FAST if name == "gd" else {"iterations": 30})
    expected = expected_probs(getattr(reference, name), tuple(options.items()))
    result = getattr(tim_ext, name)(TASK.features.to(dtype), TASK.labels, **options)
    atol = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(result.probs.double(), expected, rtol=0, atol=atol)


def test_ablations_differ():
    for name in ("gd", "adm"):
        options = FAST if name == "gd" else {"iterations": 30}
        solve = getattr(tim_ext, name)
        probs = [solve(TASK.features, TASK.labels, **options | terms).probs for terms in ABLATIONS.values()]
        for one in range(4):
            for other in range(one):
                assert (probs[one] - probs[other]).abs().max() > 1e-3, (name, one, other)


def test_each_ablation_lowers_its_own_loss():
    for terms in ABLATIONS.values():
        history = tim_ext.gd(TASK.features, TASK.labels, **FAST | terms, history=True).history
        assert history.loss[-1] < history.loss[0] - 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"lam": 0.0},
        {"lam": 3.0, "alpha": 0.5, "marginal_weight": 2.5},
        {"temperature": 1.5},
        {"temperature": 60.0},
        {"entropy_order": 0.5},
        {"entropy_order": 3.0},
        {"lr": 0.0},
        {"lr": 2e-2},
        {"betas": (0.0, 0.0)},
        {"betas": (0.5, 0.99)},
        {"eps": 1e-3},
        {"iterations": 0},
        {"iterations": 1},
        {"normalize": False},
        {"num_classes": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_options(options, dtype):
    options = FAST | options
    expected = expected_probs(reference.gd, tuple(options.items()))
    result = tim_ext.gd(TASK.features.to(dtype), TASK.labels, **options)
    atol = 1e-9 if dtype == torch.float64 else 5e-4
    torch.testing.assert_close(result.probs.double(), expected, rtol=0, atol=atol)


def test_options_matter():
    """So that the test above cannot pass by ignoring one."""
    usual = tim_ext.gd(TASK.features, TASK.labels, **FAST).probs
    for options in [
        {"lam": 3.0},
        {"alpha": 0.9},
        {"temperature": 1.5},
        {"marginal_weight": 0.0},
        {"entropy_order": 3.0},
        {"class_prior": [0.1, 0.2, 0.3, 0.4]},
        {"lr": 2e-2},
        {"betas": (0.5, 0.99)},
        {"eps": 1e-1},
        {"iterations": 1},
        {"normalize": False},
    ]:
        changed = tim_ext.gd(TASK.features, TASK.labels, **FAST | options).probs
        assert (changed - usual).abs().max() > 1e-3, options


def test_no_iteration_gives_the_prototypes():
    result = tim_ext.gd(TASK.features, TASK.labels, iterations=0)
    expected = tim_ext.adm(TASK.features, TASK.labels, iterations=0)
    assert_close(result, expected, atol=1e-14)


def test_tol_stops_each_task_by_itself():
    shape = {"shots": (3, 1, 4, 2), "queries": 30, "d": 20}
    tasks = [make_task(seed, **shape, noise=noise) for seed, noise in enumerate([0.1, 0.4, 0.7, 1.0])]
    features, labels = torch.stack([t.features for t in tasks]), torch.stack([t.labels for t in tasks])
    options = {"tol": 2e-3, "lr": 2e-3, "iterations": 200}
    result, expected = (gd(features, labels, **options) for gd in (tim_ext.gd, reference.gd))
    assert_close(result, expected, atol=1e-9)
    assert result.iterations.max() < 200
    assert result.iterations.unique().numel() > 1
    for t, ran in enumerate(result.iterations.tolist()):
        at = [
            tim_ext.gd(features[t], labels[t], **options | {"tol": 0.0, "iterations": ran - back}).probs
            for back in range(min(ran, 2) + 1)
        ]
        torch.testing.assert_close(result.probs[t], at[0], rtol=0, atol=1e-12)
        last, *earlier = [(new - old).abs().max() for new, old in pairwise(at)]
        assert last <= 2e-3
        assert all(moved > 2e-3 for moved in earlier)


@pytest.mark.parametrize("tol", [0.0, 2e-3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"marginal_weight": 0.4, "alpha": 0.3, "lam": 2.0},
        {"entropy_order": 2.0, "class_prior": [0.1, 0.4, 0.2, 0.3]},
    ],
    ids=str,
)
def test_history(tol, options):
    features, labels, _ = make_batch(range(3), shots=(3, 1, 4, 2), queries=30, d=20, noise=1.2, padding=2)
    options = FAST | {"history": True, "tol": tol, **options}
    expected = reference.gd(features, labels, **options)
    result = tim_ext.gd(features, labels, **options)
    assert result.history.loss.shape == (3, 61)
    for name in ("cross_entropy", "marginal_entropy", "conditional_entropy", "loss", "mutual_information"):
        torch.testing.assert_close(
            getattr(result.history, name), getattr(expected.history, name), rtol=0, atol=1e-9, equal_nan=True
        )
    steps = torch.arange(61)
    assert torch.equal(result.history.loss.isnan(), steps > result.iterations[:, None])
    without = tim_ext.gd(features, labels, **options | {"history": False})
    assert without.history is None
    torch.testing.assert_close(without.probs, result.probs, rtol=0, atol=1e-12)


def test_history_is_that_of_the_gradient():
    result = tim_ext.gd(TASK.features, TASK.labels, iterations=3, lr=1e-2, history=True, normalize=False)
    before = tim_ext.gd(TASK.features, TASK.labels, iterations=2, lr=1e-2, normalize=False)
    for at, row in ((before.weights, 2), (result.weights, 3)):
        loss, terms, _ = gradient_by_kernel(TASK.features[None], at[None], TASK.labels[None], GdParams())
        torch.testing.assert_close(loss[0], result.history.loss[row], rtol=0, atol=1e-13)
        torch.testing.assert_close(terms[0, 1], result.history.marginal_entropy[row], rtol=0, atol=1e-13)


def test_history_of_no_query():
    support = TASK.labels >= 0
    alone = tim_ext.gd(TASK.features[support], TASK.labels[support], history=True)
    assert alone.iterations == 0
    assert alone.history.loss.shape == (1001,)
    assert torch.equal(alone.history.loss.isnan(), torch.arange(1001) > 0)
    assert alone.history.marginal_entropy[0] == alone.history.conditional_entropy[0] == 0


def test_gd_beats_the_prototypes():
    features, labels, tasks = make_batch(range(20), shots=(1,) * 5, queries=75, d=64, noise=2.0)
    accuracy = [
        sum(task.accuracy(p) for task, p in zip(tasks, predictions, strict=True)) / len(tasks)
        for predictions in (
            tim_ext.gd(features, labels).predictions,
            tim_ext.gd(features, labels, iterations=0).predictions,
        )
    ]
    assert accuracy[0] > accuracy[1] + 0.02


# The package ---------------------------------------------------------------------------------------


def test_reference_has_the_same_signature():
    assert inspect.signature(tim_ext.gd) == inspect.signature(reference.gd)


def test_defaults_are_those_of_the_paper():
    defaults = {k: v.default for k, v in inspect.signature(tim_ext.gd).parameters.items()}
    paper = {"lam": 0.1, "alpha": 0.1, "temperature": 15.0, "marginal_weight": 1.0, "entropy_order": 1.0}
    adam = {"iterations": 1000, "lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "tol": 0.0}
    assert defaults.items() >= (paper | adam).items()


def test_docstring_example():
    examples = doctest.DocTestFinder().find(tim_ext.gd, globs={})
    assert sum(len(example.examples) for example in examples) > 0
    for example in examples:
        assert doctest.DocTestRunner().run(example).failed == 0
