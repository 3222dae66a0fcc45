"""PADDLE: class means and soft assignments of the queries, with a price on every class that has queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..solver.params import OUTPUTS, check_count, check_number
from ..solver.result import Result
from .pieces import Piece, Solution, gram_matrix, nearness, solve_tasks

LEAST_SHARE = 1e-6  # added to pi: a class without queries keeps a finite price


def paddle(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "min_max",
    base_mean: Any = None,
    lam: float = 75.0,
    iterations: int = 100,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """PADDLE: soft k-means whose classes share the queries as unequally as the distances allow.

    S. Martin, M. Boudiaf, E. Chouzenoux, J.-C. Pesquet, I. Ben Ayed: Towards practical few-shot query sets:
    transductive minimum description length inference (2022).

    Limits: for 5 shots or more; at 1 shot, or with few features, queries collapse to a few classes.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`. By default what the authors do to features.
        lam: |Q| times the weight of log pi_k, the share of class k of the queries, against the distances,
            which grow with the number of features: 75 is for some hundred of them.
        iterations: number of updates of pi and of the means.

    Returns:
        Result; its weights are the means, of transformed features. The probabilities of queries are their
        assignments, and those of a support sample its label.
    """
    lam = check_number("lam", lam)
    iterations = check_count("iterations", iterations, at_least=0)

    def solve(piece: Piece) -> Solution:
        y, query = piece.one_hot, piece.query[:, None]  # [B, K, N], [B, 1, N]
        z = piece.z - piece.z.mean(dim=1, keepdim=True)  # distances are the same; float32 keeps its digits
        gram = gram_matrix(z)
        total = query.sum(dim=2, keepdim=True).clamp(min=1)  # [B, 1, 1]  |Q|
        c = y / y.sum(dim=2, keepdim=True)  # [B, K, N]  w_k = sum_j c_kj z_j
        log_pi = y.new_zeros(*y.shape[:2], 1)
        for t in range(iterations + 1):
            # lam (log pi_k + 1) - ||w_k - z_i||^2 / 2, but for what is the same for all k
            a = lam / total * log_pi + nearness(c, z, gram) / 2
            u = torch.where(query, a.softmax(dim=1), y)
            if t < iterations:
                log_pi = ((u * query).sum(dim=2, keepdim=True) / total + LEAST_SHARE).log()
                c = u / u.sum(dim=2, keepdim=True)
        return Solution(u, c @ piece.z, iterations * query.any(dim=2)[:, 0])

    return solve_tasks(solve, (features, labels, index, num_classes), transform, base_mean, outputs)
