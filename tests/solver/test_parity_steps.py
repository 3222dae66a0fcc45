"""The operators of single steps on every backend, against the equations of `tim_ext.reference` in float64."""

from __future__ import annotations

import pytest
import torch
from helpers.backends import backends
from helpers.parity import (
    check_step,
    dtypes,
    gradient_truth,
    step_case,
)

from tim_ext.solver.params import GdParams

STEP_SHAPES = range(24)


@backends
@dtypes
@pytest.mark.parametrize("number", STEP_SHAPES)
def test_steps(backend, dtype, number):
    case = step_case(number)
    s = {name: value.to(dtype) if value.is_floating_point() else value for name, value in case.items()}
    probs = case["log_probs"].exp()
    check_step(
        backend,
        lambda run: run.distance_softmax(s["features"], s["weights"], 15.0),
        (probs, case["log_probs"]),
        dtype,
    )
    check_step(
        backend,
        lambda run: run.q_update(s["log_probs"], s["labels"], 0.2, 0.9, 1.1),
        (case["assignments"],),
        dtype,
    )
    check_step(
        backend,
        lambda run: run.w_update(
            s["features"], s["weights"], probs.to(dtype), s["assignments"], s["labels"], 0.3, 0.2, 0.9
        ),
        (case["new_weights"],),
        dtype,
    )


@backends
@dtypes
@pytest.mark.parametrize("number", STEP_SHAPES)
def test_gd_gradient(backend, dtype, number):
    case = step_case(number)
    T, K, _ = case["weights"].shape
    order = (1.0, 2.0, 0.7)[number % 3]
    params = GdParams(lam=0.3, alpha=0.2, temperature=9.0, marginal_weight=1.2, entropy_order=order)
    prior = None
    if number % 2:
        shares = torch.rand(T, K, generator=torch.Generator().manual_seed(number), dtype=torch.float64) + 0.2
        prior = shares / shares.sum(dim=1, keepdim=True)
    features, weights = case["features"].to(dtype), case["weights"].to(dtype)
    options = {"lam": 0.3, "alpha": 0.2, "temperature": 9.0, "marginal_weight": 1.2, "entropy_order": order}
    check_step(
        backend,
        lambda run: run.gd_gradient(features, weights, case["labels"], **options, class_prior=prior),
        gradient_truth(case, params, prior),
        dtype,
    )


@backends
@dtypes
def test_gd_gradient_refuses_a_bad_task(backend, dtype):
    case = step_case(1)
    features, weights = case["features"].to(dtype), case["weights"].to(dtype)
    options = {"lam": 0.3, "alpha": 0.2, "temperature": 9.0, "marginal_weight": 1.2}
    features[-1, 0, 0] = torch.nan
    for run in backend.schedules(2):
        with pytest.raises(RuntimeError, match=f"task {len(features) - 1} is refused"):
            run.gd_gradient(features, weights, case["labels"], **options)


@backends
@dtypes
def test_steps_without_task_or_sample(backend, dtype):
    for T, N in [(0, 4), (2, 0)]:
        features, weights = torch.zeros(T, N, 5, dtype=dtype), torch.zeros(T, 3, 5, dtype=dtype)
        labels = torch.zeros(T, N, dtype=torch.int64)
        probs, log_probs = backend.distance_softmax(features, weights, 15.0)
        assert probs.shape == log_probs.shape == (T, N, 3)
        assert backend.q_update(log_probs, labels, 0.1, 1.0, 1.0).shape == (T, N, 3)
