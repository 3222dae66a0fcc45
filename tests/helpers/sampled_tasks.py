"""Tasks of samplers: what they must be, and whether counts are what chance gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tim_ext.tasks import balanced, dirichlet, dominant, few_classes, meta_dataset, whole_pool, zipf

MANY = 10_000


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
    "zipf": lambda labels, **more: zipf(labels, ways=4, shots=2, queries=11, **more),
    "dominant": lambda labels, **more: dominant(labels, ways=4, shots=2, queries=11, **more),
    "whole_pool": lambda labels, **more: whole_pool(labels, shots=2, **more),
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
