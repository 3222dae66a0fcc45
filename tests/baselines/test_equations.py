"""The baselines against loops over single tasks in float64, which follow the equations of docs/baselines.md."""
# ruff: noqa: E501

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from helpers.baseline_tasks import assert_solves, means, ragged, seeds, task_lists
from helpers.make_tasks import make_task
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from tim_ext import baselines


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
