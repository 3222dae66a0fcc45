"""The baselines against loops over single tasks in float64, which follow the equations of docs/baselines.md."""
# ruff: noqa: E501

from __future__ import annotations

import doctest
import inspect
import re
import sys
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.make_tasks import Task, make_task
from helpers.paths import DOCS
from helpers.refusals import REFUSALS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

import tim_ext
from tim_ext import baselines, transforms
from tim_ext.baselines import pieces
from tim_ext.baselines.threads import for_each
from tim_ext.solver.batch import make_batch

NAN = torch.nan
METHODS = {name: getattr(baselines, name) for name in baselines.__all__}
FAST = {  # the same with fewer iterations
    name: partial(method, iterations=10) if "iterations" in inspect.signature(method).parameters else method
    for name, method in METHODS.items()
}
every = pytest.mark.parametrize("method", FAST.values(), ids=FAST)

# One task, without padding, in float64: probabilities [N, K] and weights [K, d] ----------------------


def means(z: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([z[labels == k].mean(dim=0) for k in range(int(labels.max()) + 1)])


def distance_softmax(z: Tensor, w: Tensor, temperature: float) -> Tensor:
    return torch.stack([(-temperature / 2 * (w - x).square().sum(dim=1)).softmax(dim=0) for x in z])


def cosine(z: Tensor, w: Tensor) -> Tensor:
    return cosine_similarity(z[:, None], w[None], dim=2)


def loop_prototype(z, labels, *, temperature=15.0):
    w = means(z, labels)
    return distance_softmax(z, w, temperature), w


def loop_prototype_cosine(z, labels, *, temperature=15.0):
    w = means(z, labels)
    return (temperature * cosine(z, w)).softmax(dim=1), w


def loop_finetune(z, labels, *, scores, start, temperature=15.0, iterations=100, lr=1e-3):
    support = labels >= 0
    parameters = [parameter.requires_grad_() for parameter in start(means(z, labels))]
    adam = torch.optim.Adam(parameters, lr=lr)
    for _ in range(iterations):
        adam.zero_grad()
        cross_entropy(temperature * scores(z[support], *parameters), labels[support]).backward()
        adam.step()
    return (temperature * scores(z, *parameters)).softmax(dim=1).detach(), parameters[0].detach()


loop_finetune_linear = partial(
    loop_finetune,
    scores=lambda z, w, b: z @ w.T + b,
    start=lambda w: (w, -w.square().sum(dim=1) / 2),
)
loop_finetune_cosine = partial(loop_finetune, scores=cosine, start=lambda w: (w,))


def loop_rectified(z, labels, scale):
    z, labels, w = z.clone(), labels.clone(), means(z, labels)
    query = labels == -1
    if not query.any():
        return w
    z[query] += z[~query].mean(dim=0) - z[query].mean(dim=0)
    labels[query] = cosine(z[query], w).argmax(dim=1)
    rectified = torch.zeros_like(w)
    for k in range(len(w)):
        weights = torch.stack([(scale * cosine(x[None], w[k][None])[0, 0]).exp() for x in z[labels == k]])
        rectified[k] = (weights[:, None] * z[labels == k]).sum(dim=0) / weights.sum()
    return rectified


def loop_bd_cspn(z, labels, *, scale=10.0, temperature=10.0):
    w = loop_rectified(z, labels, scale)
    return (temperature * cosine(z, w)).softmax(dim=1), w


def loop_laplacian_shot(
    z, labels, *, lam=0.7, neighbors=2, rectify=True, scale=10.0, iterations=20, tol=1e-6
):
    w = loop_rectified(z, labels, scale) if rectify else means(z, labels)
    query = (labels == -1).nonzero()[:, 0]
    probs = torch.zeros(len(z), len(w), dtype=z.dtype)
    probs[labels >= 0, labels[labels >= 0]] = 1
    unary = (
        torch.stack([(w - z[i]).square().sum(dim=1) for i in query]) if len(query) else z.new_empty(0, len(w))
    )
    affinity = torch.zeros(len(query), len(query), dtype=z.dtype)
    for i in range(len(query)):
        others = [j for j in range(len(query)) if j != i]
        others.sort(key=lambda j: (z[query[i]] - z[query[j]]).square().sum().item())
        affinity[i, others[:neighbors]] = 1
    q, energy = (-unary).softmax(dim=1), torch.inf
    for t in range(iterations):
        q = (lam * affinity @ q - unary).softmax(dim=1)
        before, energy = energy, (q * (q.log() + unary - lam * affinity @ q)).sum().item()
        if t > 1 and abs(energy - before) <= tol * abs(before):
            break
    probs[query] = q
    return probs, w


def sinkhorn(cost: Tensor, lam: float) -> Tensor:
    plan = (-lam * (cost - cost.min(dim=1, keepdim=True).values)).exp()
    for _ in range(20_000):
        plan = plan / plan.sum(dim=0) * len(plan) / plan.shape[1]
        plan = plan / plan.sum(dim=1, keepdim=True)
        if (plan.sum(dim=0) * plan.shape[1] / len(plan) - 1).abs().max() < 1e-12:
            break
    return plan


def loop_pt_map(z, labels, *, lam=10.0, step=0.2, iterations=20):
    w, query = means(z, labels), labels == -1
    probs = torch.zeros(len(z), len(w), dtype=z.dtype)
    probs[labels >= 0, labels[labels >= 0]] = 1
    if not query.any():
        return probs, w
    for t in range(iterations + 1):
        probs[query] = sinkhorn(torch.stack([(w - x).square().sum(dim=1) for x in z[query]]), lam)
        if t < iterations:
            assigned = torch.stack(
                [(probs[:, k, None] * z).sum(dim=0) / probs[:, k].sum() for k in range(len(w))]
            )
            w = w + step * (assigned - w)
    return probs, w


LOOPS: dict[str, Any] = {
    "prototype": (baselines.prototype, loop_prototype),
    "prototype cosine": (partial(baselines.prototype, metric="cosine"), loop_prototype_cosine),
    "finetune_linear": (baselines.finetune_linear, loop_finetune_linear),
    "finetune_cosine": (baselines.finetune_cosine, loop_finetune_cosine),
    "bd_cspn": (baselines.bd_cspn, loop_bd_cspn),
    "laplacian_shot": (baselines.laplacian_shot, loop_laplacian_shot),
    "pt_map": (partial(baselines.pt_map, tol=1e-12), loop_pt_map),
}
loops = pytest.mark.parametrize(("method", "loop"), LOOPS.values(), ids=LOOPS)


def transformed(name: str, task: Task, mean: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The samples that are no padding."""
    used = task.labels != -100
    change = transforms.make_transform(name, mean, task.features)
    return change(task.features[used], task.labels[used]), task.labels[used]


def assert_solves(
    result: tim_ext.Result, tasks: list[Task], loop, name: str, mean: Tensor | None = None
) -> None:
    """A list result against the loop."""
    for task, probs, predictions, weights in zip(
        tasks, result.probs, result.predictions, result.weights, strict=True
    ):
        expected, w = loop(*transformed(name, task, mean))
        used = task.labels != -100
        torch.testing.assert_close(probs[used], expected, atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(weights, w, atol=1e-8, rtol=1e-6)
        assert (probs[~used] == 0).all()
        assert (predictions[~used] == -100).all()
        best = probs[used].topk(min(2, len(w)), dim=1)
        clear = best.values[:, 0] - best.values[:, -1] > 1e-6 if len(w) > 1 else torch.tensor([])
        if len(w) > 1:
            assert torch.equal(predictions[used][clear], expected.argmax(dim=1)[clear])


def ragged(seed: int, least_classes: int = 1, least_queries: int = 1) -> list[Task]:
    """Tasks of different size, classes and shots, with padding, hard to tell apart."""
    random = Random(seed)
    d, tasks = random.randint(2, 9), []
    for _ in range(random.randint(1, 4)):
        shots = [random.randint(1, 3) for _ in range(random.randint(least_classes, 4))]
        queries, padding = random.randint(least_queries, 12), random.choice([0, 0, 2])
        tasks.append(make_task(random.randrange(10**6), shots, queries, d, noise=1.5, padding=padding))
        tasks[-1].features[tasks[-1].labels == -100] = random.choice([NAN, torch.inf, 0.0])
    return tasks


seeds = st.integers(0, 10**6)


@loops
@settings(max_examples=15)
@given(seed=seeds, transform=st.sampled_from(["none", "l2", "cl2", "power+l2+task_center+l2"]))
def test_equals_a_loop_over_single_tasks(method, loop, seed, transform):
    # the centred support of a single class has the mean 0, of no direction
    least_classes = 2 if "task_center" in transform else 1
    # a single query, shifted to the mean of the support, is as near to one class as to another
    least_queries = 2 if loop in (loop_bd_cspn, loop_laplacian_shot) else 1
    tasks = ragged(seed, least_classes, least_queries)
    mean = torch.linspace(-0.2, 0.3, tasks[0].features.shape[1], dtype=torch.float64)
    options = QUICK.get(loop, {})
    result = method(*task_lists(tasks), transform=transform, base_mean=mean, **options)
    assert_solves(result, tasks, partial(loop, **options), transform, mean)


# Sinkhorn's iteration takes long to converge where the plan is nearly 0 or 1: lam = 10 on such small tasks
QUICK = {
    loop_finetune_linear: {"iterations": 7},
    loop_finetune_cosine: {"iterations": 7},
    loop_pt_map: {"iterations": 3, "lam": 1.0},
}


def task_lists(tasks: list[Task]) -> tuple[list[Tensor], list[Tensor]]:
    return [task.features for task in tasks], [task.labels for task in tasks]


@pytest.mark.parametrize(
    ("method", "loop", "transform", "options"),
    [
        (baselines.prototype, loop_prototype, "l2", {"temperature": 3.0}),
        (partial(baselines.prototype, metric="cosine"), loop_prototype_cosine, "l2", {"temperature": 3.0}),
        (baselines.finetune_linear, loop_finetune_linear, "l2", {}),
        (baselines.finetune_linear, loop_finetune_linear, "none", {"temperature": 2.0, "iterations": 30, "lr": 0.05}),
        (baselines.finetune_cosine, loop_finetune_cosine, "l2", {}),
        (baselines.finetune_cosine, loop_finetune_cosine, "none", {"temperature": 5.0, "iterations": 30, "lr": 0.05}),
        (baselines.bd_cspn, loop_bd_cspn, "l2", {"scale": 3.0, "temperature": 2.0}),
        (baselines.bd_cspn, loop_bd_cspn, "none", {"scale": 0.0}),
        (baselines.laplacian_shot, loop_laplacian_shot, "l2", {"lam": 2.0, "neighbors": 5, "iterations": 4}),
        (baselines.laplacian_shot, loop_laplacian_shot, "l2", {"rectify": False, "tol": 0.0, "iterations": 40}),
        (baselines.laplacian_shot, loop_laplacian_shot, "l2", {"iterations": 0, "scale": 1.0}),
        (baselines.laplacian_shot, loop_laplacian_shot, "l2", {"neighbors": 1000, "lam": 0.1}),
        (partial(baselines.pt_map, tol=1e-12), loop_pt_map, "power+l2+task_center+l2", {"iterations": 5}),
        (partial(baselines.pt_map, tol=1e-12), loop_pt_map, "l2", {"step": 1.0, "iterations": 5, "lam": 5.0}),
        (partial(baselines.pt_map, tol=1e-12), loop_pt_map, "none", {"step": 0.0, "iterations": 0, "lam": 2.0}),
    ],
)  # fmt: skip
def test_hyper_parameters_and_defaults_on_tasks_of_usual_size(method, loop, transform, options):
    tasks = [make_task(seed, shots=(3, 5, 1, 2, 4), queries=40, d=16, noise=1.2) for seed in range(2)]
    result = method(*task_lists(tasks), transform=transform, **options)
    assert_solves(result, tasks, partial(loop, **options), transform)


def test_the_defaults_are_those_of_the_loops():
    """So the test above, where it passes no options, is about the defaults."""
    for method, loop in LOOPS.values():
        function, truth = getattr(method, "func", method), getattr(loop, "func", loop)
        defaults = inspect.signature(function).parameters
        for name, parameter in inspect.signature(truth).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert defaults[name].default == parameter.default, (function.__name__, name)


# Methods that are solvers with other hyper-parameters -----------------------------------------------


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


# PT-MAP's plan ----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=seeds, lam=st.sampled_from([0.1, 10.0, 300.0]), queries=st.integers(1, 40))
def test_the_plan_of_pt_map_is_the_balanced_one(seed, lam, queries):
    """p_ik = exp(-lam ||w_k - z_i||^2 + f_i + g_k) with both sums as wanted: there is only one such plan."""
    task = make_task(seed, shots=(1, 2, 1, 3), queries=queries, d=5, noise=1.5)
    result = baselines.pt_map(task.features, task.labels, lam=lam, tol=1e-9)
    z, labels = transformed("power+l2+task_center+l2", task)
    plan = result.probs[labels == -1]
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(queries, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(dim=0), torch.full((4,), queries / 4, dtype=torch.float64))
    cost = torch.stack([(result.weights - x).square().sum(dim=1) for x in z[labels == -1]])
    rest = plan.log() + lam * cost  # f_i + g_k
    g = rest - rest[:, :1]
    known = (plan > 1e-300).all(dim=1)
    torch.testing.assert_close(g[known], g[known][:1].expand_as(g[known]), atol=1e-5 * lam, rtol=1e-5)


# Shapes ------------------------------------------------------------------------------------------------


def assert_close(result: tim_ext.Result, expected: tim_ext.Result, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(result.probs, expected.probs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(result.weights, expected.weights, atol=tolerance, rtol=tolerance)
    assert torch.equal(result.predictions, expected.predictions)
    assert torch.equal(result.iterations, expected.iterations)


def of_task(result: tim_ext.Result, t: int) -> tim_ext.Result:
    return tim_ext.Result(result.probs[t], result.predictions[t], result.weights[t], result.iterations[t])


@every
@pytest.mark.parametrize("piece_bytes", [1, 3000, 2**23])
def test_a_task_alone_in_a_batch_in_a_list_and_by_index(method, piece_bytes, monkeypatch):
    tasks = [make_task(seed, shots=(2, 1, 3), queries=9, d=6, noise=0.8, padding=2) for seed in range(5)]
    alone = [method(task.features, task.labels) for task in tasks]
    for module in ("pieces", "laplacian_shot"):
        monkeypatch.setattr(sys.modules[f"tim_ext.baselines.{module}"], "PIECE_BYTES", piece_bytes)
    z, labels = map(torch.stack, task_lists(tasks))
    order = torch.randperm(z.shape[0] * z.shape[1], generator=torch.Generator().manual_seed(0))
    pool = torch.cat([z.flatten(0, 1)[order], z.new_full((200, 6), NAN)])  # rows nobody asks for
    rows = order.argsort().view(labels.shape)
    rows = torch.where(labels == -100, 10**9, rows)  # rows there are not
    longer = make_task(9, shots=(2, 1, 3, 1), queries=30, d=6, noise=0.8)
    others = [*tasks, longer]
    for result in (
        method(z, labels),
        method(pool, labels, index=rows),
        method(pool[: z.shape[0] * z.shape[1]], labels, index=rows),  # transformed as a whole
        method(pool, list(labels), index=list(rows)),
        method(z.numpy(), labels.numpy()),
        method(*task_lists(others)),
    ):
        for t in range(len(tasks)):
            assert_close(of_task(result, t), alone[t])
    assert_close(of_task(method(*task_lists(others)), 5), method(longer.features, longer.labels))


@every
def test_shapes(method):
    z, labels = torch.randn(3, 7, 4), torch.tensor([0, 1, -1, -1, 1, -1, -100])
    for lead in [(), (1,), (3,)]:
        result = method(z[0].expand(*lead, 7, 4), labels.expand(*lead, 7))
        assert result.probs.shape == (*lead, 7, 2)
        assert result.predictions.shape == (*lead, 7)
        assert result.weights.shape == (*lead, 2, 4)
        assert result.iterations.shape == lead
        assert (result.predictions.dtype, result.iterations.dtype) == (torch.int64, torch.int64)
        assert result.probs.dtype == result.weights.dtype == torch.float32
        assert result.history is None
    ragged = method([z[0], z[1, :3]], [labels, [0, 1, 2]])
    assert [list(p.shape) for p in ragged.probs] == [[7, 2], [3, 3]]
    assert [list(w.shape) for w in ragged.weights] == [[2, 4], [3, 4]]


@every
@pytest.mark.parametrize("outputs", [(), ("predictions",), ["weights", "probs"]])
def test_outputs_not_asked_for_are_none(method, outputs):
    task = make_task(0, d=6)
    result, everything = (
        method(task.features, task.labels, outputs=outputs),
        method(task.features, task.labels),
    )
    for name in ("probs", "predictions", "weights"):
        value = getattr(result, name)
        assert (value is not None) == (name in outputs)
        assert value is None or torch.equal(value, getattr(everything, name))


@every
def test_dtypes(method):
    task = make_task(4, shots=(3, 2, 1), queries=12, d=6, noise=0.5)
    expected = method(task.features, task.labels)
    for dtype, tolerance in [(torch.float32, 1e-3), (torch.float16, 0.03), (torch.bfloat16, 0.2)]:
        result = method(task.features.to(dtype), task.labels)
        assert result.probs.dtype == result.weights.dtype == torch.float32
        torch.testing.assert_close(result.probs.double(), expected.probs, atol=tolerance, rtol=0)
    by_index = method(task.features.half(), task.labels, index=torch.arange(len(task.labels)))
    torch.testing.assert_close(by_index.probs, method(task.features.half(), task.labels).probs)


@every
def test_probabilities_and_predictions_belong_together(method):
    task = make_task(8, shots=(2, 1, 3), queries=30, d=6, noise=1.5)
    result = method(task.features, task.labels)
    torch.testing.assert_close(result.probs.sum(dim=1), torch.ones(len(task.labels), dtype=torch.float64))
    assert torch.equal(result.probs.argmax(dim=1), result.predictions)
    assert task.accuracy(result.predictions) > 0.4  # a third by chance


@pytest.mark.parametrize("name", ["laplacian_shot", "pt_map"])
def test_support_samples_keep_their_label_where_queries_are_assigned_together(name):
    task = make_task(8, shots=(2, 1, 3), queries=30, d=6, noise=3.0)
    result = METHODS[name](task.features, task.labels)
    support = task.labels >= 0
    assert torch.equal(result.predictions[support], task.labels[support])
    assert (result.probs[support].max(dim=1).values == 1).all()


def test_pieces_are_of_one_kind_and_bounded(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2000)
    tasks = [task for seed in range(20) for task in ragged(seed) if task.features.shape[1] == 5]
    batch = make_batch(*task_lists(tasks))
    kinds = [float(t % 2) for t in range(len(tasks))]
    seen = []
    for members, kind in pieces.split(batch, kinds):
        sizes = [batch.sizes[t] for t in members]
        assert len(members) == 1 or len(members) * max(sizes) * 5 * 8 <= 2000
        assert len({batch.counts[t] for t in members}) == 1
        assert {kinds[t] for t in members} == {kind}
        seen += members.tolist()
    assert sorted(seen) == list(range(len(tasks)))


def test_laplacian_shot_stops_a_task_at_its_third_update_at_the_earliest():
    tasks = [make_task(t, shots=(2, 1, 3), queries=9, d=6, noise=0.8) for t in range(3)]
    assert baselines.laplacian_shot(*task_lists(tasks), tol=10.0).iterations.tolist() == [3, 3, 3]
    assert baselines.laplacian_shot(*task_lists(tasks), tol=0.0, iterations=7).iterations.tolist() == [
        7,
        7,
        7,
    ]


# Promises ----------------------------------------------------------------------------------------------


@every
def test_inputs_are_not_changed(method):
    tasks = [make_task(t, shots=(2, 1, 3), queries=9, d=6) for t in range(3)]
    z, labels = map(torch.stack, task_lists(tasks))
    before = z.clone(), labels.clone()
    for features, index in [(z, None), (z.flatten(0, 1), torch.arange(45).view(3, 15))]:
        method(features, labels, index=index)
        assert torch.equal(z, before[0])
        assert torch.equal(labels, before[1])


@every
def test_no_query_gives_the_prototypes(method):
    task = make_task(0, shots=(3, 2, 4), queries=0, d=6)
    result = method(task.features, task.labels)
    if "finetune" not in str(method):  # those learn from the support alone
        transform = inspect.signature(method).parameters.get("transform")
        z, labels = transformed(transform.default if transform else "none", task)
        torch.testing.assert_close(result.weights, means(z, labels))
        assert result.iterations == 0
    assert torch.equal(result.predictions, task.labels)
    other = make_task(1, shots=(3, 2, 4), queries=8, d=6)
    pair = method(*task_lists([task, other]))
    assert_close(of_task(pair, 0), result)
    assert_close(of_task(pair, 1), method(other.features, other.labels))


@every
def test_one_class_has_probability_1(method):
    task = make_task(0, shots=(3,), queries=5, d=6)
    result = method(task.features, task.labels)
    assert torch.equal(result.probs, torch.ones_like(result.probs))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_vectors_and_duplicates(method, dtype):
    task = make_task(0, shots=(3, 2, 4), queries=12, d=6, dtype=dtype)
    z = task.features.clone()
    z[task.labels == 0] = 0  # a class of zero vectors
    z[(task.labels == -1).nonzero()[:5, 0]] = z[task.labels == 1][0]
    result = method(z, task.labels)
    assert result.probs.isfinite().all()
    assert result.weights.isfinite().all()
    all_zero = method(torch.zeros_like(z), task.labels)
    assert all_zero.probs.isfinite().all()


@every
def test_detaches_and_works_in_any_mode(method):
    task = make_task(0, shots=(3, 2, 4), queries=12, d=6)
    expected = method(task.features, task.labels)
    result = method(task.features.clone().requires_grad_(), task.labels)
    assert not result.probs.requires_grad
    assert not result.weights.requires_grad
    with torch.inference_mode():
        assert torch.equal(method(task.features.clone(), task.labels).probs, expected.probs)
    with torch.device("meta"):
        assert torch.equal(method(task.features, task.labels).probs, expected.probs)
        torch.testing.assert_close(method(*task_lists([task, task])).probs[1], expected.probs)


@every
def test_equal_on_repetition_and_close_with_more_threads(method, set_threads):
    tasks = [make_task(t, shots=(3, 2, 4), queries=12, d=6, noise=1.0) for t in range(20)]
    expected = method(*task_lists(tasks))
    assert all(map(torch.equal, method(*task_lists(tasks)).probs, expected.probs))
    set_threads(2)
    for probs, before in zip(method(*task_lists(tasks)).probs, expected.probs, strict=True):
        torch.testing.assert_close(probs, before)


@every
def test_modes_reach_the_threads_of_the_pieces(method, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    tasks = [make_task(t, shots=(3, 2, 4), queries=12, d=6) for t in range(3)]
    expected = method(*task_lists(tasks))
    with torch.inference_mode():
        result = method(*task_lists(tasks))
    assert all(map(torch.equal, result.probs, expected.probs))
    z = [task.features.clone().requires_grad_() for task in tasks]
    assert not any(probs.requires_grad for probs in method(z, [task.labels for task in tasks]).probs)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_item_runs_once_with_one_thread_and_the_threads_are_given_back(threads, set_threads):
    set_threads(threads)
    seen: list[tuple[int, int]] = []
    for_each(lambda item: seen.append((item, torch.get_num_threads())), range(50), torch.device("cpu"))
    assert sorted(seen) == [(item, 1) for item in range(50)]
    assert torch.get_num_threads() == threads
    seen.clear()
    for_each(lambda item: seen.append((item, torch.get_num_threads())), [7], torch.device("cpu"))
    assert seen == [(7, threads)]  # a single item is left all threads


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_through_and_the_threads_are_given_back(error, set_threads):
    set_threads(2)

    def run(item: int) -> None:
        if item == 3:
            raise error

    with pytest.raises(error):
        for_each(run, range(100), torch.device("cpu"))
    assert torch.get_num_threads() == 2


# What is refused ---------------------------------------------------------------------------------------

TASK_REFUSALS = [refusal for refusal in REFUSALS if set(refusal[1]) <= {"index", "num_classes", "outputs"}]


@every
@pytest.mark.parametrize(("arguments", "options", "error", "message"), TASK_REFUSALS)
def test_refuses_what_the_solvers_refuse_in_the_same_words(method, arguments, options, error, message):
    with pytest.raises(error) as expected:
        tim_ext.adm(*arguments, **options)
    with pytest.raises(error, match=re.escape(message)) as caught:
        method(*arguments, **options)
    assert str(caught.value) == str(expected.value)


@every
def test_refuses_the_first_wrong_task_of_a_ragged_batch(method):
    good, small = make_task(0, shots=(2, 2), d=3), make_task(1, shots=(1, 1), queries=4, d=3)
    wrong = small.features.clone()
    wrong[3, 1] = NAN
    z = [good.features, good.features, wrong, small.features]
    labels = [good.labels, good.labels.clone(), small.labels, small.labels.clone()]
    with pytest.raises(
        ValueError, match="features: expected finite values, got NaN or Inf at sample 3 in task 2"
    ):
        method(z, labels)
    labels[1][:] = -1
    with pytest.raises(
        ValueError, match=re.escape("expected support samples (labels >= 0), got none in task 1")
    ):
        method(z, labels)


X, Y = torch.eye(4), torch.tensor([0, 1, -1, -1])
OWN_REFUSALS = [
    ("temperature", 0.0, ValueError, "temperature: expected a finite number > 0, got 0.0"),
    ("temperature", "hot", TypeError, "temperature: expected a finite number, got str 'hot'"),
    ("scale", -1.0, ValueError, "scale: expected a finite number >= 0, got -1.0"),
    ("lam", -1.0, ValueError, "lam: expected a finite number"),
    ("lam", None, TypeError, "lam: expected a finite number, got NoneType None"),
    ("alpha", NAN, ValueError, "alpha: expected a finite number >= 0, got nan"),
    ("marginal_weight", -1, ValueError, "marginal_weight: expected a finite number >= 0, got -1"),
    ("entropy_order", 0, ValueError, "entropy_order: expected a finite number > 0, got 0"),
    ("lr", -1e-3, ValueError, "lr: expected a finite number >= 0, got -0.001"),
    ("step", -1.0, ValueError, "step: expected a finite number >= 0, got -1.0"),
    ("tol", -1.0, ValueError, "tol: expected a finite number >= 0, got -1.0"),
    ("neighbors", 0, ValueError, "neighbors: expected an integer >= 1, got 0"),
    ("neighbors", 2.0, TypeError, "neighbors: expected an integer, got float 2.0"),
    ("iterations", -1, ValueError, "iterations: expected an integer >= 0, got -1"),
    ("iterations", True, TypeError, "iterations: expected an integer, got bool True"),
    ("rectify", 1, TypeError, "rectify: expected True or False, got int 1"),
    ("metric", "manhattan", ValueError, "metric: expected one of 'euclidean', 'cosine', got 'manhattan'"),
    ("transform", "l3", ValueError, "transform: expected 'none', 'cl2', or steps joined by '+' out of"),
    ("transform", "cl2", ValueError, "base_mean: expected the mean [d] of the base features, as transform='cl2'"),
    ("base_mean", torch.ones(5), ValueError, "base_mean: expected shape [4], one number for each feature, got [5]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "name", "value", "error", "message"),
    [
        pytest.param(method, *refusal, id=f"{method_name}-{refusal[0]}-{refusal[1]}")
        for method_name, method in METHODS.items()
        for refusal in OWN_REFUSALS
        if refusal[0] in inspect.signature(method).parameters
    ],
)
def test_refuses_hyper_parameters(method, name, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        method(X, Y, **{name: value})


def test_every_hyper_parameter_has_a_refusal():
    names = {name for method in METHODS.values() for name in inspect.signature(method).parameters}
    task = {"features", "labels", "index", "num_classes", "outputs"}
    assert names - task == {name for name, *_ in OWN_REFUSALS}


@pytest.mark.parametrize("name", [name for name in METHODS if name != "protonet"])
def test_results_that_are_not_finite_are_refused(name):
    huge = torch.cat([X, X]) * 1e30  # in float32, the square of a length overflows
    with pytest.raises(
        ValueError, match="too extreme: expected finite probabilities, got NaN or Inf in task 1"
    ):
        METHODS[name]([X, huge[:4]], [Y, Y], transform="none")
    METHODS[name]([X, huge[:4]], [Y, Y])


def test_numpy_numbers():
    expected = baselines.laplacian_shot(X, Y, lam=0.5, neighbors=1, rectify=False)
    result = baselines.laplacian_shot(
        X, Y, lam=np.float32(0.5), neighbors=np.int64(1), rectify=np.bool_(False)
    )
    assert torch.equal(result.probs, expected.probs)


def test_examples_of_the_docs():
    page = (DOCS / "baselines.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/baselines.md", "exec"), names)
    assert names["result"].predictions.shape == (100,)
    assert all(f"`{name}`" in page for name in [*METHODS, *transforms.STEPS])
    for module in ("tim_ext.transforms", "tim_ext.baselines.prototype"):
        tried = doctest.testmod(sys.modules[module])
        assert tried.attempted > 0
        assert tried.failed == 0
