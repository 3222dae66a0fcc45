"""The samplers, next to slow per-task versions of the same formulas and by statistics of 10,000 tasks."""

from __future__ import annotations

import doctest
import json
import math
import pickle
import random
import re
from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from helpers.paths import DOCS
from hypothesis import given
from hypothesis import strategies as st

import tim_ext
from tim_ext.tasks import balanced, dirichlet, few_classes, meta_dataset, samplers
from tim_ext.tasks.samplers import BLOCK

MANY = 10_000
# test_the_tasks_of_a_seed_stay_the_same
BALANCED = [[29, 14, 59, 35, 32, 20], [22, 19, 40, 28, 49, 1]]
DIRICHLET = [[58, 50, 16, 38, 2, 20]]
META = [[54, 8, 26, 16, 45, 37, 49, 12, 38, 34, 15, 31]]


def labels_of(sizes, numbers=None, seed=0):
    """Labels [M] in random order, sizes[i] of them numbers[i], and a few rows that are not used."""
    numbers = np.arange(len(sizes)) if numbers is None else np.asarray(numbers)
    labels = np.concatenate([np.repeat(numbers, sizes), [-1, -5, -100]])
    return np.random.default_rng(seed).permutation(labels)


def per_task(tasks):
    return zip(tasks.index, tasks.labels, tasks.truth, tasks.classes, strict=True)


def check_tasks(labels, tasks):
    """What every task promises."""
    labels = torch.as_tensor(labels)
    for index, given_, truth, classes in per_task(tasks):
        count = len(classes)
        assert index.dtype == given_.dtype == truth.dtype == classes.dtype == torch.int64
        assert len(index.unique()) == len(index)  # so support and query share no row
        assert len(classes.unique()) == count
        assert (labels[index] == classes[truth]).all()
        support = given_ >= 0
        assert (given_ == torch.where(support, truth, -1)).all()
        assert support.int().diff().le(0).all()  # support first
        assert truth[support].diff().ge(0).all()
        assert truth[~support].diff().ge(0).all()
        assert truth[support].unique().tolist() == list(range(count))
        assert (~support).any()


def same(first, second):
    return all(
        torch.equal(a, b)
        for name in ("index", "labels", "truth", "classes")
        for a, b in zip(getattr(first, name), getattr(second, name), strict=True)
    )


def chi_square(counts):
    """In standard deviations above its mean, for equally likely outcomes."""
    counts = np.asarray(counts, dtype=float)
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


SAMPLERS = {
    "balanced": lambda labels, **more: balanced(labels, ways=4, shots=2, queries=3, **more),
    "dirichlet": lambda labels, **more: dirichlet(labels, ways=4, shots=2, queries=11, **more),
    "few_classes": lambda labels, **more: few_classes(labels, ways=4, shots=2, queries=7, **more),
    "meta_dataset": lambda labels, **more: meta_dataset(labels, **more),
    "superclasses": lambda labels, **more: meta_dataset(
        labels, superclasses={"a": range(5), "b": range(5, 12)}, **more
    ),
    "hierarchy": lambda labels, **more: meta_dataset(
        labels, hierarchy={"root": ["a", "b"], "a": range(5), "b": range(4, 12)}, **more
    ),
}
any_sampler = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
SIZES = [9, 31, 12, 10, 200, 55, 9, 14, 90, 23, 40, 11]


# Every sampler ------------------------------------------------------------------------------------


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


# Drawing without replacement ----------------------------------------------------------------------


sizes_and_counts = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@given(
    st.lists(sizes_and_counts, max_size=6).filter(lambda pairs: any(count for _, count in pairs)),
    st.integers(0, 2**32),
)
def test_choose_is_the_algorithm_of_fisher_and_yates(pairs, seed) -> None:
    sizes, counts = np.array(pairs).T
    draws = iter(np.random.default_rng(seed).random(counts.sum()))
    expected = []
    for size, count in pairs:
        cards = list(range(size))
        for step in range(count):
            target = step + int(next(draws) * (size - step))
            cards[step], cards[target] = cards[target], cards[step]
        expected += cards[:count]
    assert samplers._choose(np.random.default_rng(seed), sizes, counts).tolist() == expected


def test_choose_is_uniform() -> None:
    count = 30_000
    chosen = samplers._choose(np.random.default_rng(0), np.full(count, 5), np.full(count, 3)).reshape(
        count, 3
    )
    seen = Counter(map(tuple, chosen.tolist()))
    assert seen.keys() == set(permutations(range(5), 3))
    assert abs(chi_square(list(seen.values()))) < 4


def test_choose_out_of_very_many() -> None:
    """Neither time nor memory depends on how many there are."""
    chosen = samplers._choose(np.random.default_rng(0), np.full(100, 10**12), np.full(100, 50))
    assert chosen.min() >= 0
    assert abs(chosen.mean() / 10**12 - 0.5) < 5 * (1 / 12 / 5000) ** 0.5


# Balanced and unbalanced --------------------------------------------------------------------------


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


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.integers(1, 100))
def test_rounding_takes_the_largest_remainders(parts, total) -> None:
    exact = np.array(parts) / sum(parts) * total
    rounded = samplers._round(exact[None], total)[0]
    # one at a time to whom most is missing, starting from the whole numbers
    expected = np.floor(exact)
    while expected.sum() < total:
        expected[np.argmax(exact - expected)] += 1
    assert rounded.sum() == total
    assert np.abs(rounded - exact).max() <= 1
    # equal up to ties
    np.testing.assert_allclose(np.sort(np.abs(rounded - exact)), np.sort(np.abs(expected - exact)), atol=1e-9)


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


# Meta-Dataset -------------------------------------------------------------------------------------


class Recorder:
    """A generator that keeps what it drew."""

    def __init__(self, seed):
        self.rng, self.drawn = np.random.default_rng(seed), []

    def random(self, count):
        self.drawn.append(self.rng.random(count))
        return self.drawn[-1]

    def uniform(self, low, high, size):
        assert (low, high) == (math.log(0.5), math.log(2))
        self.drawn.append(self.rng.uniform(low, high, size))
        return self.drawn[-1]


CLASS_SIZES = [int(n) for n in np.random.default_rng(5).integers(4, 400, 120)]
MIXED = {"all": range(120), "some": range(30, 100), "few": range(7), "other": range(40, 52)}


@pytest.mark.parametrize("choice", ["none", "superclasses", "hierarchy"])
@pytest.mark.parametrize("sizes", [CLASS_SIZES, [20] * 120, [1300] * 120])
def test_meta_dataset_task_by_task(choice, sizes) -> None:
    """The formulas, one task after the other in plain Python, with the same random numbers."""
    labels = np.repeat(np.arange(120), sizes)
    groups = {
        "none": {"": range(120)},
        "superclasses": {"a": range(60), "b": range(60, 65), "c": range(65, 120)},
        "hierarchy": MIXED,
    }[choice]
    arguments = {} if choice == "none" else {choice: groups}
    recorder = Recorder(1)
    got = meta_dataset(labels, **arguments)._compose(recorder, np.array(sizes))
    drawn = [iter(values) for values in recorder.drawn]
    group_draw, way_draw = drawn.pop(0), iter(()) if choice == "hierarchy" else drawn.pop(0)
    class_draw, size_draw, weight_draw = drawn
    members = [list(groups[name]) for name in sorted(groups)]
    expected = []
    for ways in got.ways:
        group = members[int(next(group_draw) * len(members))]
        limit = min(50, len(group))
        K = limit if choice == "hierarchy" else 5 + int(next(way_draw) * (limit - 5 + 1))
        assert ways == K
        cards = list(group)
        for step in range(K):
            target = step + int(next(class_draw) * (len(cards) - step))
            cards[step], cards[target] = cards[target], cards[step]
        classes = cards[:K]
        n = [sizes[c] for c in classes]
        q = min(10, *(n_c // 2 for n_c in n))
        b = next(size_draw)
        S = min(500, sum(math.floor(b * min(100, n_c - q) + 1) for n_c in n))
        weights = [n_c * math.exp(next(weight_draw)) for n_c in n]
        for c, n_c, weight in zip(classes, n, weights, strict=True):
            k_c = min(math.floor(weight / sum(weights) * (S - K)) + 1, n_c - q)
            expected.append((c, k_c, q))
    assert list(zip(got.classes, got.shots, got.queries, strict=True)) == expected
    assert not any(list(values) for values in drawn)  # all used


def draw_meta_dataset_task(sizes, rng):
    """(ways, |S| drawn, shots of each class, queries of each class): the protocol once more, on its own."""
    ways = rng.randint(5, min(50, len(sizes)))
    n = rng.sample(sizes, ways)
    queries = min([10] + [size // 2 for size in n])
    fraction = rng.random()
    support = min(sum(int(fraction * min(100, size - queries) + 1) for size in n), 500)
    weights = [size * 2 ** rng.uniform(-1, 1) for size in n]
    shots = [
        min(1 + int((support - ways) * weight / sum(weights)), size - queries)
        for weight, size in zip(weights, n, strict=True)
    ]
    return ways, sum(shots), max(shots), min(shots), queries


def test_meta_dataset_statistics() -> None:
    sizes = CLASS_SIZES[:70]
    labels = labels_of(sizes)
    tasks = meta_dataset(labels)[0:MANY]
    # shots and queries [T, 50] of all tasks at once
    task = torch.arange(MANY).repeat_interleave(torch.tensor([len(index) for index in tasks.index]))
    place, support = 50 * task + torch.cat(tasks.truth), torch.cat(tasks.labels) >= 0
    shots, queries = (
        torch.bincount(place[which], minlength=50 * MANY).view(MANY, 50).numpy()
        for which in (support, ~support)
    )
    ways = np.array([len(classes) for classes in tasks.classes])
    there = np.arange(50) < ways[:, None]
    assert ((queries == queries[:, :1]) == there).all()
    assert ((shots > 0) == there).all()
    fewest = np.where(there, shots, 1000).min(axis=1)
    got = np.stack([ways, shots.sum(axis=1), shots.max(axis=1), fewest, queries[:, 0]], axis=1)
    ways, support = got[:, 0], got[:, 1]
    assert set(ways) == set(range(5, 51))
    assert abs(chi_square(np.bincount(ways)[5:])) < 4
    assert support.max() <= 500
    assert (support >= ways).all()
    used = torch.bincount(torch.cat(tasks.classes), minlength=70).double()
    expected = ways.sum() / 70
    assert (used - expected).abs().max() < 5 * expected**0.5
    rng = random.Random(0)
    slow = np.array([draw_meta_dataset_task(sizes, rng) for _ in range(4000)])
    for fast, other in zip(got.T, slow.T, strict=True):
        # two-sample Kolmogorov-Smirnov: P(distance > 2.2 sqrt(1/m + 1/n)) is about 1e-4
        below = [
            np.searchsorted(np.sort(values), range(501), "right") / len(values) for values in (fast, other)
        ]
        assert np.abs(below[0] - below[1]).max() < 2.2 * (1 / MANY + 1 / len(slow)) ** 0.5


def test_superclass_first() -> None:
    """Omniglot: a uniform alphabet, then a uniform number of its characters."""
    names = [f"{alphabet}/{i}" for alphabet, count in (("A", 14), ("B", 5), ("C", 55)) for i in range(count)]
    superclasses = {a: [name for name in names if name.startswith(a)] for a in "CAB"}
    labels = np.repeat(np.arange(74), 20)
    tasks = meta_dataset(labels, superclasses=superclasses, class_names=names)[0:MANY]
    group = np.array([14, 19, 74])
    ways = np.array([len(classes) for classes in tasks.classes])
    alphabets = np.searchsorted(group, torch.cat(tasks.classes).numpy(), "right")
    which = alphabets[np.cumsum(ways) - ways]
    assert (alphabets == np.repeat(which, ways)).all()
    assert abs(chi_square(np.bincount(which))) < 4
    assert abs(chi_square(np.bincount(ways[which == 0])[5:])) < 4
    assert set(ways[which == 0]) == set(range(5, 15))
    assert set(ways[which == 1]) == {5}
    assert set(ways[which == 2]) == set(range(5, 51))
    assert {int((given_ < 0).sum()) for given_ in tasks.labels} == {10 * K for K in set(ways.tolist())}
    described = meta_dataset(labels, superclasses=superclasses, class_names=names).describe()
    assert described["superclasses"]["B"] == list(range(14, 19))  # numbers: names are not needed again


def test_uniform_node_of_a_hierarchy() -> None:
    """ILSVRC: a uniform eligible node, and all it spans, 50 of them if it spans more."""
    hierarchy = {
        "thing": ["animal", "plant"],  # all 70
        "animal": ["dog", "cat", "pet"],  # 0 .. 59
        "dog": range(20),
        "cat": [*range(20, 58), 58, 59],
        "pet": ["cat", 3, 4],  # shares classes with both
        "plant": ["tree"],  # one child: stands for tree
        "tree": ["oak", 64, 65, 66, 67, 68, 69],
        "oak": [60, 61, 62, 63],  # four: too small
        "fossil": [900, "trilobite"],  # nothing of the pool
    }
    spans = {
        "thing": set(range(70)),
        "animal": set(range(60)),
        "dog": set(range(20)),
        "cat": set(range(20, 60)),
        "pet": {3, 4, *range(20, 60)},
        "tree": set(range(60, 70)),
    }
    labels = np.repeat(np.arange(70), 6)
    tasks = meta_dataset(labels, hierarchy=hierarchy)[0:MANY]
    seen = Counter()
    inside = torch.zeros(70)
    for classes in tasks.classes:
        found = set(classes.tolist())
        exact = [name for name, span in spans.items() if span == found]
        if not exact:
            assert len(classes) == 50
            exact = ["animal" if found <= spans["animal"] else "thing"]
            inside[classes] += exact == ["thing"]
        seen[exact[0]] += 1
    assert seen.keys() == spans.keys()
    assert abs(chi_square(list(seen.values()))) < 4
    share = 50 / 70
    times = seen["thing"]
    assert (inside - times * share).abs().max() < 5 * (times * share * (1 - share)) ** 0.5

    narrower = meta_dataset(labels, hierarchy=hierarchy, max_leaves=59)[0:500]
    assert {len(classes) for classes in narrower.classes} == {20, 40, 42, 10}


def test_the_hierarchy_of_a_split() -> None:
    """A hierarchy of all classes is cut down to those of the labels: nodes that come to span the same, by way
    of a single child, count once."""
    hierarchy = {"root": ["a", "b"], "a": ["c", 100], "c": range(5), "b": [*range(5, 11), 200]}
    labels = np.repeat(np.arange(11), 10)
    tasks = meta_dataset(labels, hierarchy=hierarchy)[0:3000]
    counts = Counter(len(classes) for classes in tasks.classes)
    assert counts.keys() == {11, 5, 6}  # root, c for a, b
    assert abs(chi_square(list(counts.values()))) < 4


def test_a_hierarchy_by_names_or_in_another_order_gives_the_same_tasks() -> None:
    names = [f"class {i}" for i in range(12)]
    labels = labels_of(SIZES)
    numbers = {"root": ["a", "b"], "a": [0, 1, 2, 3, 4], "b": list(range(4, 12))}
    by_name = {
        "b": (names[i] for i in reversed(range(4, 12))),
        "a": np.arange(5),
        "root": {"b", "a"},
    }
    one = meta_dataset(labels, hierarchy=numbers)
    other = meta_dataset(labels, hierarchy=by_name, class_names=names)
    assert same(one[0:100], other[0:100])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"hierarchy": [[1, 2]]}, TypeError, "hierarchy: expected a mapping from names to lists, got list"),
        ({"hierarchy": {1: [2]}}, TypeError, "hierarchy: expected strings as keys, got int 1"),
        ({"hierarchy": {"a": 2}}, TypeError, "hierarchy['a']: expected a list, got int 2"),
        ({"hierarchy": {"a": "bc"}}, TypeError, "hierarchy['a']: expected a list, got str 'bc'"),
        (
            {"hierarchy": {"a": [1.0]}},
            TypeError,
            "hierarchy['a']: expected integers or strings, got float 1.0",
        ),
        (
            {"hierarchy": {"a": [True]}},
            TypeError,
            "hierarchy['a']: expected integers or strings, got bool True",
        ),
        (
            {"hierarchy": {"a": ["b"], "b": ["c", 1], "c": ["a"]}},
            ValueError,
            "hierarchy: expected no cycle, got ",
        ),
        ({"hierarchy": {"a": ["a", 1]}}, ValueError, "hierarchy: expected no cycle, got 'a' below 'a'"),
        (
            {"hierarchy": {"a": range(11)}},
            ValueError,
            "hierarchy: expected every class of labels, got none that is class 11 "
            "(class_names says which class a name is)",
        ),
        (
            {"hierarchy": {"z": list("abcdefghijk")}, "class_names": list("abcdefghijkl")},
            ValueError,
            "hierarchy: expected every class of labels, got none that is class 11",
        ),
        (
            {"hierarchy": {"a": range(12)}, "class_names": list("abcdefghijkl")},
            ValueError,
            "hierarchy: expected nothing below class 0, got the key 'a'",
        ),
        (
            {"hierarchy": {"z": ["x", "y"], "x": range(4), "y": range(2, 12)}, "max_leaves": 9},
            ValueError,
            "hierarchy: expected a node that spans 5 to 9 classes of labels, got 4, 10, 12",
        ),
        (
            {"hierarchy": {str(i): [i] for i in range(12)}},
            ValueError,
            "hierarchy: expected a node that spans 5 to 392 classes of labels, got none of two or more",
        ),
        (
            {"superclasses": {"a": range(6), "b": range(5, 12)}},
            ValueError,
            "superclasses: expected each class once, got class 5 in 'a' and 'b'",
        ),
        (
            {"superclasses": {"a": range(6)}},
            ValueError,
            "superclasses: expected every class of labels, got none with class 6",
        ),
        (
            {"superclasses": {"a": range(8), "b": range(8, 12)}},
            ValueError,
            "superclasses: expected min_ways=5 classes of labels or more in each, got 4 in 'b'",
        ),
        (
            {"superclasses": {"a": [0, "one"]}},
            ValueError,
            "superclasses['a']: expected class numbers or names of class_names, got 'one'",
        ),
        (
            {"superclasses": {"a": range(12)}, "hierarchy": {"a": range(12)}},
            ValueError,
            "superclasses: expected None, as hierarchy is given, got both",
        ),
        ({"class_names": "abc"}, TypeError, "class_names: expected a list of strings, got str"),
        ({"class_names": [1]}, TypeError, "class_names: expected strings, got int 1"),
        (
            {"class_names": ["a", "b", "a"]},
            ValueError,
            "class_names: expected different names, got 'a' for class 0 and 2",
        ),
        (
            {"class_names": ["a", "b"]},
            ValueError,
            "class_names: expected a name for class 0 to 11 of labels, got 2 names",
        ),
    ],
)
def test_refused_hierarchies(arguments, error, text) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        meta_dataset(labels_of(SIZES), **arguments)


def test_superclasses_of_classes_that_are_not_there() -> None:
    """A file of all alphabets serves a pool of some of them."""
    sampler = meta_dataset(np.repeat(np.arange(10), 5), superclasses={"a": range(10), "b": range(10, 20)})
    assert {len(classes) for classes in sampler[0:500].classes} == set(range(5, 11))
