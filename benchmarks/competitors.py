"""What a user would run instead of tim_ext: plain torch batched over tasks, easyfsl and scikit-learn task by
task.

The loops take features [T, N, d] whose first `support` samples are labelled, and return predictions [T, N].
They are written with care: constant terms outside the loop, logits once per iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

LAM, ALPHA, BETA, TAU = 0.1, 0.1, 1.0, 15.0


def distance_logits(z: Tensor, W: Tensor) -> Tensor:
    """-tau/2 ||w_k - z_i||^2 without the constant of each sample, [T, N, K]."""
    return TAU * (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None])


def assignments(log_p: Tensor) -> Tensor:
    """q of the queries, [T, Q, K]."""
    power = ((1 + ALPHA / BETA) * log_p).exp()
    q = power / power.sum(1, keepdim=True) ** (1 / (1 + BETA))
    return q / q.sum(-1, keepdim=True)


# TIM-ADM ------------------------------------------------------------------------------------------


def adm_step(
    W: Tensor, z: Tensor, y_z: Tensor, y_sum: Tensor, support: int, c_s: float, c_q: float
) -> Tensor:
    """An iteration as the paper writes it: sums over support and queries apart."""
    log_p = distance_logits(z, W).log_softmax(-1)
    p, q = log_p.exp(), assignments(log_p[:, support:])
    p_s, p_q, z_s, z_q = p[:, :support], p[:, support:], z[:, :support], z[:, support:]
    from_support = y_z + p_s.sum(1)[..., None] * W - p_s.mT @ z_s
    from_query = q.mT @ z_q + p_q.sum(1)[..., None] * W - p_q.mT @ z_q
    return (c_s * from_support + c_q * from_query) / (c_s * y_sum + c_q * q.sum(1))[..., None]


@torch.no_grad()
def torch_loop(
    features: Tensor,
    labels: Tensor,
    support: int,
    iterations: int = 150,
    step: Callable[..., Tensor] = adm_step,
) -> Tensor:
    """The equations of the paper one by one."""
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)  # [T, S, K]
    c_s, c_q = LAM / (BETA + ALPHA), support / (z.shape[1] - support)
    y_z, y_sum = y.mT @ z[:, :support], y.sum(1)
    W = y_z / y_sum[..., None]  # [T, K, d]
    for _ in range(iterations):
        W = step(W, z, y_z, y_sum, support, c_s, c_q)
    return distance_logits(z, W).argmax(-1)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Under torch.compile, for the shapes it gets: the body of a loop, as a whole loop would be unrolled."""
    return torch.compile(function, dynamic=False)


def compiled_torch_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    return torch_loop(features, labels, support, iterations, compiled(adm_step))


@torch.no_grad()
def torch_regrouped_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    """All samples in one product, X = c (y or q - p): the best plain torch with explicit W."""
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)
    c_s, c_q = LAM / (BETA + ALPHA), support / (z.shape[1] - support)
    W = y.mT @ z[:, :support] / y.sum(1)[..., None]
    y_sum = c_s * y.sum(1)
    for _ in range(iterations):
        log_p = distance_logits(z, W).log_softmax(-1)
        p, q = log_p.exp(), assignments(log_p[:, support:])
        X = torch.cat([c_s * (y - p[:, :support]), c_q * (q - p[:, support:])], 1)
        B = c_s * p[:, :support].sum(1) + c_q * p[:, support:].sum(1)
        W = (X.mT @ z + B[..., None] * W) / (y_sum + c_q * q.sum(1))[..., None]
    return distance_logits(z, W).argmax(-1)


@torch.no_grad()
def torch_gram_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    """The same iterates in the Gram domain, to tell the algorithm's gain from the implementation's."""
    z = normalize(features, dim=-1)
    G = z @ z.mT
    y = one_hot(labels[:, :support]).to(z.dtype)
    c_s, c_q = LAM / (BETA + ALPHA), support / (z.shape[1] - support)
    C = torch.cat([y / y.sum(1, keepdim=True), y.new_zeros(y.shape[0], z.shape[1] - support, y.shape[2])], 1)
    y_sum = c_s * y.sum(1, keepdim=True)
    for _ in range(iterations):
        M = G @ C
        log_p = (TAU * (M - 0.5 * (C * M).sum(1, keepdim=True))).log_softmax(-1)
        p, q = log_p.exp(), assignments(log_p[:, support:])
        X = torch.cat([c_s * (y - p[:, :support]), c_q * (q - p[:, support:])], 1)
        B = c_s * p[:, :support].sum(1, keepdim=True) + c_q * p[:, support:].sum(1, keepdim=True)
        C = (X + B * C) / (y_sum + c_q * q.sum(1, keepdim=True))
    M = G @ C
    return (M - 0.5 * (C * M).sum(1, keepdim=True)).argmax(-1)


@torch.no_grad()
def nearest_prototype(features: Tensor, labels: Tensor, support: int) -> Tensor:
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)
    return distance_logits(z, y.mT @ z[:, :support] / y.sum(1)[..., None]).argmax(-1)


# TIM-GD -------------------------------------------------------------------------------------------


def gd_loss(W: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """The loss of every task, added: their gradients never meet."""
    support = y.shape[1]
    log_p = distance_logits(z, W).log_softmax(-1)
    log_q = log_p[:, support:]
    q = log_q.exp()
    cross = -(y * log_p[:, :support]).sum(-1).mean(1)
    marginal = -torch.special.xlogy(q.mean(1), q.mean(1)).sum(-1)
    conditional = -(q * log_q).sum(-1).mean(1)
    return (LAM * cross - marginal + ALPHA * conditional).sum()


def torch_gd_loop(
    features: Tensor,
    labels: Tensor,
    support: int,
    iterations: int = 1000,
    loss: Callable[..., Tensor] = gd_loss,
) -> Tensor:
    """TIM-GD with autograd and torch.optim.Adam; tasks share one optimiser, which acts per coordinate."""
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)
    W = (y.mT @ z[:, :support] / y.sum(1)[..., None]).requires_grad_()
    optimiser = torch.optim.Adam([W], lr=1e-4)
    for _ in range(iterations):
        optimiser.zero_grad()
        loss(W, z, y).backward()
        optimiser.step()
    with torch.no_grad():
        return distance_logits(z, W).argmax(-1)


def compiled_torch_gd_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 1000) -> Tensor:
    return torch_gd_loop(features, labels, support, iterations, compiled(gd_loss))


# Other libraries, one task after the other --------------------------------------------------------


def easyfsl_predictions(make: Callable[[], Any], features: Tensor, labels: Tensor, support: int) -> Tensor:
    """Of the queries, [T, Q]: a new classifier for each task, as easyfsl wants it."""
    rows = []
    for z, y in zip(features, labels, strict=True):
        classifier = make()
        classifier.process_support_set(z[:support], y[:support])
        rows.append(classifier(z[support:]).detach().argmax(dim=1))
    return torch.stack(rows)


def label_spreading_predictions(features: Tensor, labels: Tensor, support: int) -> Tensor:
    """Of the queries, [T, Q]: scikit-learn's LabelSpreading on unit vectors, -1 for unlabelled as here."""
    from sklearn.semi_supervised import LabelSpreading

    z = normalize(features, dim=-1).numpy()
    rows = [
        LabelSpreading(kernel="knn", n_neighbors=7).fit(task, y).transduction_[support:]
        for task, y in zip(z, labels.numpy(), strict=True)
    ]
    return torch.from_numpy(np.stack(rows))
