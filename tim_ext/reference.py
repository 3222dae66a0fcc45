"""TIM-ADM in plain torch, written to be read: every step is an equation of DESIGN, section 2.

Same signature, same checks and same results as `tim_ext.adm`, one task after the other, on any device and
without the native library. In float64 it is the truth of the tests.

Symbols: S support, Q query, z [N, d] features, w [K, d] weights, p [N, K] probabilities, y one-hot labels on
S, q assignments on Q. Probabilities are kept as logarithms: nothing underflows and no epsilon is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .batch import PADDING, QUERY, find_problem, make_batch, make_result, refuse
from .params import ADM, OUTPUTS, AdmParams, check_outputs
from .result import Result


def adm(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = ADM.lam,
    alpha: float = ADM.alpha,
    beta: float = ADM.beta,
    temperature: float = ADM.temperature,
    marginal_weight: float = ADM.marginal_weight,
    iterations: int = ADM.iterations,
    tol: float = ADM.tol,
    solver: str = ADM.solver,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """As `tim_ext.adm`; `solver` is checked but changes nothing: the weights are always explicit here."""
    params = AdmParams(lam, alpha, beta, temperature, marginal_weight, iterations, tol, solver)
    check_outputs(outputs)
    batch = make_batch(features, labels, index, num_classes)
    tasks = list(batch.tasks())
    for t, (rows, task_labels, count) in enumerate(tasks):
        code, position, value = find_problem(batch.features, rows, task_labels, count)
        if code:
            refuse(batch, t, code, position, value)

    dtype = torch.float64 if batch.features.dtype == torch.float64 else torch.float32
    probs, predictions, weights, counts, terms = [], [], [], [], []
    for rows, task_labels, count in tasks:
        used = task_labels != PADDING
        z = batch.features[rows[used]].to(dtype)  # [N, d]
        if normalize:
            z = unit_length(z)
        p, w, ran, task_terms = solve(z, task_labels[used], count, params)
        probs.append(p.new_zeros(len(used), count).index_put_((used,), p).flatten())
        predictions.append(torch.full_like(task_labels, PADDING).index_put_((used,), p.argmax(dim=1)))
        weights.append(w)
        counts.append(ran)
        terms.append(task_terms)
    history_terms = torch.stack(terms) if history else probs[0].new_empty(len(tasks), 0, 3)
    ran_all = torch.tensor(counts, device=batch.labels.device)
    flat = torch.cat(probs), torch.cat(predictions), torch.cat(weights), ran_all, history_terms
    return make_result(batch, params, outputs, *flat)


def solve(
    z: Tensor, labels: Tensor, num_classes: int, params: AdmParams
) -> tuple[Tensor, Tensor, int, Tensor]:
    """One task without padding: p [N, K], w [K, d], iterations run, loss terms [iterations + 1, 3]."""
    support, query = labels >= 0, labels == QUERY
    c = z.new_zeros(len(z))  # [N]
    c[support] = params.lam / (params.beta + params.alpha)  # cS = lam / (beta + alpha)
    c[query] = int(support.sum()) / max(int(query.sum()), 1)  # cQ = |S| / |Q|
    a = z.new_zeros(len(z), num_classes)  # [N, K]  assignments: y_ik on S, q_ik on Q
    a[support] = one_hot(labels[support], num_classes).to(z)
    terms = z.new_full((params.iterations + 1, 3), torch.nan)

    # w_k(0) = sum_S y_ik z_i / sum_S y_ik
    w = a.T @ z / a.sum(dim=0)[:, None]
    log_p = log_distance_softmax(z, w, params.temperature)
    terms[0] = loss_terms(log_p, a, support, query)

    for t in range(1, params.iterations + 1 if query.any() else 1):
        a[query] = q_update(log_p[query], params.alpha, params.beta, params.marginal_weight)
        w = w_update(z, w, log_p.exp(), a, c)
        old_log_p, log_p = log_p, log_distance_softmax(z, w, params.temperature)
        terms[t] = loss_terms(log_p, a, support, query)
        # stop when max over i, k of |p_ik(t) - p_ik(t-1)| <= tol
        if params.tol > 0 and (log_p.exp() - old_log_p.exp()).abs().max() <= params.tol:
            return log_p.exp(), w, t, terms
    return log_p.exp(), w, params.iterations if query.any() else 0, terms


def unit_length(z: Tensor) -> Tensor:
    """z_i / ||z_i||; a zero vector stays zero. Scaled by max |z_ij| first, so that no square overflows."""
    largest = z.abs().amax(dim=1, keepdim=True)
    z = z / torch.where(largest > 0, largest, 1)
    length = z.norm(dim=1, keepdim=True)
    return z / torch.where(length > 0, length, 1)


def log_distance_softmax(z: Tensor, w: Tensor, temperature: float) -> Tensor:
    """log p_ik, p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2) = softmax_k(tau * (z_i . w_k - ||w_k||^2 / 2))"""
    return (temperature * (z @ w.T - w.square().sum(dim=1) / 2)).log_softmax(dim=1)


def q_update(log_p: Tensor, alpha: float, beta: float, m: float) -> Tensor:
    """q_ik proportional over k to p_ik^e / (sum over Q of p_ik^e)^(m / (m + beta)),  e = 1 + alpha/beta"""
    log_power = (1 + alpha / beta) * log_p  # [Q, K]
    log_total = log_power.logsumexp(dim=0)  # [K]
    return (log_power - m / (m + beta) * log_total).softmax(dim=1)


def w_update(z: Tensor, w: Tensor, p: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """w_k <- [ cS * sum_S (y_ik z_i + p_ik (w_k - z_i)) + cQ * sum_Q (q_ik z_i + p_ik (w_k - z_i)) ]
            / [ cS * sum_S y_ik + cQ * sum_Q q_ik ]
    With c_i = cS or cQ and a_ik = y_ik or q_ik: sum_i c_i (a_ik z_i + p_ik (w_k - z_i)) / sum_i c_i a_ik
    """
    above = (a - p).T @ (c[:, None] * z) + (c @ p)[:, None] * w  # [K, d]
    below = (c @ a)[:, None]  # [K, 1]
    # only lam = 0 can leave a class without any mass: its weights then stay
    return torch.where(below > 0, above / below, w)


def loss_terms(log_p: Tensor, a: Tensor, support: Tensor, query: Tensor) -> Tensor:
    """CE(S), H(phat), H(Y|X on Q); the entropies of no query are 0."""
    cross_entropy = -(a * log_p)[support].sum(dim=1).mean()  # mean over S of -sum_k y_ik log p_ik
    if not query.any():
        return torch.stack([cross_entropy, torch.zeros_like(cross_entropy), torch.zeros_like(cross_entropy)])
    log_p = log_p[query]
    phat = log_p.exp().mean(dim=0)  # phat_k = mean over Q of p_ik
    marginal = -torch.xlogy(phat, phat).sum()  # H(phat) = -sum_k phat_k log phat_k
    conditional = -(log_p.exp() * log_p).sum(dim=1).mean()  # H(Y|X) = mean over Q of -sum_k p_ik log p_ik
    return torch.stack([cross_entropy, marginal, conditional])
