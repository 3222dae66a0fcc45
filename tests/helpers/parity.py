"""A backend against `tim_ext.reference` in float64: solves, steps and tolerances."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers.backends import Backend
from helpers.make_tasks import Task
from torch import Tensor

import tim_ext
from tim_ext import reference
from tim_ext.solver.params import GdParams

DTYPES = [torch.float32, torch.float64]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SCHEDULES = 3
# Large steps with a large eps: where the gradient is 0 but for rounding, Adam must not take a full step.
STEPS = {"lr": 1e-2, "eps": 1e-2}
SOLVERS = {
    "dual": ("adm", {"form": "dual"}),
    "primal": ("adm", {"form": "primal"}),
    "auto": ("adm", {"form": "auto"}),
    "gd": ("gd", STEPS),
    "gd, order 2": ("gd", {**STEPS, "entropy_order": 2.0}),
}


def solve(backend: Backend, solver: str, *task: Any, **options: Any) -> tim_ext.Result:
    name, own = SOLVERS[solver]
    return getattr(backend, name)(*task, **{**own, **options})


def solve_truth(solver: str, *task: Any, **options: Any) -> tim_ext.Result:
    name, own = SOLVERS[solver]
    return getattr(reference, name)(*task, **{**own, **options})


def tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 2e-5


RESULTS = ("probs", "weights", "predictions", "iterations", "proportions", "marginal_weight")
TERMS = ("cross_entropy", "marginal_entropy", "conditional_entropy", "loss")


def tensors(result: tim_ext.Result) -> dict[str, list[Tensor]]:
    """Everything in a result, by name; lists of one tensor where the task is no list."""
    parts = {name: getattr(result, name) for name in RESULTS}
    if result.history is not None:
        parts |= {name: getattr(result.history, name) for name in TERMS}
    return {
        name: part if isinstance(part, list) else [part] for name, part in parts.items() if part is not None
    }


def assert_close(result: tim_ext.Result, truth: tim_ext.Result, dtype: torch.dtype) -> None:
    expected = tensors(truth)
    assert tensors(result).keys() == expected.keys()
    for name, parts in tensors(result).items():
        for part, exact in zip(parts, expected[name], strict=True):
            if exact.dtype == torch.float64:
                assert part.dtype == dtype, name
                torch.testing.assert_close(
                    part.double(),
                    exact,
                    rtol=0,
                    atol=tolerance(dtype),
                    equal_nan=True,
                    msg=lambda m, n=name: f"{n}: {m}",
                )
            else:
                assert torch.equal(part, exact), name


def task_of(result: tim_ext.Result, t: int) -> tim_ext.Result:
    """Task t of a batch."""
    parts = {name: getattr(result, name)[t] for name in RESULTS}
    history = result.history and tim_ext.History(*(getattr(result.history, name)[t] for name in TERMS))
    return tim_ext.Result(**parts, history=history)


def same_bits(one: tim_ext.Result, other: tim_ext.Result) -> bool:
    return all(
        torch.equal(a.nan_to_num(), b.nan_to_num())
        for name, parts in tensors(one).items()
        for a, b in zip(parts, tensors(other)[name], strict=True)
    )


def check(
    backend: Backend, solver: str, task: Any, truth: tim_ext.Result, dtype: torch.dtype, **options: Any
):
    """Right, and the same in all schedules."""
    first, *others = [solve(run, solver, *task, **options) for run in backend.schedules(SCHEDULES)]
    assert_close(first, truth, dtype)
    assert all(same_bits(first, other) for other in others)
    return first


def lists(tasks: list[Task], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    return [task.features.to(dtype) for task in tasks], [task.labels for task in tasks]


@cache
def step_case(number: int) -> dict[str, Tensor]:
    """T 1..3, N 1..140, K 1..20, d 1..70: one iteration of TIM-ADM, as the reference writes it."""
    generator = torch.Generator().manual_seed(number)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    T, K, d = pick(1, 3), pick(1, 20), pick(1, 70)
    N = pick(K, 140)
    features = torch.randn(T, N, d, generator=generator, dtype=torch.float64) / d**0.5
    weights = torch.randn(T, K, d, generator=generator, dtype=torch.float64) / d**0.5
    labels = torch.randint(-1, K, (T, N), generator=generator)
    labels[torch.rand(T, N, generator=generator) < 0.5] = -1
    labels[torch.rand(T, N, generator=generator) < 0.1] = -100
    labels[:, :K] = torch.arange(K)
    log_probs = torch.stack(
        [reference.log_distance_softmax(z, w, 15.0) for z, w in zip(features, weights, strict=True)]
    )
    assignments = torch.zeros_like(log_probs)
    new_weights = torch.zeros_like(weights)
    for t in range(T):
        support, query = labels[t] >= 0, labels[t] == -1
        assignments[t] = reference.one_hot_rows(labels[t], K).double()
        if query.any():
            assignments[t, query] = reference.q_update(log_probs[t, query], 0.2, 0.9, 1.1)
        share = int(support.sum()) / max(int(query.sum()), 1)
        c = 0.3 / 1.1 * support.double() + share * query.double()
        new_weights[t] = reference.w_update(features[t], weights[t], log_probs[t].exp(), assignments[t], c)
    return {
        "features": features,
        "weights": weights,
        "labels": labels,
        "log_probs": log_probs,
        "assignments": assignments,
        "new_weights": new_weights,
    }


def check_step(backend: Backend, step: Any, truth: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    first, *others = [step(run) for run in backend.schedules(SCHEDULES)]
    first, *others = [(item,) if isinstance(item, Tensor) else item for item in (first, *others)]
    atol = 1e-11 if dtype == torch.float64 else 2e-5
    for part, exact in zip(first, truth, strict=True):
        assert part.dtype == dtype
        torch.testing.assert_close(part.double(), exact, rtol=atol, atol=atol)
    for other in others:
        assert all(map(torch.equal, first, other))


def gradient_truth(case: dict[str, Tensor], params: GdParams, prior: Tensor | None) -> tuple[Tensor, ...]:
    """Loss [T], terms [T, 3] and dL/dW [T, K, d] by autograd; padding left out."""
    rows = []
    for t, w in enumerate(case["weights"]):
        w = w.clone().requires_grad_()
        used = case["labels"][t] != -100
        labels = case["labels"][t][used]
        log_p = reference.log_distance_softmax(case["features"][t][used], w, params.temperature)
        y = reference.one_hot_rows(labels, len(w)).to(w)
        terms = reference.loss_terms(
            log_p, y, labels >= 0, labels == -1, None if prior is None else prior[t], params.entropy_order
        )
        loss = reference.loss(terms, params)
        rows.append((loss.detach(), terms.detach(), *torch.autograd.grad(loss, w)))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))
