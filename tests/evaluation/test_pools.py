"""The pool: transformed once for all methods that want the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from helpers.evaluations import by_hand
from torch import Tensor

import tim_ext
from tim_ext import tasks


def test_simpleshot_centres_by_the_base_mean(pool):
    features, labels = pool
    base_mean = features[:100].mean(dim=0)
    arguments: dict[str, Any] = {"methods": ["simpleshot", "prototype"], "shots": 1, "tasks": 50}
    without = tim_ext.evaluate(features, labels, **arguments).accuracies["5-way 1-shot"]
    assert torch.equal(without["simpleshot"], without["prototype"])
    found = tim_ext.evaluate(features, labels, base_mean=base_mean, **arguments).accuracies["5-way 1-shot"]
    centred = tim_ext.evaluate(features - base_mean, labels, **arguments).accuracies["5-way 1-shot"]
    assert torch.equal(found["prototype"], without["prototype"])
    assert torch.equal(found["simpleshot"], centred["prototype"])
    assert not torch.equal(found["simpleshot"], found["prototype"])


def test_the_pool_is_transformed_once_for_all_methods(pool, monkeypatch):
    calls = []
    real = tim_ext.transforms.l2_normalize

    def watch(features: Tensor) -> Tensor:
        calls.append(tuple(features.shape))
        return real(features)

    monkeypatch.setattr(tim_ext.transforms, "l2_normalize", watch)
    methods = ["prototype", "simpleshot", "bd-cspn"]
    tim_ext.evaluate(*pool, methods=methods, tasks=600)
    assert calls == []  # the methods do it while they read the features
    hyper = {name: {"transform": "power+l2"} for name in methods}
    tim_ext.evaluate(*pool, methods=methods, hyper=hyper, tasks=600)
    assert calls.count(pool[0].shape) == 1


def test_what_a_transform_leaves_to_the_tasks(pool):
    features, labels = pool
    drawn = tasks.balanced(labels)[0:50]
    for transform in ("none", "power+l2", "task_center", "power+l2+task_center+l2"):
        hyper = {"prototype": {"transform": transform}}
        result = tim_ext.evaluate(features, labels, methods=["prototype"], hyper=hyper, shots=1, tasks=50)
        expected = tim_ext.baselines.prototype(features, drawn.labels, index=drawn.index, transform=transform)
        np.testing.assert_allclose(
            result.rows[0].accuracy, np.mean(by_hand(expected.predictions, drawn)), atol=0.1
        )
