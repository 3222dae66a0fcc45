"""TIM in plain torch, written to be read: every line is an equation.

Same signatures, same checks and same results as `tim_ext.adm` and `tim_ext.gd`, one task after the other, on
any device and without the native library. In float64 it is the truth of the tests.

Symbols: S support, Q query, z [N, d] features, w [K, d] weights, p [N, K] probabilities, y one-hot labels on
S, q assignments on Q, m the marginal weight; v [N] sample weights on Q, 1 without any, and 0 on S, so that
|Q| = sum_i v_i and a mean over Q is sum_i v_i (..)_i / |Q|. Probabilities are kept as logarithms: nothing
underflows and no epsilon is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .solver.batch import Batch, Inputs, make_result, refuse
from .solver.class_vectors import batch_of
from .solver.confidence import confidences
from .solver.graph import neighbour_count, smoothing_reach
from .solver.inputs import PADDING, QUERY
from .solver.outliers import PARAMS, needs_outliers, solve_with_outliers
from .solver.params import (
    ADM,
    AUTO,
    CLASS_VECTOR_WEIGHT,
    DECIDED_AFTER,
    GD,
    KNOWN_OUTPUTS,
    OUTPUTS,
    ROBUST,
    SAMPLE_PRIOR_WEIGHT,
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
# p [N, K], w [K, d], iterations run, loss terms [iterations + 1, 3 or 4], marginal weight
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
    sample_weight: Any = None,
    sample_prior: Any = None,
    sample_prior_weight: float | str = SAMPLE_PRIOR_WEIGHT,
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
    sample_weight: Any = None,
    sample_prior: Any = None,
    sample_prior_weight: float | str = SAMPLE_PRIOR_WEIGHT,
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
    solve: Callable[[Tensor, Tensor, int, Inputs, Params], Solution],
    defaults: Params,
    given: dict[str, Any],  # the arguments of `adm` or `gd`, by name
    roots: bool = False,
) -> Result:
    params = defaults.given(given)
    check_form_with_weights(params, given["weights"])
    outputs = check_outputs(given["outputs"], KNOWN_OUTPUTS)
    batch, again = batch_of(given), partial(_solve, solve, defaults, roots=roots)
    if needs_outliers(outputs, given):
        return solve_with_outliers(batch, outputs, given, _weights, again)
    found = _solve_all(solve, with_roots(batch) if roots else batch, params, given["normalize"])
    if not given["history"]:
        found["history"] = found["history"][:, :0]
    confidence = confidences(batch, found["predictions"], judge) if "confidence" in outputs else None
    return make_result(batch, params, outputs, **found, confidence=confidence)


def _solve_all(
    solve: Callable[[Tensor, Tensor, int, Inputs, Params], Solution],
    batch: Batch,
    params: Params,
    normalize: bool,
) -> dict[str, Tensor]:
    """What `make_result` takes, by its names."""
    tasks, inputs = list(batch.tasks()), list(batch.inputs())
    for t, (rows, labels, count) in enumerate(tasks):
        code, position, value = find_problem(batch.features, rows, labels, count, inputs[t].weights)
        if code:
            refuse(batch, t, code, position, value)

    dtype = torch.float64 if batch.features.dtype == torch.float64 else torch.float32
    solved = []
    for (rows, labels, count), its in zip(tasks, inputs, strict=True):
        used = labels != PADDING
        z = batch.features[rows[used]].to(dtype)  # [N, d]
        its = its.of_samples(used, z)
        p, w, ran, terms, m = solve(unit_length(z) if normalize else z, labels[used], count, its, params)
        probs = p.new_zeros(len(used), count).index_put_((used,), p).flatten()
        predictions = torch.full_like(labels, PADDING).index_put_((used,), p.argmax(dim=1))
        shared = phat(p, its.sample_weight)
        solved.append(
            (probs, predictions, w, labels.new_tensor([ran]), terms[None], shared, p.new_tensor([m]))
        )
    names = ("probs", "predictions", "weights", "iterations", "history", "proportions", "marginal_weights")
    return {name: torch.cat(of) for name, of in zip(names, zip(*solved, strict=True), strict=True)}


def judge(batch: Batch) -> tuple[Tensor, Tensor]:
    """p of every sample and the marginal weights by `robust`, for `confidences`."""
    found = _solve_all(solve_adm, with_roots(batch), ROBUST, normalize=True)
    return found["probs"], found["marginal_weights"]


def _weights(batch: Batch) -> tuple[Tensor, Tensor]:
    """[sum K_t, d] of the samples as they are, and m, by the steps of `robust`, for the outlier scores."""
    found = _solve_all(solve_adm, batch, PARAMS, normalize=False)
    return found["weights"], found["marginal_weights"]


# One task without padding -------------------------------------------------------------------------


def solve_adm(z: Tensor, labels: Tensor, num_classes: int, its: Inputs, params: AdmParams) -> Solution:
    prior, log_prior, lam_0 = its.class_prior, its.sample_log_prior, its.sample_prior_weight
    support, query = labels >= 0, labels == QUERY
    v = its.sample_weight  # [N]
    # c_i = cS = lam / (beta + alpha) on S, cQ v_i = |S| / |Q| v_i on Q: [N]
    c = params.lam / (params.beta + params.alpha) * support.to(z) + int(support.sum()) * shares(v)
    a = one_hot_rows(labels, num_classes).to(z)  # [N, K]  assignments: y_ik on S, q_ik on Q
    terms = z.new_full((params.iterations + 1, 3 if log_prior is None else 4), torch.nan)
    shots = int(support.sum()) / num_classes
    decides = params.marginal_weight == AUTO
    m = UNDECIDED_MARGINAL if decides else float(params.marginal_weight)

    z = smooth(z, num_classes, smoothing_reach(params.smoothing, int(support.sum()), len(z), num_classes))
    w = prototypes(z, a) if its.weights is None else its.weights
    steps = StepControl(params.iterations, len(z), decides) if params.relaxation == AUTO else None
    before = torch.zeros_like(w)  # the residual of the point before
    log_p = log_distance_softmax(z, w, params.temperature)
    terms[0] = loss_terms(log_p, a, support, v, prior, log_prior=log_prior)

    ran = 0
    while ran < params.iterations and v.any():
        if decides and ran in (0, DECIDED_AFTER):
            m = decided_marginal_weight(phat(log_p.exp(), v), prior, shots)
            m = m if ran else min(m, UNDECIDED_MARGINAL)
        known = None if log_prior is None else log_prior[query]
        a[query] = q_update(log_p[query], params.alpha, params.beta, m, prior, v[query], known, lam_0)
        residual = w_update(z, w, log_p.exp(), a, c) - w  # F(W) - W
        if steps is None:
            w = w + float(params.relaxation) * residual
        else:
            factor, refused = steps.move(inner(residual, residual), inner(before, residual))
            before = before if refused else residual
            w = w + factor * before
        ran += 1
        old_log_p, log_p = log_p, log_distance_softmax(z, w, params.temperature)
        terms[ran] = loss_terms(log_p, a, support, v, prior, log_prior=log_prior)
        if stops(log_p, old_log_p, params.tol) and not (decides and ran <= DECIDED_AFTER):
            break
    return log_p.exp(), w, ran, terms, m


@torch.inference_mode(False)  # here a gradient is wanted, whatever the caller's mode
@torch.enable_grad()
def solve_gd(z: Tensor, labels: Tensor, num_classes: int, its: Inputs, params: GdParams) -> Solution:
    z = z.clone()  # autograd takes no tensor made in inference mode
    v, log_prior = its.sample_weight, its.sample_log_prior  # [N], [N, K]
    y = one_hot_rows(labels, num_classes).to(z)  # [N, K]
    terms = z.new_full((params.iterations + 1, 3 if log_prior is None else 4), torch.nan)

    w = (prototypes(z, y) if its.weights is None else its.weights.clone()).requires_grad_()
    adam = torch.optim.Adam([w], lr=params.lr, betas=params.betas, eps=params.eps)
    log_p = log_distance_softmax(z, w, params.temperature)
    now = loss_terms(log_p, y, labels >= 0, v, its.class_prior, params.entropy_order, log_prior)
    terms[0] = now.detach()

    ran = 0
    while ran < params.iterations and v.any():
        (w.grad,) = torch.autograd.grad(loss(now, params, its.sample_prior_weight), w)  # dL/dW
        with torch.device("cpu"):  # for its step counter
            adam.step()  # W(t) from W(t - 1)
        ran += 1
        old_log_p, log_p = log_p, log_distance_softmax(z, w, params.temperature)
        now = loss_terms(log_p, y, labels >= 0, v, its.class_prior, params.entropy_order, log_prior)
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


def shares(v: Tensor) -> Tensor:
    """v_i / |Q|, or 0 if nothing weighs: [N]"""
    total = v.sum()
    return v / torch.where(total > 0, total, 1)


def phat(p: Tensor, v: Tensor) -> Tensor:
    """phat_k = mean over Q of p_ik; 0 without queries: [K]"""
    return shares(v.to(p)) @ p


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


def q_update(
    log_p: Tensor,  # [Q, K]
    alpha: float,
    beta: float,
    m: float,
    prior: Tensor | None = None,  # [K]
    v: Tensor | None = None,  # [Q]
    log_prior: Tensor | None = None,  # [Q, K]
    lam_0: float = 0.0,
) -> Tensor:
    """q_ik proportional over k to r_ik (prior_k / sum over Q of v_i r_ik)^(m/(m + beta)),
    r_ik = p_ik^(1 + alpha/beta) prior_ik^(lam_0/beta)

    prior_k is the class prior, prior_ik that of a sample. With qhat_k = mean over Q of q_ik, q minimises

        m sum_k qhat_k log(qhat_k / prior_k) - alpha mean_Q sum_k q_ik log p_ik
            + beta mean_Q KL(q_i || p_i) - lam_0 mean_Q sum_k q_ik log prior_ik

    The last three are beta mean_Q sum_k q_ik log(q_ik / r_ik). The derivative in q_ik is 0, up to a number
    n_i per sample that makes q_i sum to 1, where

        q_ik = n_i r_ik (qhat_k / prior_k)^(-m/beta).

    Its mean over Q, with every n_i = n as the paper takes them, is solved for qhat:

        (qhat_k / prior_k)^((m + beta)/beta) = n mean_Q r_ik / prior_k
        q_ik = n_i r_ik (n mean_Q r_ik / prior_k)^(-m/(m + beta)).

    A constant prior cancels, which leaves the update of the paper. A factor of prior_i is part of n_i: with a
    largest prior_ik of 1, equal ones are nothing known. Not lam_0 KL(q_i || prior_i), whose other half,
    -lam_0 H(q_i), undoes alpha: the power of p_ik would be (alpha + beta)/(beta + lam_0), and beyond
    lam_0 = alpha each iteration would leave q softer than p.
    """
    known = 0 if log_prior is None else lam_0 / beta * log_prior
    log_r = (1 + alpha / beta) * log_p + known  # [Q, K]
    log_total = (log_r if v is None else log_r + v.log()[:, None]).logsumexp(dim=0)  # [K]
    log_class = 0 if prior is None else prior.log()
    return (log_r + m / (m + beta) * (log_class - log_total)).softmax(dim=1)


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


def loss(terms: Tensor, params: GdParams, lam_0: float = 0.0) -> Tensor:
    """L = lam * CE - m * M + alpha * H + lam_0 * D"""
    cross_entropy, marginal, conditional, *with_priors = terms.unbind()
    loss = params.lam * cross_entropy - params.marginal_weight * marginal + params.alpha * conditional
    return loss + lam_0 * with_priors[0] if with_priors else loss


def loss_terms(
    log_p: Tensor,
    y: Tensor,
    support: Tensor,
    v: Tensor,  # [N], or a mask of the queries
    prior: Tensor | None = None,
    order: float = 1.0,
    log_prior: Tensor | None = None,  # [N, K]
) -> Tensor:
    """CE(S), M(phat) and H(Y|X on Q) with entropies of order a; with sample priors also D. Without queries 0.

    M = -sum_k phat_k log_a(phat_k / (K prior_k)): the entropy of phat for the uniform prior, and
    log K - KL(phat || prior) in general (a = 1). D = -mean over Q of sum_k p_ik log prior_ik.
    """
    cross_entropy = -(y * log_p)[support].sum(dim=1).mean()  # mean over S of -sum_k y_ik log p_ik
    if not v.any():
        return torch.stack([cross_entropy, *cross_entropy.new_zeros(2 if log_prior is None else 3)])
    share = shares(v.to(log_p))  # [N]
    ratio = torch.ones_like(log_p[0]) if prior is None else len(prior) * prior  # K prior_k
    log_phat = (log_p + share.log()[:, None]).logsumexp(dim=0)  # phat_k = mean over Q of p_ik
    marginal = -(ratio * x_log(log_phat - ratio.log(), order)).sum()
    conditional = -share @ x_log(log_p, order).sum(dim=1)  # mean over Q of -sum_k p_ik log_a p_ik
    with_priors = [] if log_prior is None else [-share @ (log_p.exp() * log_prior).sum(dim=1)]
    return torch.stack([cross_entropy, marginal, conditional, *with_priors])


def x_log(log_x: Tensor, order: float) -> Tensor:
    """x log_a(x) from log x, where log_a(x) = (x^(a-1) - 1) / (a - 1), which is log x at a = 1.

    As x^min(a, 1) (x^|a-1| - 1) / |a-1|, neither factor overflows where x is 0 to machine precision.
    """
    if order == 1:
        return log_x.exp() * log_x
    distance = abs(order - 1)
    return (min(order, 1.0) * log_x).exp() * torch.expm1(distance * log_x) / distance
