"""TIM-ADM in JAX, by the paper's equations and in the Gram domain: written for one task, mapped over tasks
and compiled by XLA, in single precision.

JAX is imported by the first call, so that those who have none can measure the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .competitors import ALPHA, BETA, LAM, TAU

MISSING = "" if find_spec("jax") else "jax is not installed: pip install 'tim_ext[bench]'"


def jax_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    """The equations of the paper, with explicit weights."""
    return run(paper, features, labels, support, iterations)


def jax_gram_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    """The algorithm of tim_ext, which touches nothing of the length of the features in an iteration."""
    return run(gram, features, labels, support, iterations)


def run(solve: Callable[..., Any], features: Tensor, labels: Tensor, support: int, iterations: int) -> Tensor:
    """Predictions [T, N] by torch's number of threads."""
    y = one_hot(labels[:, :support]).to(features.dtype)  # [T, S, K]
    with processors(torch.get_num_threads()):
        predictions = compiled(solve, iterations)(features.numpy(), y.numpy())
        return torch.from_dlpack(predictions.block_until_ready()).long()


@cache
def compiled(solve: Callable[..., Any], iterations: int) -> Callable[..., Any]:
    import jax

    def task(features: Any, y: Any) -> Any:
        return solve(features, y, iterations)

    return jax.jit(jax.vmap(task))


@contextmanager
def processors(count: int) -> Iterator[None]:
    """All threads of this process on `count` of its processors.

    XLA has one pool of threads for a process, made at its first use with a thread for each processor; flags
    and environment variables are read then alone, and a flag that is to limit the threads of a single
    operation leaves the pool as it is.
    """
    whole = os.sched_getaffinity(0)
    bind_threads(set(sorted(whole)[:count]))
    try:
        yield
    finally:
        bind_threads(whole)


def bind_threads(allowed: set[int]) -> None:
    for entry in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(entry.name), allowed)


# One task: features [N, d], of which the first S are labelled, y [S, K] -> predictions [N] -------------


def assignments(log_p: Any) -> Any:
    """q of the queries, [Q, K]."""
    import jax.numpy as jnp

    power = jnp.exp((1 + ALPHA / BETA) * log_p)
    q = power / power.sum(0) ** (1 / (1 + BETA))
    return q / q.sum(1, keepdims=True)


def unit_length(features: Any) -> Any:
    import jax.numpy as jnp

    return features / jnp.linalg.norm(features, axis=1, keepdims=True)


def coefficients(y: Any, samples: int) -> tuple[float, float]:
    """c_S, c_Q"""
    return LAM / (BETA + ALPHA), len(y) / (samples - len(y))


def paper(features: Any, y: Any, iterations: int) -> Any:
    import jax

    z, support = unit_length(features), len(y)
    c_s, c_q = coefficients(y, len(z))
    z_s, z_q, y_z, y_sum = z[:support], z[support:], y.T @ z[:support], y.sum(0)

    def logits(W: Any) -> Any:
        return TAU * (z @ W.T - 0.5 * (W * W).sum(1))  # [N, K]

    def step(_: int, W: Any) -> Any:
        log_p = jax.nn.log_softmax(logits(W))
        p, q = jax.numpy.exp(log_p), assignments(log_p[support:])
        p_s, p_q = p[:support], p[support:]
        from_support = y_z + p_s.sum(0)[:, None] * W - p_s.T @ z_s
        from_query = q.T @ z_q + p_q.sum(0)[:, None] * W - p_q.T @ z_q
        return (c_s * from_support + c_q * from_query) / (c_s * y_sum + c_q * q.sum(0))[:, None]

    return logits(jax.lax.fori_loop(0, iterations, step, y_z / y_sum[:, None])).argmax(1)


def gram(features: Any, y: Any, iterations: int) -> Any:
    """W = C^T Z"""
    import jax
    import jax.numpy as jnp

    z, support = unit_length(features), len(y)
    c_s, c_q = coefficients(y, len(z))
    G, y_sum = z @ z.T, c_s * y.sum(0)

    def logits(C: Any) -> Any:
        M = G @ C
        return TAU * (M - 0.5 * (C * M).sum(0))  # [N, K]

    def step(_: int, C: Any) -> Any:
        log_p = jax.nn.log_softmax(logits(C))
        p, q = jnp.exp(log_p), assignments(log_p[support:])
        X = jnp.concatenate([c_s * (y - p[:support]), c_q * (q - p[support:])])
        B = c_s * p[:support].sum(0) + c_q * p[support:].sum(0)
        return (X + B * C) / (y_sum + c_q * q.sum(0))

    C = jnp.concatenate([y / y.sum(0), jnp.zeros((len(z) - support, y.shape[1]), y.dtype)])
    return logits(jax.lax.fori_loop(0, iterations, step, C)).argmax(1)
