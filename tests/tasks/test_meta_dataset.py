"""The tasks of Meta-Dataset, next to a slow version of its formulas, and by statistics of 10,000 tasks."""

from __future__ import annotations

import math
import random
import re
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.sampled_tasks import MANY, SIZES, chi_square, labels_of, same

from tim_ext.tasks import meta_dataset


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
