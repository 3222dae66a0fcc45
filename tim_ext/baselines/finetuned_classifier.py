"""Baseline and Baseline++: a classifier on frozen features, trained on the support samples alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from ..solver.params import ADM, GD, OUTPUTS, check_count, check_number
from ..solver.result import Result
from ..transforms import l2_normalize
from .pieces import Piece, Solution, divisor, first, prototypes, solve_tasks, take

ITERATIONS, LR = 100, 1e-3


def finetune_linear(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    temperature: float = ADM.temperature,
    iterations: int = ITERATIONS,
    lr: float = LR,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """Baseline (Chen et al. 2019): Adam on CE(S) of a linear head, p_ik = softmax_k(tau (w_k . z_i + b_k)).

    It starts as the nearest prototype: w_k the prototypes, b_k = -||w_k||^2 / 2.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`.
        temperature: tau.
        iterations: number of Adam steps, each on the whole support set.
        lr: step size.

    Returns:
        Result; its weights are the w_k, without the b_k.
    """
    return _finetune(linear_head(), **locals())


def finetune_cosine(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    temperature: float = ADM.temperature,
    iterations: int = ITERATIONS,
    lr: float = LR,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """Baseline++ (Chen et al. 2019): Adam on CE(S) of a cosine head, p_ik = softmax_k(tau cos(w_k, z_i)).

    It starts with the prototypes. Arguments: as in `finetune_linear`.

    Returns:
        Result; its weights are the w_k, of any length.
    """
    return _finetune(cosine_head(), **locals())


class Head(NamedTuple):
    """Scores s_ki of inputs x [B, N, d'] by parameters v [B, K, d']."""

    inputs: Callable[[Tensor], Tensor]  # x from the features [B, N, d]
    start: Callable[[Tensor], Tensor]  # v from the prototypes [B, K, d]
    scores: Callable[[Tensor, Tensor], Tensor]  # s(x, v): [B, K, N]
    gradient: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # sum_i g_ki ds_ki/dv_k from x, v, s, g


def linear_head() -> Head:
    """s_ki = w_k . z_i + b_k, with x_i = (z_i, 1) and v_k = (w_k, b_k)"""
    return Head(
        inputs=lambda z: torch.cat([z, torch.ones_like(z[..., :1])], dim=2),
        start=lambda w: torch.cat([w, w.square().sum(dim=2, keepdim=True) / -2], dim=2),
        scores=lambda x, v: v @ x.mT,
        gradient=lambda x, v, s, g: g @ x,
    )


def cosine_head() -> Head:
    """s_ki = u_k . x_i, with x_i = z_i / ||z_i|| and u_k = v_k / ||v_k||"""

    def length(v: Tensor) -> Tensor:
        return divisor(vector_norm(v, dim=2, keepdim=True))

    def gradient(x: Tensor, v: Tensor, s: Tensor, g: Tensor) -> Tensor:
        """sum_i g_ki (x_i - s_ki u_k) / ||v_k||"""
        g = g / length(v)
        along = (g * s).sum(dim=2, keepdim=True) / length(v)
        return torch.addcmul(g @ x, along, v, value=-1)

    return Head(l2_normalize, lambda w: w, lambda x, v: v @ x.mT / length(v), gradient)


def _finetune(
    head: Head,
    *,
    features: Any,
    labels: Any,
    index: Any,
    num_classes: int | None,
    transform: Any,
    base_mean: Any,
    temperature: float,
    iterations: int,
    lr: float,
    outputs: Sequence[str],
) -> Result:
    temperature = check_number("temperature", temperature, positive=True)
    iterations = check_count("iterations", iterations, at_least=0)
    lr = check_number("lr", lr)

    def solve(piece: Piece) -> Solution:
        z, y = piece.z, piece.one_hot
        places, exists = first(piece.support)  # [B, S]
        x = head.inputs(take(z, places))  # [B, S, d']
        target = take(y.mT, places).mT  # [B, K, S]
        scale = temperature * (exists / exists.sum(dim=1, keepdim=True))[:, None]  # tau / |S| on S: [B, 1, S]
        v = head.start(prototypes(z, y))  # [B, K, d']
        moments = torch.zeros_like(v), torch.zeros_like(v)
        for t in range(1, iterations + 1):
            s = head.scores(x, v)
            g = scale * ((temperature * s).softmax(dim=1) - target)  # dCE/ds_ki
            adam_step(t, v, head.gradient(x, v, s, g), *moments, lr)
        probs = (temperature * head.scores(head.inputs(z), v)).softmax(dim=1)
        return Solution(probs, v[..., : z.shape[2]], iterations)

    return solve_tasks(solve, (features, labels, index, num_classes), transform, base_mean, outputs)


def adam_step(t: int, w: Tensor, gradient: Tensor, m: Tensor, v: Tensor, lr: float) -> None:
    """Step t = 1, 2, .. of torch.optim.Adam, whose first use takes seconds to import what it does not need.

    w <- w - lr mhat / (sqrt(vhat) + eps),  mhat = m / (1 - beta1^t),  vhat = v / (1 - beta2^t)
    """
    beta1, beta2 = GD.betas
    m.lerp_(gradient, 1 - beta1)
    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = math.sqrt(1 - beta2**t)
    w.addcdiv_(m, v.sqrt().add_(GD.eps * root), value=-lr * root / (1 - beta1**t))
