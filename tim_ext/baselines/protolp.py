"""protoLP: class centres, and labels propagated over the graph that the assignments to them make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..solver.params import OUTPUTS, check_count, check_flag, check_number
from ..solver.result import Result
from .pieces import Piece, Solution, gram_matrix, nearness, solve_tasks
from .pt_map import balance


def protolp(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "power+l2+joint_center+l2",
    base_mean: Any = None,
    balanced: bool = True,
    lam: float = 10.0,
    mix: float = 0.6,
    step: float = 0.2,
    iterations: int = 20,
    tol: float = 1e-6,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """protoLP: centres moved by assignments to them, mixed with labels propagated over those assignments.

    H. Zhu, P. Koniusz: Transductive few-shot learning with prototype-based label propagation by iterative
    graph refinement (2023).

    Limits: told that classes are equal, it is wrong where they are not; `lam` is for few classes, with a
    hundred the assignments are too flat.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`. By default what the authors do to features.
        balanced: every class has |Q|/K of the queries. False: nothing is known of the classes' sizes.
        lam: the assignments u_ik are proportional to exp(-lam ||w_k - z_i||^2).
        mix: share, 0 to 1, of the propagated labels in the move of a centre; the rest is the assignments'.
        step: how far a centre moves; 1 is all the way.
        iterations: number of moves.
        tol: of balanced assignments: as in `pt_map`.

    Returns:
        Result; its weights are the centres, of transformed features. The probabilities of queries are their
        assignments, and those of a support sample its label.
    """
    balanced = check_flag("balanced", balanced)
    lam, tol = check_number("lam", lam, positive=True), check_number("tol", tol)
    mix, step = check_number("mix", mix), check_number("step", step)
    if mix > 1:
        raise ValueError(f"mix: expected a number from 0 to 1, got {mix}")
    iterations = check_count("iterations", iterations, at_least=0)

    def solve(piece: Piece) -> Solution:
        z, y, query = piece.z, piece.one_hot, piece.query[:, None]  # [B, N, d], [B, K, N], [B, 1, N]
        gram = gram_matrix(z)

        def assign(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
            """exp(a) scaled to sums 1 over k and, if balanced, |Q|/K over the queries; y on the support"""
            g = balance(a, query.to(a), g, tol) if balanced else g
            return torch.where(query, (a + g).softmax(dim=1), y), g

        c = y / y.sum(dim=2, keepdim=True)  # [B, K, N]  w_k = sum_j c_kj z_j
        g_u = g_p = y.new_zeros(*y.shape[:2], 1)
        for t in range(iterations + 1):
            u, g_u = assign(lam * nearness(c, z, gram), g_u)
            if t < iterations:
                p, g_p = assign(propagate(u, y).log(), g_p)
                mean = torch.lerp(u, p, mix)
                c = c.lerp(mean / mean.sum(dim=2, keepdim=True), step)
        return Solution(u, c @ z, iterations * query.any(dim=2)[:, 0])

    return solve_tasks(solve, (features, labels, index, num_classes), transform, base_mean, outputs)


def propagate(u: Tensor, y: Tensor) -> Tensor:
    """P = U A [B, K, N], A = (U_S^T U_S + I - V)^-1 U_S^T Y,  V = U^T U diag(1^T U)^-1

    On the support U is Y, so U_S^T U_S = U_S^T Y = diag(shots). The columns of V sum to 1, so those of what
    is inverted sum to the shots, with a positive diagonal alone: its inverse exists and is nowhere negative.
    """
    shots = torch.diag_embed(y.sum(dim=2))  # [B, K, K]
    eye = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)
    v = u @ u.mT / u.sum(dim=2)[:, None]
    a: Tensor
    a, _ = torch.linalg.solve_ex(shots + eye - v, shots)
    return (a.mT @ u).clamp(min=torch.finfo(u.dtype).tiny)
