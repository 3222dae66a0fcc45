"""tim_ext.adm computes what the reference computes: all shapes, all options, every solver."""

from __future__ import annotations

import doctest
import inspect
from itertools import pairwise

import pytest
import torch
from helpers.make_tasks import Problem, make_batch, make_task, separable_problems
from hypothesis import given, settings

import tim_ext
from tim_ext import reference

FORMS = ["dual", "primal", "auto"]


def assert_close(result, expected, atol):
    for name in ("probs", "weights"):
        torch.testing.assert_close(getattr(result, name), getattr(expected, name), rtol=0, atol=atol)
    torch.testing.assert_close(result.predictions, expected.predictions)
    torch.testing.assert_close(result.iterations, expected.iterations)


# Parity ---------------------------------------------------------------------------------------------


@given(problem=separable_problems())
@settings(max_examples=15)
def test_float64_equals_the_reference(problem: Problem):
    expected = reference.adm(*problem.arguments, **problem.options)
    for form in FORMS:
        result = tim_ext.adm(*problem.arguments, **problem.options, form=form)
        assert_close(result, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("shots", "queries", "d"),
    [
        ((1, 1), 30, 640),
        ((5,) * 5, 75, 640),
        ((1, 2, 3, 4, 5, 1, 2), 80, 50),
        ((5,) * 20, 200, 64),
    ],
)
def test_float32_is_as_exact_as_the_reference_in_float32(shots, queries, d):
    features, labels, tasks = make_batch(range(6), shots=shots, queries=queries, d=d, noise=1.2)
    truth, plain = reference.adm(features, labels), reference.adm(features.float(), labels)
    good = [t for t, task in enumerate(tasks) if task.accuracy(truth.predictions[t]) > 0.6]
    assert len(good) > 3  # else this test says nothing
    query = labels[good] == -1

    def median_error(probs):
        return (probs.double() - truth.probs).abs().amax(dim=(1, 2)).median().item()

    for form in FORMS:
        result = tim_ext.adm(features.float(), labels, form=form)
        assert result.probs.dtype == result.weights.dtype == torch.float32
        assert median_error(result.probs) <= 2 * median_error(plain.probs), form
        same = (result.predictions[good] == truth.predictions[good])[query]
        assert same.double().mean() >= 0.999, form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64, 100, 130])
def test_every_number_of_classes(form, classes):
    task = make_task(classes, shots=[1 + k % 3 for k in range(classes)], queries=2 * classes + 1, d=140)
    options = {"iterations": 20}
    expected = reference.adm(task.features, task.labels, **options)
    assert_close(tim_ext.adm(task.features, task.labels, form=form, **options), expected, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("d", [1, 2, 3, 7, 15, 16, 17, 31, 33, 127, 129, 1000])
def test_every_dimension(form, d):
    task = make_task(d, shots=(2, 1, 3), queries=13, d=d)
    options = {"iterations": 20, "normalize": False}
    expected = reference.adm(task.features, task.labels, **options)
    assert_close(tim_ext.adm(task.features, task.labels, form=form, **options), expected, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_many_samples(form):
    task = make_task(0, shots=(4, 4, 4, 4), queries=3000, d=24)
    options = {"iterations": 20}
    expected = reference.adm(task.features, task.labels, **options)
    assert_close(tim_ext.adm(task.features, task.labels, form=form, **options), expected, atol=1e-9)


# Options --------------------------------------------------------------------------------------------

TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=20, noise=0.4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [
        {"marginal_weight": 0.0},  # CE + H(Y|X)
        {"alpha": 0.0},  # CE - H(Y)
        {"alpha": 0.0, "marginal_weight": 0.0},
        {"marginal_weight": 2.5},
        {"lam": 0.0, "iterations": 20},
        {"lam": 3.0, "alpha": 0.5, "beta": 0.7},
        {"temperature": 1.5},
        {"temperature": 60.0, "iterations": 20},
        {"iterations": 0},
        {"iterations": 1},
        {"normalize": False},
        {"num_classes": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_options(form, options, dtype):
    features = TASK.features.to(dtype)
    expected = reference.adm(TASK.features, TASK.labels, **options)
    result = tim_ext.adm(features, TASK.labels, form=form, **options)
    torch.testing.assert_close(
        result.probs.double(), expected.probs, rtol=0, atol=1e-9 if dtype == torch.float64 else 1e-4
    )


def test_options_matter():
    """So that the test above cannot pass by ignoring one."""
    task = make_task(14, shots=(3, 1, 4, 2), queries=30, d=20, noise=1.0)
    usual = tim_ext.adm(task.features, task.labels, iterations=10).probs
    for options in [
        {"lam": 3.0},
        {"alpha": 0.5},
        {"beta": 0.7},
        {"temperature": 1.5},
        {"marginal_weight": 0.0},
        {"iterations": 1},
        {"normalize": False},
    ]:
        changed = tim_ext.adm(task.features, task.labels, **{"iterations": 10} | options).probs
        assert (changed - usual).abs().max() > 1e-2, options


def test_no_iteration_gives_the_prototypes():
    result = tim_ext.adm(TASK.features, TASK.labels, iterations=0, normalize=False)
    for k in range(4):
        mean = TASK.features[TASK.labels == k].mean(dim=0)
        torch.testing.assert_close(result.weights[k], mean, rtol=0, atol=1e-14)
    distances = torch.cdist(TASK.features, result.weights)
    torch.testing.assert_close(result.probs, (-7.5 * distances**2).softmax(dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_tol_stops_each_task_by_itself(form):
    shape = {"shots": (3, 1, 4, 2), "queries": 30, "d": 20}
    tasks = [make_task(seed, **shape, noise=noise) for seed, noise in enumerate([0.1, 0.4, 0.7, 1.0])]
    features, labels = torch.stack([t.features for t in tasks]), torch.stack([t.labels for t in tasks])
    options = {"tol": 1e-3, "form": form}
    result, expected = (adm(features, labels, **options) for adm in (tim_ext.adm, reference.adm))
    assert_close(result, expected, atol=1e-9)
    assert result.iterations.max() < 150
    assert result.iterations.unique().numel() > 1
    for t, ran in enumerate(result.iterations.tolist()):
        at = [
            tim_ext.adm(features[t], labels[t], iterations=ran - back, form=form).probs
            for back in range(min(ran, 2) + 1)
        ]
        torch.testing.assert_close(result.probs[t], at[0], rtol=0, atol=1e-9)
        last, *earlier = [(new - old).abs().max() for new, old in pairwise(at)]
        assert last <= 1e-3
        assert all(moved > 1e-3 for moved in earlier)


def test_a_large_tol_stops_after_one_iteration():
    assert tim_ext.adm(TASK.features, TASK.labels, tol=1.0).iterations == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tol", [0.0, 1e-3])
@pytest.mark.parametrize("options", [{}, {"marginal_weight": 0.4, "alpha": 0.3, "lam": 2.0}], ids=str)
def test_history(form, tol, options):
    features, labels, _ = make_batch(range(3), shots=(3, 1, 4, 2), queries=30, d=20, noise=0.4, padding=2)
    options = {"history": True, "tol": tol, **options}
    expected = reference.adm(features, labels, **options)
    result = tim_ext.adm(features, labels, form=form, **options)
    assert result.history.loss.shape == (3, 151)
    for name in ("cross_entropy", "marginal_entropy", "conditional_entropy", "loss", "mutual_information"):
        torch.testing.assert_close(
            getattr(result.history, name), getattr(expected.history, name), rtol=0, atol=1e-9, equal_nan=True
        )
    steps = torch.arange(151)
    assert torch.equal(result.history.loss.isnan(), steps > result.iterations[:, None])
    without = tim_ext.adm(features, labels, form=form, **options | {"history": False})
    assert without.history is None
    torch.testing.assert_close(without.probs, result.probs, rtol=0, atol=1e-9)


def test_history_of_no_iteration_and_of_no_query():
    start = tim_ext.adm(TASK.features, TASK.labels, iterations=0, history=True).history
    assert start.loss.shape == (1,)
    support = TASK.labels >= 0
    alone = tim_ext.adm(TASK.features[support], TASK.labels[support], history=True).history
    assert alone.loss.shape == (151,)
    assert torch.equal(alone.loss.isnan(), torch.arange(151) > 0)
    torch.testing.assert_close(alone.cross_entropy[0], start.cross_entropy[0])
    assert alone.marginal_entropy[0] == alone.conditional_entropy[0] == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [20, 33, 640])
def test_half_types_are_computed_in_float32(form, dtype, d):
    task = make_task(12, d=d, dtype=dtype)
    result = tim_ext.adm(task.features, task.labels, form=form)
    exact = tim_ext.adm(task.features.float(), task.labels, form=form)
    assert result.probs.dtype == result.weights.dtype == torch.float32
    assert torch.equal(result.probs, exact.probs)
    assert torch.equal(result.weights, exact.weights)
    rows = torch.arange(len(task.labels))
    assert torch.equal(tim_ext.adm(task.features, task.labels, index=rows, form=form).probs, exact.probs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", ["tiny", "huge"])
def test_lengths_at_the_ends_of_the_range_are_normalised(form, dtype, scale):
    """Squares of such features underflow or overflow."""
    task = make_task(13, d=20, dtype=dtype)
    info = torch.finfo(dtype)
    factor = info.tiny / info.eps if scale == "tiny" else info.max / 4
    result = tim_ext.adm(task.features * factor, task.labels, form=form, iterations=20)
    expected = tim_ext.adm(task.features, task.labels, form=form, iterations=20)
    torch.testing.assert_close(
        result.probs, expected.probs, rtol=0, atol=1e-9 if dtype == torch.float64 else 1e-5
    )


def test_probabilities_are_probabilities():
    features, labels, _ = make_batch(range(4), noise=1.5, d=200, dtype=torch.float32)
    result = tim_ext.adm(features, labels)
    torch.testing.assert_close(result.probs.sum(dim=-1), torch.ones(4, 100), rtol=0, atol=1e-5)
    chosen = result.probs.gather(-1, result.predictions[..., None])[..., 0]
    assert torch.equal(chosen, result.probs.amax(dim=-1))


# The package ----------------------------------------------------------------------------------------


def test_reference_has_the_same_signature():
    assert inspect.signature(tim_ext.adm) == inspect.signature(reference.adm)


def test_defaults_are_those_of_the_paper():
    defaults = {k: v.default for k, v in inspect.signature(tim_ext.adm).parameters.items()}
    paper = {"lam": 0.1, "alpha": 0.1, "beta": 1.0, "temperature": 15.0, "marginal_weight": 1.0}
    assert defaults.items() >= {**paper, "iterations": 150, "tol": 0.0, "form": "auto"}.items()


def test_docstring_example():
    examples = doctest.DocTestFinder().find(tim_ext.adm, globs={})
    assert sum(len(example.examples) for example in examples) > 0
    for example in examples:
        assert doctest.DocTestRunner().run(example).failed == 0


GROWTH = """
import resource, torch, tim_ext

def peak():  # MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

generator = torch.Generator().manual_seed(0)
pool = torch.randn(12_000, 640, generator=generator)
index = torch.randint(0, 12_000, (10_000, 100), generator=generator)
labels = torch.cat([torch.arange(25) % 5, torch.full((75,), -1)]).repeat(10_000, 1)
tim_ext.adm(pool, labels[:8], index=index[:8], outputs=("predictions",))
before = peak()
result = tim_ext.adm(pool, labels, index=index, outputs=("predictions",))
assert result.predictions.shape == (10_000, 100)
print(peak() - before)
"""


@pytest.mark.slow
def test_ten_thousand_tasks_share_one_pool(run_python):
    """As copies these features would take 2.5 GB."""
    ended = run_python("-c", GROWTH)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 200


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cuda_equals_the_reference(dtype):
    features, labels, _ = make_batch(range(6), noise=0.3, padding=3)
    expected = reference.adm(features, labels)
    result = tim_ext.adm(features.to("cuda", dtype), labels.cuda())
    assert result.probs.is_cuda
    atol = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(result.probs.cpu().double(), expected.probs, rtol=0, atol=atol)
    assert torch.equal(result.predictions.cpu(), expected.predictions)
