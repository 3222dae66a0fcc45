"""The baselines that are solvers with other hyper-parameters."""

from __future__ import annotations

from functools import partial

import torch
from helpers.baseline_tasks import means, task_lists
from helpers.make_tasks import make_task

import tim_ext
from tim_ext import baselines


def assert_same(result: tim_ext.Result, expected: tim_ext.Result) -> None:
    for name in ("probs", "predictions", "weights", "iterations"):
        assert torch.equal(getattr(result, name), getattr(expected, name)), name


def test_prototypes_are_adm_without_iterations():
    task = make_task(0, noise=1.0, dtype=torch.float32)
    z, labels, mean = task.features, task.labels, task.features.mean(dim=0) / 2
    adm = partial(tim_ext.adm, iterations=0)
    assert_same(baselines.prototype(z, labels), adm(z, labels))
    assert_same(baselines.prototype(z, labels, transform="none"), adm(z, labels, normalize=False))
    assert_same(baselines.prototype(z, labels, base_mean=mean), adm(z, labels))
    cl2 = baselines.prototype(z, labels, transform="cl2", base_mean=mean)
    torch.testing.assert_close(cl2.probs, adm(z - mean, labels).probs)
    pool, rows = torch.cat([z, z]), torch.arange(len(z)).expand(3, -1)
    for transform in ("cl2", "center", "power+l2"):
        options = {"transform": transform, "base_mean": mean}
        expected = baselines.prototype(z, labels, **options).probs
        for got in baselines.prototype(pool, labels.expand(3, -1), index=rows, **options).probs:
            torch.testing.assert_close(got, expected)


def test_protonet_is_the_softmax_of_negative_squared_distances():
    task = make_task(1, d=4, noise=3.0)
    result = baselines.protonet(task.features, task.labels)
    w = means(task.features, task.labels)
    torch.testing.assert_close(result.weights, w)
    expected = torch.stack([(-(w - x).square().sum(dim=1)).softmax(dim=0) for x in task.features])
    torch.testing.assert_close(result.probs, expected)


def test_entropy_min_is_gd_without_the_marginal_entropy():
    task = make_task(2, noise=1.0)
    options = {"lam": 0.7, "alpha": 0.4, "temperature": 9.0, "iterations": 30, "lr": 1e-3}
    expected = tim_ext.gd(task.features, task.labels, marginal_weight=0, **options)
    assert_same(baselines.entropy_min(task.features, task.labels, **options), expected)
    expected = tim_ext.gd(task.features, task.labels, marginal_weight=0, lam=1, alpha=1)
    assert_same(baselines.entropy_min(task.features, task.labels), expected)


def test_alpha_tim_is_gd_with_the_orders_of_its_authors():
    options = {
        "lam": 0.7,
        "alpha": 0.4,
        "marginal_weight": 0.5,
        "temperature": 9.0,
        "iterations": 30,
        "lr": 1e-3,
    }
    for shots, order in [
        ((1, 1), 2.0),
        ((1, 2), 2.0),
        ((2, 2), 5.0),
        ((4, 5), 5.0),
        ((5, 5), 7.0),
        ((9, 9), 7.0),
    ]:
        task = make_task(3, shots=shots, queries=20, noise=1.0)
        expected = tim_ext.gd(task.features, task.labels, entropy_order=order, **options)
        assert_same(baselines.alpha_tim(task.features, task.labels, **options), expected)
    expected = tim_ext.gd(task.features, task.labels, entropy_order=1.5, lam=1, alpha=1)
    assert_same(baselines.alpha_tim(task.features, task.labels, entropy_order=1.5), expected)


def test_alpha_tim_takes_the_order_of_each_task():
    tasks = [
        make_task(t, shots=shots, queries=20, noise=1.0)
        for t, shots in enumerate([(1, 1), (6, 6), (3, 3), (1, 1)])
    ]
    result = baselines.alpha_tim(*task_lists(tasks), iterations=30)
    mean = torch.zeros(64, dtype=torch.float64)
    centered = baselines.alpha_tim(*task_lists(tasks), iterations=30, transform="cl2", base_mean=mean)
    for t, task in enumerate(tasks):
        alone = baselines.alpha_tim(task.features, task.labels, iterations=30)
        torch.testing.assert_close(result.probs[t], alone.probs)
        torch.testing.assert_close(centered.probs[t], alone.probs)
    two_shots = [
        make_task(5, shots=(2, 2), queries=20),
        make_task(6, shots=(1, 1), queries=22),
    ]  # of one size
    z, labels = map(torch.stack, task_lists(two_shots))
    for task, probs in zip(two_shots, baselines.alpha_tim(z, labels, iterations=30).probs, strict=True):
        torch.testing.assert_close(
            probs, baselines.alpha_tim(task.features, task.labels, iterations=30).probs
        )
