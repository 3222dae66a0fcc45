"""The step operators on the CPU: on strided and half inputs, in batches and on threads, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tim_ext  # noqa: F401  (registers the operators)
from tim_ext import reference

ops: Any = torch.ops.tim_ext
HYPER = 0.3, 0.2, 0.9  # lam, alpha, beta
TAU, M = 15.0, 1.1


def some_labels(generator: torch.Generator, T: int, N: int, K: int) -> Tensor:
    labels = torch.randint(-1, K, (T, N), generator=generator)
    labels[torch.rand(T, N, generator=generator) < 0.5] = -1
    labels[torch.rand(T, N, generator=generator) < 0.1] = -100
    labels[:, : min(N, K)] = torch.arange(min(N, K))
    return labels


def steps(features: Tensor, weights: Tensor, labels: Tensor) -> list[Tensor]:
    probs, log_probs = ops.distance_softmax(features, weights, TAU)
    q = ops.q_update(log_probs, labels, *HYPER[1:], M)
    return [probs, log_probs, q, ops.w_update(features, weights, probs, q, labels, *HYPER)]


def truth(features: Tensor, weights: Tensor, labels: Tensor) -> list[Tensor]:
    """Of one task, in float64."""
    z, w = features.double(), weights.double()
    log_p = reference.log_distance_softmax(z, w, TAU)
    support, query = labels >= 0, labels == -1
    q = reference.one_hot_rows(labels, len(w)).double()
    if query.any():
        q[query] = reference.q_update(log_p[query], *HYPER[1:], M)
    share = int(support.sum()) / max(int(query.sum()), 1)
    c = HYPER[0] / (HYPER[1] + HYPER[2]) * support.double() + share * query.double()
    return [log_p.exp(), log_p, q, reference.w_update(z, w, log_p.exp(), q, c)]


@settings(max_examples=60, deadline=None)
@given(
    T=st.integers(1, 4),
    N=st.integers(1, 300),
    K=st.integers(1, 40),
    d=st.integers(1, 70),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    spread=st.sampled_from([0.3, 1.0, 8.0]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_stride_and_type(T, N, K, d, dtype, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    real = dtype if dtype == torch.float64 else torch.float32
    pool = (torch.randn(N, T, d + 3, generator=generator) * spread / d**0.5).to(dtype)
    features = pool[:, :, 1 : d + 1].transpose(0, 1)  # strides of [N, T, d + 3]
    weights = (torch.randn(K, d, generator=generator, dtype=torch.float64) * spread / d**0.5).to(real)
    weights = weights.expand(T, K, d)
    labels = some_labels(generator, T, N, max(1, min(N, K))).T.contiguous().T
    found = steps(features, weights, labels)
    dense = [features.to(real).contiguous(), weights.contiguous(), labels.contiguous()]
    for result, same in zip(found, steps(*dense), strict=True):
        assert result.dtype == real
        assert torch.equal(result, same)  # half types are converted exactly
    for t in range(T):
        exact = truth(features[t], weights[t], labels[t])
        rounding = (1e-13 if real == torch.float64 else 1e-5) * float(1 + exact[1].abs().max())  # of a logit
        for result, value, scale in zip(found, exact, (1, 1, 1, 1 + spread), strict=True):
            torch.testing.assert_close(result[t].double(), value, rtol=0, atol=rounding * scale)


@pytest.mark.parametrize("shape", [(7, 100, 5, 64), (3, 700, 3, 17), (2, 500, 130, 40), (1, 5000, 4, 16)])
def test_a_task_depends_on_no_batch_and_no_thread(shape):
    T, N, K, d = shape
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(T, N, d, generator=generator) / d**0.5
    weights = torch.randn(T, K, d, generator=generator) / d**0.5
    labels = some_labels(generator, T, N, K)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [steps(*(x[t : t + 1].clone() for x in (features, weights, labels))) for t in range(T)]
        torch.set_num_threads(3)
        together = steps(features, weights, labels)
    finally:
        torch.set_num_threads(threads)
    for t in range(T):
        assert all(torch.equal(a[0], b[t]) for a, b in zip(alone[t], together, strict=True))


def test_a_class_that_nobody_is_near_keeps_its_sum():
    """p^power of one class underflows: sums over it must come from logarithms."""
    log_p = torch.full((1, 300, 3), -1.0)
    log_p[..., 2] = torch.linspace(-400, -300, 300)
    log_p = log_p.double().log_softmax(-1)
    labels = torch.full((1, 300), -1)
    q = ops.q_update(log_p.float(), labels, 0.1, 1.0, 1.0)
    exact = reference.q_update(log_p[0], 0.1, 1.0, 1.0)
    torch.testing.assert_close(q[0].double(), exact, rtol=1e-3, atol=1e-6)


def test_gradients_of_half_features():
    z = torch.randn(1, 9, 5, dtype=torch.float16, requires_grad=True)
    w = torch.randn(1, 3, 5, requires_grad=True)
    ops.distance_softmax(z, w, 2.0)[1].sum().backward()
    assert z.grad is not None
    assert w.grad is not None
    exact_z, exact_w = (x.detach().double().requires_grad_() for x in (z, w))
    ops.distance_softmax(exact_z, exact_w, 2.0)[1].sum().backward()
    torch.testing.assert_close(z.grad.double(), exact_z.grad, rtol=2e-3, atol=2e-2)
    torch.testing.assert_close(w.grad.double(), exact_w.grad, rtol=1e-4, atol=1e-4)


def test_rows_must_be_dense():
    features = torch.zeros(1, 5, 8).mT.contiguous().mT
    with pytest.raises(RuntimeError, match="features must be contiguous in its last dimension"):
        ops.distance_softmax(features, torch.zeros(1, 2, 8), 1.0)
