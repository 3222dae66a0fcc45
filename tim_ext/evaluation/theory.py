"""The quantities of the paper's propositions, as functions of tensors, and how they move over the iterations.

"MI and risk": `confusion_matrix`, `diagonal_dominant`, `risk_bound`. "ADM decreases loss": `hessian` and
`largest_eigenvalue`. Over the iterations of a solver: `convergence`, `curvature`, `risk`. docs/theory.md has
the mathematics, and where it departs from what the paper prints.

Symbols: S support, Q query, z_i features, w_k weights, p_ik = P(Yhat = k | X = x_i) probabilities, Y the true
class. Probabilities over samples are proportions among the queries of one task, so every statement below is
about that task and exact. All is computed in float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..reference import unit_length
from ..solver.inputs import INTEGERS, QUERY
from ..solver.params import ADM, check_count, check_number
from ..solver.result import Result
from ..solver.solve import adm

if TYPE_CHECKING:
    from ..tasks import Tasks

LANCZOS_TOLERANCE = 1e-9
Solver = Callable[..., Result]  # tim_ext.adm, tim_ext.gd, or a partial of them


# Mutual information and risk ----------------------------------------------------------------------


def mutual_information(probs: Tensor) -> Tensor:
    """I(X; Yhat) = H(phat) - mean over Q of H(p_i), in nats: p [.., Q, K] -> [..]"""
    probs = probs.double()
    return (_entropy(probs.mean(dim=-2)) - _entropy(probs).mean(dim=-1)) * math.log(2)


def confusion_matrix(probs: Tensor, truth: Tensor) -> Tensor:
    """P(Y = y, Yhat = k) = 1/|Q| sum over Q of 1{Y_i = y} p_ik: p [.., Q, K], truth [.., Q] -> [.., K, K]

    This is the soft classifier, which draws a class from p_i. For its hard decisions, pass one-hot `probs`.
    """
    probs, truth = _check_queries(probs, truth)
    return _indicator(truth, probs).mT @ probs / probs.shape[-2]


def diagonal_dominant(confusion: Tensor) -> Tensor:
    """P(Yhat = y, Y = y) > P(Yhat = k, Y = y) for all k != y: confusion [.., K, K] -> [..]

    The assumption of the proposition "MI and risk", for the classes y that occur among the queries.
    """
    diagonal = confusion.diagonal(dim1=-2, dim2=-1)
    absent = confusion.sum(dim=-1) == 0
    return (absent | (diagonal > _largest_beside_diagonal(confusion))).all(dim=-1)


@dataclass(frozen=True, eq=False)
class RiskBound:
    """Both sides of the proposition "MI and risk", each [..]; entropies and logarithms in bits.

    `error` <= `lemma_bound` is a theorem where `decisions_dominant`; `bound` is never the smaller bound.
    """

    error: Tensor  # P_e = P(Y != argmax_k p_ik)
    bound: Tensor  # the sum of the three terms below, the right side of the proposition
    marginal_term: Tensor  # delta(sqrt(ln 2 / 2 * KL(Yhat || Y)))
    uncertainty_term: Tensor  # delta(H(Yhat | X))
    confusion_term: Tensor  # g(epsilon),  epsilon = 1 - min over y of P(Yhat = y | Y = y)
    lemma_bound: Tensor  # 1/2 [H(Y) - I(Y; Yhat) + delta(P(Yhat != argmax))], from which the proof starts
    dominant: Tensor  # bool: the soft confusion matrix is diagonal dominant, as the proposition assumes
    decisions_dominant: Tensor  # bool: P(yhat* = y, Y = y) >= P(yhat* = y, Y = k), as its proof uses


def risk_bound(probs: Tensor, truth: Tensor) -> RiskBound:
    """The bound on the risk by mutual information, against the error: probs [.., Q, K], truth [.., Q].

    With delta(x) = H2(x) + x log(K - 1), H2 the binary entropy, and
    g(eps) = -log(1 - eps) - (K - 1) eps log eps,

        P_e <= delta(sqrt(ln 2 / 2 KL(Yhat || Y))) + delta(H(Yhat | X)) + g(eps).

    delta increases up to (K - 1)/K, where it is log K, and is held there: no entropy is larger. For a uniform
    prior, KL(Yhat || Y) = log K - H(Yhat), and the first two terms are what maximising the mutual information
    makes small.
    """
    probs, truth = _check_queries(probs, truth)
    classes = probs.shape[-1]
    if classes < 2:
        raise ValueError(f"probs: expected at least 2 classes, got shape {list(probs.shape)}")
    decisions = _indicator(probs.argmax(dim=-1), probs)
    joint, hard = confusion_matrix(probs, truth), confusion_matrix(decisions, truth)

    truth_share, predicted_share = joint.sum(dim=-1), joint.sum(dim=-2)  # P_Y, P_Yhat
    # KL(Yhat || Y); infinite where Yhat has a class that Y has not
    divergence = torch.xlogy(predicted_share, predicted_share / truth_share).sum(dim=-1) / math.log(2)
    marginal_term = _delta((math.log(2) / 2 * divergence).clamp(min=0).sqrt(), classes)
    uncertainty_term = _delta(_entropy(probs).mean(dim=-1), classes)

    recall = joint.diagonal(dim1=-2, dim2=-1) / truth_share  # P(Yhat = y | Y = y); NaN for an absent class
    epsilon = (1 - recall.nan_to_num(nan=1.0).amin(dim=-1)).clamp(min=0)
    confusion_term = -(1 - epsilon).log2() - (classes - 1) * torch.xlogy(epsilon, epsilon) / math.log(2)

    # H(Y) - I(Y; Yhat) = H(Y | Yhat) = H(Y, Yhat) - H(Yhat)
    equivocation = _entropy(joint.flatten(-2)) - _entropy(predicted_share)
    doubt = 1 - probs.amax(dim=-1).mean(dim=-1)  # P(Yhat != argmax)
    return RiskBound(
        error=1 - hard.diagonal(dim1=-2, dim2=-1).sum(dim=-1),
        bound=marginal_term + uncertainty_term + confusion_term,
        marginal_term=marginal_term,
        uncertainty_term=uncertainty_term,
        confusion_term=confusion_term,
        lemma_bound=(equivocation + _delta(doubt, classes)) / 2,
        dominant=diagonal_dominant(joint),
        decisions_dominant=(hard.diagonal(dim1=-2, dim2=-1) >= _largest_beside_diagonal(hard.mT)).all(dim=-1),
    )


def _delta(x: Tensor, classes: int) -> Tensor:
    """H2(x) + x log2(K - 1), constant from its maximum on"""
    x = x.clamp(max=(classes - 1) / classes)
    return _entropy(torch.stack([x, 1 - x], dim=-1)) + x * math.log2(classes - 1)


def _entropy(probs: Tensor) -> Tensor:
    """-sum_k p_k log2 p_k, with 0 log 0 = 0"""
    return -torch.xlogy(probs, probs).sum(dim=-1) / math.log(2)


def _largest_beside_diagonal(matrix: Tensor) -> Tensor:
    """max over k != y of m_yk: [.., K, K] -> [.., K]"""
    diagonal = torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
    return matrix.masked_fill(diagonal, -math.inf).amax(dim=-1)


def _indicator(classes: Tensor, probs: Tensor) -> Tensor:
    return one_hot(classes.long(), probs.shape[-1]).to(probs)


def _check_queries(probs: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if probs.dim() < 2 or 0 in probs.shape:
        raise ValueError(f"probs: expected shape [.., Q, K], none of them 0, got {list(probs.shape)}")
    if truth.dtype not in INTEGERS:
        raise TypeError(f"truth: expected integers, got {str(truth.dtype).removeprefix('torch.')}")
    if truth.shape != probs.shape[:-1]:
        expected = list(probs.shape[:-1])
        raise ValueError(f"truth: expected shape {expected} to match probs, got {list(truth.shape)}")
    if truth.min() < 0 or truth.max() >= probs.shape[-1]:
        wrong = truth.min() if truth.min() < 0 else truth.max()
        raise ValueError(f"truth: expected classes 0 to {probs.shape[-1] - 1}, got {int(wrong)}")
    return probs.double(), truth


# The Hessians of the W-update ---------------------------------------------------------------------


def hessian(features: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """H_k = sum_i tau p_ik (1 - p_ik) (z_i - w_k)(z_i - w_k)^T - p_ik Id: [.., K, d, d]

    from features z [.., n, d] of the support or of the query samples, and weights [.., K, d]. It is the
    second derivative in w_k of sum_i log sum_j exp(-1/2 ||z_i - w_j||^2), the part of the loss that the
    W-update replaces by its tangent, with z and w scaled by sqrt(tau): the paper's "we use tau = 1". Where
    H_k is negative semi-definite, the tangent is an upper bound.

    The paper prints the first term as p_ik (p_ik - 1), the opposite sign of the derivative it comes from:
    see `largest_eigenvalue`.
    """
    features, weights, scatter_weight, mass = _curvature_weights(features, weights, temperature)
    scatter = _scatter(features, weights, scatter_weight)
    return scatter - mass[..., None, None] * torch.eye(features.shape[-1]).to(scatter)


def largest_eigenvalue(
    features: Tensor, weights: Tensor, temperature: float, *, as_printed: bool = False
) -> Tensor:
    """The largest eigenvalue of each H_k of `hessian`, without forming it: [.., K]

    With V the rows sqrt(tau p_ik (1 - p_ik)) (z_i - w_k), H_k = V^T V - (sum_i p_ik) Id, and the largest
    eigenvalue of V^T V [d, d] is that of V V^T [n, n], found by Lanczos iteration.

    `as_printed` takes the matrix as the paper prints it, -V^T V - (sum_i p_ik) Id. It has no positive
    eigenvalue whatever the features are; for n < d its largest is -sum_i p_ik.
    """
    features, weights, scatter_weight, mass = _curvature_weights(features, weights, temperature)
    samples, d = features.shape[-2:]
    if as_printed and samples < d:
        return -mass
    if as_printed:
        printed: Tensor = torch.linalg.eigvalsh(-_scatter(features, weights, scatter_weight))
        return printed[..., -1] - mass

    root = scatter_weight.sqrt()  # [.., K, n]
    gram = features @ features.mT  # [.., n, n]
    product = weights @ features.mT  # [.., K, n]  w_k . z_i
    square = weights.square().sum(dim=-1, keepdim=True)  # [.., K, 1]

    def multiply(x: Tensor) -> Tensor:
        """V V^T x, with (z_i - w_k) . (z_j - w_k) = z_i . z_j - w_k . z_i - w_k . z_j + ||w_k||^2"""
        x = root * x
        total, shift = x.sum(dim=-1, keepdim=True), (product * x).sum(dim=-1, keepdim=True)
        return root * (x @ gram - product * total - shift + square * total)

    return _lanczos(multiply, root) - mass


def _scatter(features: Tensor, weights: Tensor, scatter_weight: Tensor) -> Tensor:
    """sum_i c_ik (z_i - w_k)(z_i - w_k)^T: [.., K, d, d]"""
    difference = features.unsqueeze(-3) - weights.unsqueeze(-2)  # [.., K, n, d]
    return difference.mT @ (scatter_weight.unsqueeze(-1) * difference)


def _lanczos(multiply: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The largest eigenvalue of positive semi-definite matrices [.., n, n], given by their products.

    Lanczos iteration with full orthogonalisation, from a fixed random vector. It ends where the residual,
    which bounds the error, is below LANCZOS_TOLERANCE of the eigenvalue, and at the latest after n steps.
    """
    n = like.shape[-1]
    x = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=like.dtype).to(like.device)
    x = (x / x.norm()).expand_as(like)
    basis = like.new_empty(*like.shape[:-1], n, n)  # rows: the orthonormal vectors so far
    largest = like.new_zeros(like.shape[:-1])
    diagonal, beside = [], []  # of the tridiagonal matrix of the products of basis vectors
    for step in range(n):
        basis[..., step, :] = x
        done = basis[..., : step + 1, :]
        y = multiply(x)
        diagonal.append((x * y).sum(dim=-1))
        for _ in range(2):  # once leaves rounding errors that grow
            y = y - ((done @ y.unsqueeze(-1)).mT @ done).squeeze(-2)
        beside.append(y.norm(dim=-1))
        if step % 8 == 7 or step == n - 1:
            tridiagonal = torch.stack(diagonal, dim=-1).diag_embed()
            if step > 0:
                tridiagonal += torch.stack(beside[:-1], dim=-1).diag_embed(offset=-1)  # eigh reads no more
            values, vectors = torch.linalg.eigh(tridiagonal)
            largest = values[..., -1]
            residual = beside[-1] * vectors[..., -1, -1].abs()
            if (residual <= LANCZOS_TOLERANCE * largest).all():
                break
        x = y / torch.where(beside[-1] > 0, beside[-1], 1).unsqueeze(-1)
    return largest


def _curvature_weights(
    features: Tensor, weights: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z, w, tau p_ik (1 - p_ik) as [.., K, n], and sum_i p_ik as [.., K]; in float64"""
    if features.dim() < 2 or weights.dim() != features.dim() or 0 in features.shape:
        shapes = f"{list(features.shape)} and {list(weights.shape)}"
        raise ValueError(f"features, weights: expected shapes [.., n, d] and [.., K, d], got {shapes}")
    if weights.shape[:-2] != features.shape[:-2] or weights.shape[-1] != features.shape[-1]:
        expected = [*features.shape[:-2], "K", features.shape[-1]]
        shape = str(expected).replace("'", "")
        raise ValueError(f"weights: expected shape {shape} to match features, got {list(weights.shape)}")
    temperature = check_number("temperature", temperature, positive=True)
    features, weights = features.double(), weights.double()
    # softmax_k(-tau/2 ||z_i - w_k||^2), in which ||z_i||^2 is the same for all k
    logits = weights @ features.mT - weights.square().sum(dim=-1, keepdim=True) / 2  # [.., K, n]
    probs = (temperature * logits).softmax(dim=-2)
    return features, weights, temperature * probs * (1 - probs), probs.sum(dim=-1)


# Over the iterations of a solver ------------------------------------------------------------------

CURVATURE_BYTES = 1 << 26  # of the features at work in `curvature`


@dataclass(frozen=True, eq=False)
class Convergence:
    """What a solver has reached after some iterations, for T tasks."""

    iterations: Tensor  # [C]  0, 1, 2, 4, ... up to all, each about twice the one before
    seconds: Tensor  # [C]  time per task of a run of that many iterations
    accuracy: Tensor  # [T, C]  among the queries
    mutual_information: Tensor  # [T, C]  nats


@dataclass(frozen=True, eq=False)
class Curvature:
    """Largest eigenvalues of H_k over all classes k, over the iterations of TIM-ADM, for T tasks."""

    iterations: Tensor  # [C]
    support: Tensor  # [T, C]  max over k of the largest eigenvalue of H_k^S
    query: Tensor  # [T, C]
    printed_support: Tensor  # [T, C]  the same of the matrices as the paper prints them
    printed_query: Tensor  # [T, C]


def convergence(
    features: Tensor, tasks: Tasks, solver: Solver = adm, *, iterations: int = ADM.iterations
) -> Convergence:
    """Accuracy and mutual information against iterations and time: features [M, d] is the pool of the tasks.

    Every point is a run of the solver itself, from the start. The numbers of iterations double, so that all
    runs together cost no more than two of the longest. Times are measured for 0, 1 and all iterations, and
    linear in between.
    """
    run = partial(solver, features, tasks.labels, index=tasks.index, outputs=("probs",))
    steps = checkpoints(iterations)
    seconds, accuracy, information = {}, [], []
    for step in steps:
        result, seconds[step] = _timed(partial(run, iterations=step))
        batches = list(query_batches(result, tasks))
        right = [probs.argmax(dim=-1) == truth for probs, truth in batches]
        accuracy.append(torch.cat([values.double().mean(dim=-1) for values in right]))
        information.append(torch.cat([mutual_information(probs) for probs, _ in batches]))
    # every iteration costs the same, after what is done once, some of it only if there is a first iteration
    first, last = seconds.get(1, seconds[0]), seconds[iterations]
    slope = max(last - first, 0.0) / max(iterations - 1, 1)
    line = [min(seconds[0], first), *(first + slope * (step - 1) for step in steps[1:])]
    return Convergence(
        iterations=torch.tensor(steps),
        seconds=torch.tensor(line, dtype=torch.float64) / len(tasks),
        accuracy=torch.stack(accuracy, dim=1),
        mutual_information=torch.stack(information, dim=1),
    )


def _timed(run: Callable[[], Result]) -> tuple[Result, float]:
    """A result, and the seconds it takes: the least of three runs, or of those that fit into a second."""
    times: list[float] = []
    while len(times) < 3 and sum(times) < 1:
        before = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - before)
    return result, min(times)


def risk(
    features: Tensor, tasks: Tasks, solver: Solver = adm, *, iterations: int = ADM.iterations
) -> tuple[Tensor, RiskBound]:
    """`risk_bound` over the iterations of a solver: the iterations [C], and both sides, all fields [T, C]."""
    steps = checkpoints(iterations)
    bounds = []
    for step in steps:
        result = solver(features, tasks.labels, index=tasks.index, iterations=step, outputs=("probs",))
        bounds.append([risk_bound(probs, truth) for probs, truth in query_batches(result, tasks)])
    joined = {
        field.name: torch.stack([torch.cat([getattr(b, field.name) for b in step]) for step in bounds], dim=1)
        for field in fields(RiskBound)
    }
    return torch.tensor(steps), RiskBound(**joined)


def curvature(
    features: Tensor, tasks: Tasks, *, iterations: int = ADM.iterations, **hyper_parameters: Any
) -> Curvature:
    """`largest_eigenvalue` of the Hessians of support and query over the iterations of TIM-ADM.

    `hyper_parameters` are those of `tim_ext.adm`.
    """
    steps = checkpoints(iterations)
    temperature = hyper_parameters.get("temperature", ADM.temperature)
    normalize = hyper_parameters.get("normalize", True)
    solver = partial(adm, features, tasks.labels, index=tasks.index, **hyper_parameters)
    weights = [solver(iterations=step, outputs=("weights",)).weights for step in steps]
    rows = []
    for index, labels, *at_steps in _equal_batches(tasks.index, tasks.labels, *weights):
        chunk = CURVATURE_BYTES // (8 * index.shape[1] * features.shape[1]) or 1
        for first in range(0, len(index), chunk):
            part = slice(first, first + chunk)
            z = features[index[part]].double()  # [T, N, d]
            z = unit_length(z.flatten(0, 1)).view_as(z) if normalize else z
            sets = [
                z[chosen].view(len(z), -1, z.shape[-1])
                for chosen in (labels[part] >= 0, labels[part] == QUERY)
            ]
            columns = [_largest_of_classes(sets, w[part], temperature) for w in at_steps]
            rows.append(torch.stack(columns, dim=1))
    return Curvature(torch.tensor(steps), *torch.cat(rows).unbind(dim=-1))


def _largest_of_classes(sets: list[Tensor], weights: Tensor, temperature: float) -> Tensor:
    """Support, query, and both as printed: [T, 4]"""
    values = [
        largest_eigenvalue(samples, weights, temperature, as_printed=as_printed).amax(dim=-1)
        for as_printed in (False, True)
        for samples in sets
    ]
    return torch.stack(values, dim=-1)


def initial_confusion(features: Tensor, tasks: Tasks, **hyper_parameters: Any) -> tuple[Tensor, Tensor]:
    """The confusion matrix at W(0), the prototypes, with rows of sum 1: P(Yhat = k | Y = y).

    Returns its mean over the tasks with queries of class y [K, K], and of each task whether it is diagonal
    dominant [T]. The tasks have the same number of classes. `hyper_parameters` are those of `tim_ext.adm`.
    """
    arguments = {**hyper_parameters, "iterations": 0, "outputs": ("probs",)}
    result = adm(features, tasks.labels, index=tasks.index, **arguments)
    matrices = [confusion_matrix(*batch) for batch in query_batches(result, tasks)]
    if len({matrix.shape[1] for matrix in matrices}) > 1:
        raise ValueError("tasks: expected the same number of classes in all tasks, got different ones")
    joint = torch.cat(matrices)
    return (joint / joint.sum(dim=-1, keepdim=True)).nanmean(dim=0), diagonal_dominant(joint)


def checkpoints(iterations: int) -> list[int]:
    """0, 1, 2, 4, 9, ... up to `iterations`, each twice the one before or one more"""
    steps = [check_count("iterations", iterations, at_least=0)]
    while steps[-1] > 0:
        steps.append(steps[-1] // 2)
    return steps[::-1]


def query_batches(result: Result, tasks: Tasks) -> Iterator[tuple[Tensor, Tensor]]:
    """Probabilities [T, Q, K] and true classes [T, Q] of the queries of tasks of one shape."""
    for labels, truth, probs in _equal_batches(tasks.labels, tasks.truth, result.probs):
        query, total = labels == QUERY, len(labels)
        yield probs[query].view(total, -1, probs.shape[-1]), truth[query].view(total, -1)


def _equal_batches(*values: Any) -> Iterator[tuple[Tensor, ...]]:
    """Batches of equal shape: all tasks at once, or one after the other if they are lists."""
    if isinstance(values[0], Tensor):
        yield values
    else:
        for items in zip(*values, strict=True):
            yield tuple(item[None] for item in items)
