"""Every sampler: what its tasks promise, and statistics of 10,000 of them."""

from __future__ import annotations

import doctest
import json
import pickle
import random
import re
from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from helpers.paths import DOCS
from helpers.sampled_tasks import MANY, SIZES, any_sampler, check_tasks, chi_square, labels_of, same

import tim_ext
from tim_ext.tasks import (
    balanced,
    dirichlet,
    dominant,
    few_classes,
    meta_dataset,
    samplers,
    whole_pool,
    zipf,
)
from tim_ext.tasks.drawing import BLOCK

# test_the_tasks_of_a_seed_stay_the_same
BALANCED = [[29, 14, 59, 35, 32, 20], [22, 19, 40, 28, 49, 1]]
DIRICHLET = [[58, 50, 16, 38, 2, 20]]
ZIPF = [[46, 26, 42, 16, 34, 32, 36]]
WHOLE = [[0, 1, 2, 9, 4, 11, 6, 7, 8, 3, 10, 5]]
META = [[54, 8, 26, 16, 45, 37, 49, 12, 38, 34, 15, 31]]


# Every sampler -------------------------------------------------------------------------------------


@any_sampler
def test_tasks_are_what_they_promise(make) -> None:
    labels = labels_of(SIZES)
    check_tasks(labels, make(labels)[0:200])


@any_sampler
def test_a_task_does_not_depend_on_the_slice(make) -> None:
    labels = labels_of(SIZES)
    sampler = make(labels)
    end = 2 * BLOCK + 9
    whole = sampler[0:end]
    assert len(whole) == end
    cut = random.Random(0)
    for start, stop in [(0, 1), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (end - 1, end)] + [
        sorted(cut.sample(range(end), 2)) for _ in range(20)
    ]:
        part = sampler[start:stop]
        assert len(part) == stop - start
        for name in ("index", "labels", "truth", "classes"):
            expected = getattr(whole, name)[start:stop]
            got = getattr(part, name)
            assert type(got) is type(expected)
            assert all(map(torch.equal, got, expected))
    assert same(make(labels)[0:end], whole)
    assert not same(make(labels, seed=1)[0:end], whole)


@any_sampler
def test_tasks_differ_from_each_other(make) -> None:
    tasks = make(labels_of(SIZES))[0 : 4 * BLOCK]
    assert len({tuple(index.tolist()) for index in tasks.index}) == 4 * BLOCK


@any_sampler
def test_describe_makes_the_sampler_again(make) -> None:
    labels = labels_of(SIZES)
    sampler = make(labels, seed=3)
    settings = json.loads(json.dumps(sampler.describe()))
    again = getattr(samplers, settings.pop("kind"))(labels, **settings)
    assert same(again[5:70], sampler[5:70])
    assert again.describe() == sampler.describe()
    assert same(pickle.loads(pickle.dumps(sampler))[0:5], sampler[0:5])
    assert "on 504 samples of 12 classes" in repr(sampler)


@any_sampler
def test_the_order_of_rows_and_the_kind_of_labels(make) -> None:
    labels = labels_of(SIZES)
    tasks = make(labels)[0:20]
    for other in (torch.from_numpy(labels), labels.astype(np.int16), labels.tolist()):
        assert same(make(other)[0:20], tasks)
    order = np.argsort(labels, kind="stable")  # the same rows of each class, at other places
    moved = make(labels[order])[0:20]
    assert all(
        torch.equal(torch.from_numpy(order)[a], b) for a, b in zip(moved.index, tasks.index, strict=True)
    )


def test_the_tasks_of_a_seed_stay_the_same() -> None:
    """If this fails, numpy or tim_ext draws other tasks: results of another version cannot be repeated."""
    labels = np.arange(60) % 6
    assert balanced(labels, ways=2, shots=1, queries=2)[0:2].index.tolist() == BALANCED
    assert dirichlet(labels, ways=2, shots=1, queries=4)[64:65].index.tolist() == DIRICHLET
    assert zipf(labels, ways=3, shots=1, queries=4)[64:65].index.tolist() == ZIPF
    assert whole_pool(labels[:12], shots=1)[3:4].index.tolist() == WHOLE
    assert [index.tolist() for index in meta_dataset(labels, max_ways=5, max_queries=1)[1:2].index] == META


@pytest.mark.parametrize(
    ("tasks", "error", "text"),
    [
        (3, TypeError, "tasks: expected a slice such as sampler[0:100], got int 3"),
        (slice(0, 9, 2), ValueError, "tasks: expected a slice of step 1, got 2"),
        (slice(5), None, ""),
        (
            slice(5, None),
            ValueError,
            "tasks: expected a slice with an end, as there are endlessly many, got none",
        ),
        (slice(-1, 5), ValueError, "tasks: expected an integer >= 0, got -1"),
        (slice(5, 5), ValueError, "tasks: expected an integer >= 6, got 5"),
        (slice(0, 2.5), TypeError, "tasks: expected an integer, got float 2.5"),
    ],
)
def test_slices(tasks, error, text) -> None:
    sampler = balanced(np.arange(100) % 5)
    if error is None:
        assert len(sampler[tasks]) == 5
    else:
        with pytest.raises(error, match=re.escape(text)):
            sampler[tasks]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda y: balanced(y, ways=13),
            ValueError,
            "ways: expected at most 12, the classes of labels, got 13",
        ),
        (
            lambda y: balanced(y, shots=5, queries=5),
            ValueError,
            "labels: class 0 has 9 samples, 5 shots + 5 queries need 10 (2 classes are too small)",
        ),
        (
            lambda y: balanced(np.where(y == 0, -1, y), ways=5, shots=9, queries=1),
            ValueError,
            "labels: class 6 has 9 samples, 9 shots + 1 query need 10",
        ),
        (lambda y: balanced(y, ways=0), ValueError, "ways: expected an integer >= 1, got 0"),
        (lambda y: balanced(y, shots=1.5), TypeError, "shots: expected an integer, got float 1.5"),
        (lambda y: balanced(y, seed=-1), ValueError, "seed: expected an integer >= 0, got -1"),
        (lambda y: balanced(y, seed=None), TypeError, "seed: expected an integer, got NoneType None"),
        (
            lambda y: balanced(y * 1.0),
            TypeError,
            "labels: expected integers (int64 to int8, or uint8), got float64",
        ),
        (lambda y: balanced(y[:, None]), ValueError, "labels: expected shape [M], not 0, got [507, 1]"),
        (lambda y: balanced(y[:0]), ValueError, "labels: expected shape [M], not 0, got [0]"),
        (
            lambda y: balanced(y * 0 - 1),
            ValueError,
            "labels: expected classes (>= 0), got only negative numbers",
        ),
        (lambda y: balanced("abc"), TypeError, "labels: expected a tensor or array, got str"),
        (
            lambda y: dirichlet(y),
            ValueError,
            "labels: class 0 has 9 samples, 1 shot + 27 queries of the largest class in a task of median "
            "imbalance need 28 (7 classes are too small)",
        ),
        (
            lambda y: dirichlet(y, concentration=0),
            ValueError,
            "concentration: expected a finite number > 0, got 0.0",
        ),
        (
            lambda y: dirichlet(y, concentration=0.001),
            ValueError,
            "concentration: expected a number from 0.01 to 1e+06, got 0.001",
        ),
        (lambda y: few_classes(y, present=6), ValueError, "present: expected at most ways=5, got 6"),
        (
            lambda y: few_classes(y, present=5, queries=4),
            ValueError,
            "present: expected at most queries=4, got 5",
        ),
        (
            lambda y: few_classes(y, queries=17),
            ValueError,
            "labels: class 0 has 9 samples, 1 shot + 9 queries need 10 (2 classes are too small)",
        ),
        (lambda y: zipf(y, exponent=-1.0), ValueError, "exponent: expected a finite number >= 0, got -1.0"),
        (
            lambda y: zipf(y, queries=20),
            ValueError,
            "labels: class 0 has 9 samples, 1 shot + 9 queries of the largest class need 10 (2 classes",
        ),
        (
            lambda y: dominant(y, share=0.1),
            ValueError,
            "share: expected a number from 1/ways = 0.2 to 1, got 0.1",
        ),
        (
            lambda y: dominant(y, share=2),
            ValueError,
            "share: expected a number from 1/ways = 0.2 to 1, got 2",
        ),
        (
            lambda y: dominant(y, queries=10, share=0.9),
            ValueError,
            "labels: class 0 has 9 samples, 1 shot + 9 queries of the largest class need 10",
        ),
        (
            lambda y: whole_pool(y, shots=10),
            ValueError,
            "labels: class 0 has 9 samples, 10 shots need 10 (2 classes are too small)",
        ),
        (
            lambda y: whole_pool([3, 3, 5, 5], shots=2),
            ValueError,
            "shots: expected a class with more samples, for queries, got none with 3",
        ),
        (
            lambda y: meta_dataset(y[y < 4]),
            ValueError,
            "min_ways: expected at most 4, the classes of labels, got 5",
        ),
        (
            lambda y: meta_dataset(np.append(y, 99)),
            ValueError,
            "labels: class 99 has 1 sample, 1 shot + 1 query need 2",
        ),
        (lambda y: meta_dataset(y, max_ways=4), ValueError, "max_ways: expected at least min_ways=5, got 4"),
        (
            lambda y: meta_dataset(y, max_leaves=4),
            ValueError,
            "max_leaves: expected at least min_ways=5, got 4",
        ),
        (
            lambda y: meta_dataset(y, max_support=9),
            ValueError,
            "max_support: expected at least max_ways=50, got 9",
        ),
    ],
)
def test_refusals(make, error, text) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        make(labels_of(SIZES))


@any_sampler
def test_into_a_solver(make) -> None:
    labels = labels_of(SIZES)
    pool = torch.nn.functional.one_hot(torch.from_numpy(labels).clamp(min=0), 12).double()
    tasks = make(labels)[0:10]
    predictions = tim_ext.adm(pool, tasks.labels, index=tasks.index, iterations=0).predictions
    assert all(map(torch.equal, predictions, tasks.truth))


def test_documentation() -> None:
    assert doctest.testmod(samplers).attempted >= 4
    assert doctest.testmod(samplers).failed == 0
    page = (DOCS / "tasks.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/tasks.md", "exec"), names)
    assert len(names["tasks"]) == MANY


# Balanced and unbalanced ---------------------------------------------------------------------------


def test_balanced_statistics() -> None:
    labels = labels_of([30] * 7, numbers=[0, 3, 4, 10, 11, 50, 1000])
    tasks = balanced(labels, ways=3, shots=2, queries=4)[0:MANY]
    assert tasks.index.shape == (MANY, 18)
    assert tasks.classes.shape == (MANY, 3)
    assert (tasks.labels == torch.tensor([0, 0, 1, 1, 2, 2] + [-1] * 12)).all()
    assert (tasks.truth == torch.tensor([0, 0, 1, 1, 2, 2] + [0] * 4 + [1] * 4 + [2] * 4)).all()
    # 210 ordered choices of classes, all equally likely; the same for the rows of a class, in either role
    seen = Counter(map(tuple, tasks.classes.tolist()))
    assert seen.keys() == set(permutations([0, 3, 4, 10, 11, 50, 1000], 3))
    assert abs(chi_square(list(seen.values()))) < 4
    for part in (tasks.index[:, :6], tasks.index[:, 6:], tasks.index[:, :1]):
        rows = torch.bincount(part.flatten(), minlength=len(labels))
        assert (rows[torch.from_numpy(labels) < 0] == 0).all()
        assert abs(chi_square(rows[torch.from_numpy(labels) >= 0])) < 4


def test_a_class_may_be_used_up() -> None:
    labels = labels_of([6] * 5)
    check_tasks(labels, balanced(labels, shots=2, queries=4)[0:50])


def queries_per_class(tasks):
    """[T, K]"""
    count, ways = tasks.classes.shape
    flat = (tasks.truth + ways * torch.arange(count)[:, None])[tasks.labels == -1]
    return torch.bincount(flat, minlength=count * ways).view(count, ways)


@pytest.mark.parametrize(("ways", "queries", "concentration"), [(5, 75, 2.0), (5, 75, 0.5), (20, 100, 2.0)])
def test_dirichlet_moments(ways, queries, concentration) -> None:
    labels = np.repeat(np.arange(22), queries + 1)
    tasks = dirichlet(labels, ways=ways, queries=queries, concentration=concentration)[0:MANY]
    counts = queries_per_class(tasks).double()
    assert (counts.sum(dim=1) == queries).all()
    assert (tasks.labels >= 0).sum() == MANY * ways
    shares = counts / queries
    mean = 1 / ways
    variance = mean * (1 - mean) / (ways * concentration + 1)
    assert (shares.mean(dim=0) - mean).abs().max() < 5 * (variance / MANY) ** 0.5
    covariance = torch.cov(shares.T)
    spread = 5 * variance * (5 / MANY) ** 0.5  # kurtosis below 6; rounding adds 1 % to the variance at most
    assert (covariance.diagonal() - variance).abs().max() < spread
    rest = covariance[~torch.eye(ways, dtype=torch.bool)]
    assert (rest + variance / (ways - 1)).abs().max() < spread


def test_dirichlet_draws_again_what_does_not_fit() -> None:
    """The shares then are those of the distribution that do fit."""
    room, queries = 35, 75
    counts = queries_per_class(dirichlet(np.repeat(np.arange(6), room + 1))[0:MANY])
    assert counts.max() == room
    free = queries_per_class(dirichlet(np.repeat(np.arange(6), queries + 1), seed=1)[0 : 2 * MANY])
    fitting = free[(free <= room).all(dim=1)].double()
    assert 0.4 < len(fitting) / len(free) < 0.95
    for moment in (1, 2, 3):
        got, expected = (counts.double() ** moment).flatten(), (fitting**moment).flatten()
        error = (got.var() / len(got) + expected.var() / len(expected)) ** 0.5
        assert abs(got.mean() - expected.mean()) < 5 * error


@pytest.mark.parametrize(
    ("present", "queries", "expected"), [(2, 75, [37, 38]), (1, 10, [10]), (5, 15, [3] * 5)]
)
def test_few_classes(present, queries, expected) -> None:
    tasks = few_classes(np.arange(800) % 8, present=present, queries=queries)[0:MANY]
    counts = queries_per_class(tasks)
    ordered = counts.sort(dim=1).values
    assert (ordered[:, :-present] == 0).all() if present < 5 else True
    assert (ordered[:, -present:] == torch.tensor(expected)).all()
    which = Counter(tuple(row.nonzero().flatten().tolist()) for row in counts)
    assert which.keys() == set(combinations(range(5), present))
    if present == 2:
        assert abs(chi_square(list(which.values()))) < 4
        assert abs((counts == 38).sum(dim=0).double() - MANY / 5).max() < 5 * (MANY * 0.2 * 0.8) ** 0.5


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda y: zipf(y, ways=4, queries=25), [12, 6, 4, 3]),
        (lambda y: zipf(y, ways=4, queries=20, exponent=2), [14, 3, 2, 1]),
        (lambda y: zipf(y, ways=4, queries=20, exponent=0), [5, 5, 5, 5]),
        (lambda y: zipf(y, ways=4, queries=2), [1, 1, 0, 0]),
        (lambda y: dominant(y, ways=4, queries=20, share=0.7), [14, 2, 2, 2]),
        (lambda y: dominant(y, ways=4, queries=20), [10, 4, 3, 3]),
        (lambda y: dominant(y, ways=4, queries=20, share=0.25), [5, 5, 5, 5]),
        (lambda y: dominant(y, ways=4, queries=20, share=1), [20, 0, 0, 0]),
        (lambda y: dominant(y, ways=1, queries=3, share=1), [3]),
    ],
)
def test_given_shares_in_random_order(make, expected) -> None:
    counts = queries_per_class(make(np.arange(400) % 8)[0:MANY])
    assert (counts.sort(dim=1, descending=True).values == torch.tensor(expected)).all()
    seen = Counter(map(tuple, counts.tolist()))
    assert seen.keys() == set(permutations(expected))
    if len(seen) > 1:
        assert abs(chi_square(list(seen.values()))) < 4


def test_whole_pool() -> None:
    labels = labels_of([2, 5, 9], numbers=[1, 4, 30])
    tasks = whole_pool(labels, shots=2)[0:1000]
    assert (tasks.classes == torch.tensor([1, 4, 30])).all()
    assert (tasks.index.sort(dim=1).values == torch.from_numpy(np.flatnonzero(labels >= 0))).all()
    assert (queries_per_class(tasks) == torch.tensor([0, 3, 7])).all()
    for k, size in ((1, 5), (2, 9)):
        support = torch.bincount(tasks.index[tasks.labels == k], minlength=len(labels))
        assert (support > 0).sum() == size
        assert abs(chi_square(support[support > 0])) < 4
