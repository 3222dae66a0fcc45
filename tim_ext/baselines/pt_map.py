"""PT-MAP: class centres and a balanced assignment of the queries to them, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..solver.inputs import QUERY
from ..solver.params import OUTPUTS, check_count, check_number
from ..solver.result import Result
from .operators import Source
from .pieces import Piece, Solution, gram_matrix, nearness, solve_tasks

BALANCE_STEPS = 100  # at most


def pt_map(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "power+l2+task_center+l2",
    base_mean: Any = None,
    lam: float = 10.0,
    step: float = 0.2,
    iterations: int = 20,
    tol: float = 1e-6,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """PT-MAP (Hu et al. 2021): queries assigned to class centres by optimal transport, |Q|/K to each.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`. By default what the authors do to features.
        lam: the plan p_ik is proportional to exp(-lam ||w_k - z_i||^2), scaled to its row and column sums.
        step: how far a centre moves to the mean of the samples assigned to it; 1 is all the way.
        iterations: number of moves.
        tol: how far, relative to it, the number of queries of a class may be from |Q|/K.

    Returns:
        Result; its weights are the centres, of transformed features. The probabilities of queries are the
        plan, and those of a support sample its label.
    """
    lam, tol = check_number("lam", lam, positive=True), check_number("tol", tol)
    step = check_number("step", step)
    iterations = check_count("iterations", iterations, at_least=0)

    def solve(piece: Piece) -> Solution:
        z, y, query = piece.z, piece.one_hot, piece.query[:, None]  # [B, N, d], [B, K, N], [B, 1, N]
        gram = gram_matrix(z)
        c = y / y.sum(dim=2, keepdim=True)  # [B, K, N]  w_k = sum_j c_kj z_j
        g = y.new_zeros(*y.shape[:2], 1)
        for t in range(iterations + 1):
            a = lam * nearness(c, z, gram)
            g = balance(a, query.to(a), g, tol)
            p = torch.where(query, (a + g).softmax(dim=1), y)
            if t < iterations:
                c = c.lerp(p / p.sum(dim=2, keepdim=True), step)
        return Solution(p, c @ z, iterations * query.any(dim=2)[:, 0])

    def operator(source: Source, count: int) -> tuple[Solution, Tensor]:
        p, w, finite = source.call("pt_map", count, lam, step, iterations, tol)
        return Solution(p, w, iterations * (source.labels == QUERY).any(dim=1)), finite

    task = features, labels, index, num_classes
    return solve_tasks(solve, task, transform, base_mean, outputs, operator=operator)


def balance(a: Tensor, query: Tensor, g: Tensor, tol: float) -> Tensor:
    """g_k such that p_ki = softmax_k(a_ki + g_k) sums to |Q|/K over the queries: [B, K, 1]

    That p is the transport plan of Sinkhorn and Knopp: the softmax scales its rows, exp(g_k) its columns.
    g is where the convex function sum_i logsumexp_k(a_ki + g_k) - |Q|/K sum_k g_k is least. Newton's method
    gets there in about 5 steps, scaling rows and columns in turns in about 60. A step of range r is shortened
    by log(1 + r) / r, with which it converges from anywhere: the third derivative along it is at most r times
    the second. Each task stops at its own time.
    """
    share = query.sum(dim=2, keepdim=True) / a.shape[1]  # [B, 1, 1]
    eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    for _ in range(BALANCE_STEPS):
        p = (a + g).softmax(dim=1) * query
        total = p.sum(dim=2, keepdim=True)  # [B, K, 1]
        lack = share - total
        moving = lack.abs().amax(dim=1, keepdim=True) > tol * share
        if not moving.any():
            break
        # d total_k / d g_l = [k = l] total_k - sum_i p_ki p_li; the rest makes it regular
        hessian = eye * (total + 1e-6 * share) - p @ p.mT + share / a.shape[1]
        step, _ = torch.linalg.solve_ex(hessian, lack)
        length = step.amax(dim=1, keepdim=True) - step.amin(dim=1, keepdim=True)
        shorten = torch.where(length > 0, length.log1p() / length, 1)
        g = torch.where(moving, g + shorten * step, g)
    return g
