"""TIM in plain torch, written to be read: every line is an equation.

Same signatures, same checks and same results as `tim_ext.adm` and `tim_ext.gd`, one task after the other, on
any device and without the native library. In float64 it is the truth of the tests.

Symbols: S support, Q query, z [N, d] features, w [K, d] weights, p [N, K] probabilities, y one-hot labels on
S, q assignments on Q, m the marginal weight. Probabilities are kept as logarithms: nothing underflows and no
epsilon is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .solver.batch import make_result, refuse
from .solver.class_vectors import batch_of
from .solver.inputs import PADDING, QUERY
from .solver.params import (
    ADM,
    AUTO,
    CLASS_VECTOR_WEIGHT,
    DECIDED_AFTER,
    GD,
    OUTPUTS,
    ROBUST,
    UNDECIDED_MARGINAL,
    AdmParams,
    GdParams,
    TimParams,
    check_form_with_weights,
    check_outputs,
)
from .solver.refusals import find_problem
from .solver.renames import renamed
from .solver.result import Result
from .solver.roots import with_roots
from .solver.steps import StepControl

Params = TypeVar("Params", bound=TimParams)
# p [N, K], w [K, d], iterations run, loss terms [iterations + 1, 3], marginal weight
Solution = tuple[Tensor, Tensor, int, Tensor, float]


@renamed(solver="form")
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
    marginal_weight: float | str = ADM.marginal_weight,
    class_prior: Any = None,
    weights: Any = None,
    class_vectors: Any = None,
    class_vector_weight: int = CLASS_VECTOR_WEIGHT,
    smoothing: float | str = ADM.smoothing,
    relaxation: float | str = ADM.relaxation,
    iterations: int = ADM.iterations,
    tol: float = ADM.tol,
    form: str = ADM.form,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """As `tim_ext.adm`; `form` is checked but changes nothing: the weights are always explicit here."""
    return _solve(solve_adm, ADM, locals())


def robust(features: Any, labels: Any, **options: Any) -> Result:
    """As `tim_ext.robust`, with the same arguments."""
    defaults = {name: parameter.default for name, parameter in signature(adm).parameters.items()}
    given = {**defaults, **vars(ROBUST), "features": features, "labels": labels}
    for name, value in options.items():
        if name not in given:
            raise TypeError(f"robust() got an unexpected keyword argument {name!r}")
        given[name] = value
    return _solve(solve_adm, ROBUST, given, roots=True)


def gd(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = GD.lam,
    alpha: float = GD.alpha,
    temperature: float = GD.temperature,
    marginal_weight: float = GD.marginal_weight,
    entropy_order: float = GD.entropy_order,
    class_prior: Any = None,
    weights: Any = None,
    class_vectors: Any = None,
    class_vector_weight: int = CLASS_VECTOR_WEIGHT,
    iterations: int = GD.iterations,
    lr: float = GD.lr,
    betas: tuple[float, float] = GD.betas,
    eps: float = GD.eps,
    tol: float = GD.tol,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """As `tim_ext.gd`, with the gradient from autograd and the steps from torch.optim.Adam."""
    return _solve(solve_gd, GD, locals())


def _solve(
    solve: Callable[[Tensor, Tensor, int, Tensor | None, Tensor | None, Params], Solution],
    defaults: Params,
    given: dict[str, Any],  # the arguments of `adm` or `gd`, by name
    roots: bool = False,
) -> Result:
    params = defaults.given(given)
    check_form_with_weights(params, given["weights"])
    outputs = check_outputs(given["outputs"])
    batch = batch_of(given)
    if roots:
        batch = with_roots(batch)
    tasks = list(batch.tasks())
    starts = batch.first_weights()
    for t, (rows, labels, count) in enumerate(tasks):
        code, position, value = find_problem(batch.features, rows, labels, count, starts[t])
        if code:
            refuse(batch, t, code, position, value)

    dtype = torch.float64 if batch.features.dtype == torch.float64 else torch.float32
    probs, predictions, weights, counts, terms, proportions, marginals = [], [], [], [], [], [], []
    for (rows, labels, count), prior, first in zip(tasks, batch.priors(), starts, strict=True):
        used = labels != PADDING
        z = batch.features[rows[used]].to(dtype)  # [N, d]
        if given["normalize"]:
            z = unit_length(z)
        prior = None if prior is None else prior.to(z)
        p, w, ran, task_terms, m = solve(z, labels[used], count, prior, first, params)
        probs.append(p.new_zeros(len(used), count).index_put_((used,), p).flatten())
        predictions.append(torch.full_like(labels, PADDING).index_put_((used,), p.argmax(dim=1)))
        weights.append(w)
        counts.append(ran)
        terms.append(task_terms)
        proportions.append(phat(p, labels[used] == QUERY))
        marginals.append(m)
    history_terms = torch.stack(terms) if given["history"] else probs[0].new_empty(len(tasks), 0, 3)
    ran_all = torch.tensor(counts, device=batch.labels.device)
    return make_result(
        batch,
        params,
        outputs,
        probs=torch.cat(probs),
        predictions=torch.cat(predictions),
        weights=torch.cat(weights),
        iterations=ran_all,
        history=history_terms,
        proportions=torch.cat(proportions),
        marginal_weights=probs[0].new_tensor(marginals),
    )


# One task without padding -------------------------------------------------------------------------


def solve_adm(
    z: Tensor, labels: Tensor, num_classes: int, prior: Tensor | None, first: Tensor | None, params: AdmParams
) -> Solution:
    support, query = labels >= 0, labels == QUERY
    c = z.new_zeros(len(z))  # [N]
    c[support] = params.lam / (params.beta + params.alpha)  # cS = lam / (beta + alpha)
    c[query] = int(support.sum()) / max(int(query.sum()), 1)  # cQ = |S| / |Q|
    a = one_hot_rows(labels, num_classes).to(z)  # [N, K]  assignments: y_ik on S, q_ik on Q
    terms = z.new_full((params.iterations + 1, 3), torch.nan)
    shots = int(support.sum()) / num_classes
    decides = params.marginal_weight == AUTO
    m = UNDECIDED_MARGINAL if decides else float(params.marginal_weight)

    z = smooth(z, num_classes, smoothing_reach(params.smoothing, int(support.sum()), len(z), num_classes))
    w = prototypes(z, a) if first is None else first
    steps = StepControl(params.iterations, len(z), decides) if params.relaxation == AUTO else None
    before = torch.zeros_like(w)  # the residual of the point before
    log_p = log_distance_softmax(z, w, params.temperature)
    terms[0] = loss_terms(log_p, a, support, query, prior)

    ran = 0
    while ran < params.iterations and query.any():
        if decides and ran in (0, DECIDED_AFTER):
            m = decided_marginal_weight(phat(log_p.exp(), query), prior, shots)
            m = m if ran else min(m, UNDECIDED_MARGINAL)
        a[query] = q_update(log_p[query], alpha=params.alpha, beta=params.beta, m=m, prior=prior)
        residual = w_update(z, w, log_p.exp(), a, c) - w  # F(W) - W
        if steps is None:
            w = w + float(params.relaxation) * residual
        else:
            factor, refused = steps.move(inner(residual, residual), inner(before, residual))
            before = before if refused else residual
            w = w + factor * before
        ran += 1
        old_log_p, log_p = log_p, log_distance_softmax(z, w, params.temperature)
        terms[ran] = loss_terms(log_p, a, support, query, prior)
        if stops(log_p, old_log_p, params.tol) and not (decides and ran <= DECIDED_AFTER):
            break
    return log_p.exp(), w, ran, terms, m


@torch.inference_mode(False)  # here a gradient is wanted, whatever the caller's mode
@torch.enable_grad()
def solve_gd(
    z: Tensor, labels: Tensor, num_classes: int, prior: Tensor | None, first: Tensor | None, params: GdParams
) -> Solution:
    z = z.clone()  # autograd takes no tensor made in inference mode
    support, query = labels >= 0, labels == QUERY
    y = one_hot_rows(labels, num_classes).to(z)  # [N, K]
    terms = z.new_full((params.iterations + 1, 3), torch.nan)

    w = (prototypes(z, y) if first is None else first.clone()).requires_grad_()
    adam = torch.optim.Adam([w], lr=params.lr, betas=params.betas, eps=params.eps)
    log_p = log_distance_softmax(z, w, params.temperature)
    now = loss_terms(log_p, y, support, query, prior, params.entropy_order)
    terms[0] = now.detach()

    ran = 0
    while ran < params.iterations and query.any():
        (w.grad,) = torch.autograd.grad(loss(now, params), w)  # dL/dW
        with torch.device("cpu"):  # for its step counter
            adam.step()  # W(t) from W(t - 1)
        ran += 1
        old_log_p, log_p = log_p, log_distance_softmax(z, w, params.temperature)
        now = loss_terms(log_p, y, support, query, prior, params.entropy_order)
        terms[ran] = now.detach()
        if stops(log_p, old_log_p, params.tol):
            break
    return log_p.detach().exp(), w.detach(), ran, terms, float(params.marginal_weight)


# The equations ------------------------------------------------------------------------------------


def unit_length(z: Tensor) -> Tensor:
    """z_i / ||z_i||; a zero vector stays zero. Scaled by max |z_ij| first, so that no square overflows."""
    largest = z.detach().abs().amax(dim=1, keepdim=True)
    z = z / torch.where(largest > 0, largest, 1)
    length = z.norm(dim=1, keepdim=True)
    return z / torch.where(length > 0, length, 1)


def smooth(z: Tensor, num_classes: int, reach: float) -> Tensor:
    """z_i <- ||z_i|| y_i / ||y_i||,  y = (I - r S)^-1 z: every sample, and what its neighbours have in common

    S = D^-1/2 A D^-1/2, D_i = sum_j a_ij, over the nearest neighbours of each sample.
    """
    if reach == 0:
        return z
    a = neighbour_graph(z, neighbour_count(len(z), num_classes))
    d = a.sum(dim=1).clamp(min=1e-9).rsqrt()  # of a sample without neighbours: anything, as its a_ij are 0
    s = d[:, None] * a * d
    y = torch.linalg.solve(torch.eye(len(z)).to(z) - reach * s, z)
    length: Tensor = z.norm(dim=1, keepdim=True)
    return length * unit_length(y)


def smoothing_reach(smoothing: float | str, support: int, samples: int, num_classes: int) -> float:
    """r; "auto": 0.7 s^-0.2 with s support samples per class; with n > 100 samples per class in all longer,
    1 - r = (1 - 0.7 s^-0.2) (100 / n)^1/2, but at most 0.9
    """
    if smoothing != AUTO:
        return float(smoothing)
    reach: float = 0.7 * (support / num_classes) ** -0.2
    longer = 1 - (1 - reach) * math.sqrt(100 / max(samples / num_classes, 100))
    return max(reach, min(longer, 0.9))


def neighbour_count(samples: int, num_classes: int) -> int:
    """k = N / 2K, rounded, 3 to 10; all others of a task that has fewer"""
    return min(max(3, min(10, (samples + num_classes) // (2 * num_classes))), samples - 1)


def neighbour_graph(z: Tensor, nearest: int) -> Tensor:
    """a_ij = (b_ij + b_ji) / 2,  b_ij = max(0, cos(z_i - mean, z_j - mean))^3 to the nearest, 0 to the others

    Of equally near ones those that come first.
    """
    x = z - z.mean(dim=0)
    length = x.norm(dim=1).clamp(min=torch.finfo(z.dtype).tiny)
    cos = x @ x.T / length / length[:, None]  # [N, N]
    order = cos.fill_diagonal_(-torch.inf).sort(dim=1, descending=True, stable=True)
    near, cos = order.indices[:, :nearest], order.values[:, :nearest]
    b = torch.zeros(len(z), len(z)).to(z).scatter_(1, near, cos.clamp(min=0) ** 3)
    return (b + b.T) / 2


def phat(p: Tensor, query: Tensor) -> Tensor:
    """phat_k = mean over Q of p_ik; 0 without queries: [K]"""
    return p[query].sum(dim=0) / max(int(query.sum()), 1)


def decided_marginal_weight(proportions: Tensor, prior: Tensor | None, shots: float) -> float:
    """m = max(0.005, min(1, 0.05 s^-1/2 / KL(phat || prior))^2),  s support samples per class

    The marginal term is kept as far as the pool does not contradict it.
    """
    expected = torch.full_like(proportions, 1 / len(proportions)) if prior is None else prior
    divergence = float(torch.special.xlogy(proportions, proportions / expected).sum())
    equal = 0.05 * shots**-0.5  # that still passes for no contradiction
    ratio: float = equal / max(divergence, equal)
    return max(0.005, ratio**2)


def one_hot_rows(labels: Tensor, num_classes: int) -> Tensor:
    """y_ik on S, 0 on Q: [N, K]"""
    return one_hot(labels.clamp(min=0), num_classes) * (labels >= 0)[:, None]


def prototypes(z: Tensor, y: Tensor) -> Tensor:
    """w_k(0) = sum_S y_ik z_i / sum_S y_ik"""
    return y.T @ z / y.sum(dim=0)[:, None]


def log_distance_softmax(z: Tensor, w: Tensor, temperature: float) -> Tensor:
    """log p_ik, p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2)

    As differences, not as z_i . w_k - ||w_k||^2 / 2: what all samples share would cost float32 its digits.
    """
    distance = torch.cdist(z, w, compute_mode="donot_use_mm_for_euclid_dist")  # [N, K]
    return (-temperature / 2 * distance.square()).log_softmax(dim=1)


def stops(log_p: Tensor, old_log_p: Tensor, tol: float) -> bool:
    """max over i, k of |p_ik(t) - p_ik(t-1)| <= tol"""
    return tol > 0 and bool((log_p.exp() - old_log_p.exp()).abs().max() <= tol)


def q_update(log_p: Tensor, alpha: float, beta: float, m: float, prior: Tensor | None = None) -> Tensor:
    """q_ik proportional over k to p_ik^e (prior_k / sum over Q of p_ik^e)^(m/(m + beta)),  e = 1 + alpha/beta

    With qhat_k = mean over Q of q_ik, q minimises

        m sum_k qhat_k log(qhat_k / prior_k) - alpha mean_Q sum_k q_ik log p_ik + beta mean_Q KL(q_i || p_i)

    whose derivative in q_ik is 0, up to a number n_i per sample that makes q_i sum to 1, where

        q_ik = n_i p_ik^e (qhat_k / prior_k)^(-m/beta).

    Its mean over Q, with every n_i = n as the paper takes them, is solved for qhat:

        (qhat_k / prior_k)^((m + beta)/beta) = n mean_Q p_ik^e / prior_k
        q_ik = n_i p_ik^e (n mean_Q p_ik^e / prior_k)^(-m/(m + beta)).

    A constant prior cancels, which leaves the update of the paper.
    """
    log_power = (1 + alpha / beta) * log_p  # [Q, K]
    log_total = log_power.logsumexp(dim=0)  # [K]
    log_prior = 0 if prior is None else prior.log()
    return (log_power + m / (m + beta) * (log_prior - log_total)).softmax(dim=1)


def w_update(z: Tensor, w: Tensor, p: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """w_k <- [ cS * sum_S (y_ik z_i + p_ik (w_k - z_i)) + cQ * sum_Q (q_ik z_i + p_ik (w_k - z_i)) ]
            / [ cS * sum_S y_ik + cQ * sum_Q q_ik ]
    With c_i = cS or cQ and a_ik = y_ik or q_ik, as a step:
        w_k <- w_k + sum_i c_i (a_ik - p_ik) (z_i - w_k) / sum_i c_i a_ik
    """
    x = c[:, None] * (a - p)  # [N, K]
    step = torch.stack([x_k @ (z - w_k) for x_k, w_k in zip(x.T, w, strict=True)])  # [K, d]
    below = (c @ a)[:, None]  # [K, 1]
    # only lam = 0 can leave a class without any mass: its weights then stay
    return torch.where(below > 0, w + step / below, w)


def inner(a: Tensor, b: Tensor) -> float:
    """<A, B> = sum_k (a_k - mean_j a_j) . (b_k - mean_j b_j): what all classes share moves no probability"""
    return float(((a - a.mean(dim=0)) * (b - b.mean(dim=0))).sum())


def loss(terms: Tensor, params: GdParams) -> Tensor:
    """L = lam * CE - m * M + alpha * H"""
    cross_entropy, marginal, conditional = terms.unbind()
    return params.lam * cross_entropy - params.marginal_weight * marginal + params.alpha * conditional


def loss_terms(
    log_p: Tensor, y: Tensor, support: Tensor, query: Tensor, prior: Tensor | None = None, order: float = 1.0
) -> Tensor:
    """CE(S), M(phat) and H(Y|X on Q) with entropies of order a; those of no query are 0.

    M = -sum_k phat_k log_a(phat_k / (K prior_k)): the entropy of phat for the uniform prior, and
    log K - KL(phat || prior) in general (a = 1).
    """
    cross_entropy = -(y * log_p)[support].sum(dim=1).mean()  # mean over S of -sum_k y_ik log p_ik
    if not query.any():
        return torch.stack([cross_entropy, torch.zeros_like(cross_entropy), torch.zeros_like(cross_entropy)])
    log_p = log_p[query]
    ratio = torch.ones_like(log_p[0]) if prior is None else len(prior) * prior  # K prior_k
    log_phat = log_p.logsumexp(dim=0) - math.log(len(log_p))  # phat_k = mean over Q of p_ik
    marginal = -(ratio * x_log(log_phat - ratio.log(), order)).sum()
    conditional = -x_log(log_p, order).sum(dim=1).mean()  # mean over Q of -sum_k p_ik log_a p_ik
    return torch.stack([cross_entropy, marginal, conditional])


def x_log(log_x: Tensor, order: float) -> Tensor:
    """x log_a(x) from log x, where log_a(x) = (x^(a-1) - 1) / (a - 1), which is log x at a = 1.

    As x^min(a, 1) (x^|a-1| - 1) / |a-1|, neither factor overflows where x is 0 to machine precision.
    """
    if order == 1:
        return log_x.exp() * log_x
    distance = abs(order - 1)
    return (min(order, 1.0) * log_x).exp() * torch.expm1(distance * log_x) / distance
