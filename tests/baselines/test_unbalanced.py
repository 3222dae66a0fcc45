"""PADDLE, protoLP and alpha-AM against loops over single tasks in float64, and where they end on odd tasks."""
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
from torch.nn.functional import cross_entropy

from tim_ext import baselines


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """[N, K], 0 for a query"""
    return (labels[:, None] == torch.arange(classes)).double()


def loop_paddle(z, labels, *, lam=75.0, iterations=100):
    w, query = means(z, labels), labels == -1
    u = one_hot(labels, len(w))
    if not query.any():
        return u, w
    pi = torch.ones(len(w), dtype=z.dtype)
    for t in range(iterations + 1):
        price = lam / query.sum() * (pi.log() + 1)
        u[query] = torch.stack([(price - (w - x).square().sum(dim=1) / 2).softmax(dim=0) for x in z[query]])
        if t < iterations:
            pi = u[query].mean(dim=0) + 1e-6
            w = torch.stack([(u[:, k, None] * z).sum(dim=0) / u[:, k].sum() for k in range(len(w))])
    return u, w


def scaled(plan: Tensor, balanced: bool) -> Tensor:
    """Rows of sum 1, and columns of equal sum if balanced."""
    plan = plan / plan.sum(dim=1, keepdim=True)
    for _ in range(20_000 if balanced else 0):
        plan = plan / plan.sum(dim=0) * len(plan) / plan.shape[1]
        plan = plan / plan.sum(dim=1, keepdim=True)
        if (plan.sum(dim=0) * plan.shape[1] / len(plan) - 1).abs().max() < 1e-12:
            break
    return plan


def loop_protolp(z, labels, *, balanced=True, lam=10.0, mix=0.6, step=0.2, iterations=20):
    w, query = means(z, labels), labels == -1
    y = one_hot(labels, len(w))
    if not query.any():
        return y, w
    for t in range(iterations + 1):
        cost = torch.stack([(w - x).square().sum(dim=1) for x in z[query]])
        u = y.clone()
        u[query] = scaled((-lam * (cost - cost.amin(dim=1, keepdim=True))).exp(), balanced)
        if t < iterations:
            of_support = u[~query]
            v = u.T @ u @ torch.diag(1 / u.sum(dim=0))
            a = torch.linalg.inv(of_support.T @ of_support + torch.eye(len(w)) - v) @ of_support.T @ y[~query]
            p = y.clone()
            p[query] = scaled((u @ a)[query], balanced)
            weight = mix * p + (1 - mix) * u
            w = w + step * (weight.T @ z / weight.sum(dim=0)[:, None] - w)
    return u, w


def graph_scores(w, z, g, b, neighbors, reach):
    """Row by row; nodes are the prototypes, then the samples."""
    nodes, count = torch.cat([w, z]), len(w)
    far = torch.cdist(nodes, nodes, compute_mode="donot_use_mm_for_euclid_dist")
    std = far.std()
    near = (-g * (far / std if std > 0 else far)).exp()
    a = torch.zeros_like(near)
    for i in range(count, len(nodes)):
        # a prototype first where it is as near as its only support sample
        order = sorted(
            set(range(len(nodes))) - {i}, key=lambda j: -near[i, j].item() * (1 + 1e-12 * (j < count))
        )
        for j in order[:neighbors]:
            a[i, j] = near[i, j]
    weight = b * (a + a.T) / 2
    degree = weight.sum(dim=1)
    scale = torch.diag(torch.where(degree > 0, degree, 1) ** -0.5)
    inverse = torch.linalg.inv(torch.eye(len(nodes)) - reach * scale @ weight @ scale)
    return inverse[count:, :count]


def tsallis(p: Tensor, order: float) -> Tensor:
    return -(p * p.log()).sum(dim=-1) if order == 1 else (1 - (p**order).sum(dim=-1)) / (order - 1)


def loop_alpha_am(z, labels, *, neighbors=None, reach=None, entropy_order=None, lam=1.0, alpha=1.0,
                  marginal_weight=1.0, temperature=15.0, iterations=1000, lr=1e-4):  # fmt: skip
    query, support = labels == -1, labels >= 0
    w = means(z, labels)
    shots = support.sum().item() / len(w)
    neighbors = neighbors or (10 if shots >= 5 else 20)
    reach = (0.9 if shots >= 5 else 0.8) if reach is None else reach
    order = entropy_order or (2 if shots < 2 else 5)
    size = len(w) + len(z)
    g, b = torch.ones(size, size, dtype=z.dtype), torch.full((size, size), reach, dtype=z.dtype)
    parameters = [parameter.requires_grad_() for parameter in (w, g, b)]
    adam = torch.optim.Adam(parameters, lr=lr)
    for _ in range(iterations if query.any() else 0):
        adam.zero_grad()
        logits = temperature * graph_scores(w, z, g, b, neighbors, reach)
        p = logits[query].softmax(dim=1)
        loss = lam * cross_entropy(logits[support], labels[support]) + alpha * tsallis(p, order).mean()
        (loss - marginal_weight * tsallis(p.mean(dim=0), order)).backward()
        adam.step()
    with torch.no_grad():
        return (temperature * graph_scores(w, z, g, b, neighbors, reach)).softmax(dim=1), w.detach()


told = partial(baselines.protolp, tol=1e-12)
not_told = partial(baselines.protolp, balanced=False)
LOOPS: dict[str, Any] = {
    "paddle": (baselines.paddle, loop_paddle, {"iterations": 20}),
    # Sinkhorn's iteration takes long to converge where the plan is nearly 0 or 1
    "protolp": (told, loop_protolp, {"iterations": 3, "lam": 1.0}),
    "protolp, not told": (not_told, partial(loop_protolp, balanced=False), {}),
    "alpha_am": (baselines.alpha_am, loop_alpha_am, {"iterations": 3, "lr": 1e-3}),
    "alpha_am, few neighbours": (
        baselines.alpha_am,
        loop_alpha_am,
        {"iterations": 2, "lr": 1e-3, "neighbors": 3},
    ),
}


@pytest.mark.parametrize(("method", "loop", "options"), LOOPS.values(), ids=LOOPS)
@settings(max_examples=8)
@given(seed=seeds, transform=st.sampled_from(["l2", "min_max", "power+l2+joint_center+l2"]))
def test_equals_a_loop_over_single_tasks(method, loop, options, seed, transform):
    tasks = ragged(seed)
    result = method(*task_lists(tasks), transform=transform, **options)
    assert_solves(result, tasks, partial(loop, **options), transform)


@pytest.mark.parametrize(
    ("method", "loop", "transform", "options"),
    [
        (baselines.paddle, loop_paddle, "min_max", {}),
        (baselines.paddle, loop_paddle, "l2", {"lam": 10.0, "iterations": 7}),
        (told, loop_protolp, "power+l2+joint_center+l2", {"iterations": 5}),
        (told, loop_protolp, "l2", {"mix": 0.3, "step": 1.0, "lam": 5.0, "iterations": 5}),
        (not_told, partial(loop_protolp, balanced=False), "power+l2+joint_center+l2", {}),
        (baselines.alpha_am, loop_alpha_am, "l2", {"iterations": 8}),
        (baselines.alpha_am, loop_alpha_am, "l2", {"iterations": 6, "lr": 1e-2, "neighbors": 4, "reach": 0.5, "temperature": 5.0}),
        (baselines.alpha_am, loop_alpha_am, "none", {"iterations": 5, "entropy_order": 1.0, "lam": 0.3, "alpha": 0.5, "marginal_weight": 2.0}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shots", [(1, 1, 1, 1, 1), (3, 5, 1, 2, 4)])
def test_hyper_parameters_and_defaults_on_tasks_of_usual_size(method, loop, transform, options, shots):
    tasks = [make_task(seed, shots=shots, queries=40, d=16, noise=1.2) for seed in range(2)]
    result = method(*task_lists(tasks), transform=transform, **options)
    assert_solves(result, tasks, partial(loop, **options), transform)


def test_the_defaults_are_those_of_the_loops():
    for method, loop in (
        (baselines.paddle, loop_paddle),
        (baselines.protolp, loop_protolp),
        (baselines.alpha_am, loop_alpha_am),
    ):
        defaults = inspect.signature(method).parameters
        for name, parameter in inspect.signature(loop).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                assert defaults[name].default == parameter.default, (method.__name__, name)


ODD = pytest.mark.parametrize(
    "method",
    [baselines.paddle, baselines.protolp, not_told, partial(baselines.alpha_am, iterations=30)],
    ids=["paddle", "protolp", "protolp, not told", "alpha_am"],
)


@ODD
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.3, 7.0])
def test_constant_features_say_nothing(method, dtype, value):
    result = method(torch.full((9, 4), value, dtype=dtype), [0, 1, 2, -1, -1, -1, -1, -100, -1])
    query = result.probs[[3, 4, 5, 6, 8]]
    # alpha-AM learns its graph from the labels all the same
    torch.testing.assert_close(query, torch.full_like(query, 1 / 3), atol=0.01, rtol=0)


@ODD
def test_one_query(method):
    z = torch.tensor([[1.0, 0.0, 0.2], [0.0, 1.0, 0.1], [0.9, 0.2, 0.3]])
    result = method(z, [0, 1, -1])
    assert result.probs.isfinite().all()
    assert result.predictions[:2].tolist() == [0, 1]


def test_protolp_that_is_told_gives_every_class_its_share_and_otherwise_what_is_near():
    task = make_task(3, shots=(2, 2), queries=20, d=8, noise=0.2)
    keep = (task.labels >= 0) | (task.truth == 0) | (torch.arange(24) % 5 == 0)  # most queries are of class 0
    z, labels, truth = task.features[keep], task.labels[keep], task.truth[keep]
    query = labels == -1
    equal = told(z, labels).probs[query].sum(dim=0)
    torch.testing.assert_close(equal, torch.full_like(equal, query.sum().item() / 2))
    assert torch.equal(not_told(z, labels).predictions, truth)


def test_paddle_empties_classes_when_the_price_is_high():
    task = make_task(0, shots=(5, 5, 5, 5), queries=40, d=8, noise=1.5)
    query = task.labels == -1
    cheap, dear = (baselines.paddle(task.features, task.labels, lam=lam) for lam in (0.0, 1000.0))
    assert len(cheap.predictions[query].unique()) == 4
    assert len(dear.predictions[query].unique()) == 1
