"""What a user would write instead of tim_ext.adm and tim_ext.gd: plain torch, batched over tasks.

All take features [T, N, d] whose first `support` samples are labelled, and return predictions [T, N].
They are written with care: constant terms outside the loop, logits once per iteration.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

LAM, ALPHA, BETA, TAU = 0.1, 0.1, 1.0, 15.0


@torch.no_grad()
def torch_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    """The equations of the paper (DESIGN 2.1) one by one."""
    z = normalize(features, dim=-1)
    z_s, z_q = z[:, :support], z[:, support:]
    y = one_hot(labels[:, :support]).to(z.dtype)  # [T, S, K]
    c_s, c_q = LAM / (BETA + ALPHA), support / z_q.shape[1]
    W = y.mT @ z_s / y.sum(1)[..., None]  # [T, K, d]
    y_z, y_sum = y.mT @ z_s, y.sum(1)
    for _ in range(iterations):
        log_p = (TAU * (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None])).log_softmax(-1)
        p_s, p_q = log_p.exp().split([support, z_q.shape[1]], 1)
        power = ((1 + ALPHA / BETA) * log_p[:, support:]).exp()
        q = power / power.sum(1, keepdim=True) ** (1 / (1 + BETA))
        q = q / q.sum(-1, keepdim=True)
        from_support = y_z + p_s.sum(1)[..., None] * W - p_s.mT @ z_s
        from_query = q.mT @ z_q + p_q.sum(1)[..., None] * W - p_q.mT @ z_q
        W = (c_s * from_support + c_q * from_query) / (c_s * y_sum + c_q * q.sum(1))[..., None]
    return (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None]).argmax(-1)


@torch.no_grad()
def torch_regrouped_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 150) -> Tensor:
    """The same with all samples in one product, X = c (y or q - p): the best plain torch with explicit W."""
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)
    c_s, c_q = LAM / (BETA + ALPHA), support / (z.shape[1] - support)
    W = y.mT @ z[:, :support] / y.sum(1)[..., None]
    y_sum = c_s * y.sum(1)
    for _ in range(iterations):
        log_p = (TAU * (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None])).log_softmax(-1)
        p = log_p.exp()
        power = ((1 + ALPHA / BETA) * log_p[:, support:]).exp()
        q = power / power.sum(1, keepdim=True) ** (1 / (1 + BETA))
        q = q / q.sum(-1, keepdim=True)
        X = torch.cat([c_s * (y - p[:, :support]), c_q * (q - p[:, support:])], 1)
        B = c_s * p[:, :support].sum(1) + c_q * p[:, support:].sum(1)
        D = y_sum + c_q * q.sum(1)
        W = (X.mT @ z + B[..., None] * W) / D[..., None]
    return (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None]).argmax(-1)


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
        p = log_p.exp()
        power = ((1 + ALPHA / BETA) * log_p[:, support:]).exp()
        q = power / power.sum(1, keepdim=True) ** (1 / (1 + BETA))
        q = q / q.sum(-1, keepdim=True)
        X = torch.cat([c_s * (y - p[:, :support]), c_q * (q - p[:, support:])], 1)
        B = c_s * p[:, :support].sum(1, keepdim=True) + c_q * p[:, support:].sum(1, keepdim=True)
        C = (X + B * C) / (y_sum + c_q * q.sum(1, keepdim=True))
    M = G @ C
    return (M - 0.5 * (C * M).sum(1, keepdim=True)).argmax(-1)


compiled_torch_loop = torch.compile(torch_loop)


@torch.no_grad()
def nearest_prototype(features: Tensor, labels: Tensor, support: int) -> Tensor:
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)
    W = y.mT @ z[:, :support] / y.sum(1)[..., None]
    return (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None]).argmax(-1)


def torch_gd_loop(features: Tensor, labels: Tensor, support: int, iterations: int = 1000) -> Tensor:
    """TIM-GD with autograd and torch.optim.Adam; tasks share one optimiser, which acts per coordinate."""
    z = normalize(features, dim=-1)
    y = one_hot(labels[:, :support]).to(z.dtype)
    W = (y.mT @ z[:, :support] / y.sum(1)[..., None]).requires_grad_()
    optimiser = torch.optim.Adam([W], lr=1e-4)
    for _ in range(iterations):
        log_p = (TAU * (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None])).log_softmax(-1)
        log_q = log_p[:, support:]
        q = log_q.exp()
        cross = -(y * log_p[:, :support]).sum(-1).mean(1)
        marginal = -torch.special.xlogy(q.mean(1), q.mean(1)).sum(-1)
        conditional = -(q * log_q).sum(-1).mean(1)
        optimiser.zero_grad()
        (LAM * cross - marginal + ALPHA * conditional).sum().backward()
        optimiser.step()
    with torch.no_grad():
        return (z @ W.mT - 0.5 * (W * W).sum(-1)[:, None]).argmax(-1)
