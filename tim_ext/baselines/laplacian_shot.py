"""LaplacianShot: soft assignments of the queries, smoothed over their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..solver.params import OUTPUTS, check_count, check_flag, check_number
from ..solver.result import Result
from .bd_cspn import SCALE, rectified_prototypes
from .operators import Source
from .pieces import PIECE_BYTES, Piece, Solution, first, prototypes, solve_tasks, squared_distances, take


def laplacian_shot(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    lam: float = 0.7,
    neighbors: int = 2,
    rectify: bool = True,
    scale: float = SCALE,
    iterations: int = 20,
    tol: float = 1e-6,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """LaplacianShot (Ziko et al. 2020): nearest prototype, with neighbouring queries drawn to the same class.

    q_ik <- softmax_k(-||w_k - z_i||^2 + lam * sum of q_jk over the neighbours j of i), first without that sum

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`.
        lam: weight of the neighbours.
        neighbors: how many of the other queries, those nearest to it, draw a query to their class.
        rectify: prototypes of BD-CSPN; False: the means of the support.
        scale: of the rectification, as in `bd_cspn`.
        iterations: number of updates of q, at most.
        tol: stop a task, from its third update on, when its energy changes by no more than this share of it.

    Returns:
        Result; its weights are the w_k, the probabilities of queries are q, and those of a support sample its
        label.
    """
    lam, scale, tol = check_number("lam", lam), check_number("scale", scale), check_number("tol", tol)
    neighbors = check_count("neighbors", neighbors, at_least=1)
    iterations = check_count("iterations", iterations, at_least=0)
    rectify = check_flag("rectify", rectify)

    def solve(piece: Piece) -> Solution:
        y = piece.one_hot
        w = rectified_prototypes(piece, scale) if rectify else prototypes(piece.z, y)
        places, exists = first(piece.query)  # [B, Q]
        z = take(piece.z, places)
        near, weight = nearest(z, exists, neighbors)
        q, ran = smooth(squared_distances(z, w), near, lam * weight, exists, iterations, tol)
        probs = y.mT.contiguous().masked_scatter_(piece.query[..., None], q.mT[exists])
        return Solution(probs.mT, w, ran)

    def operator(source: Source, count: int) -> tuple[Solution, Tensor]:
        settings = rectify, scale, neighbors, lam, iterations, tol
        probs, w, finite, ran = source.call("laplacian_shot", count, *settings)
        return Solution(probs, w, ran), finite

    task = features, labels, index, num_classes
    return solve_tasks(solve, task, transform, base_mean, outputs, operator=operator)


def nearest(z: Tensor, exists: Tensor, neighbors: int) -> tuple[Tensor, Tensor]:
    """The queries nearest to each query, itself not counted: [B, n, Q], and 1 or, where there is none, 0."""
    total, size, _ = z.shape
    block = max(1, PIECE_BYTES // (total * max(size, 1) * z.element_size()))
    indices, found = [], []
    for begin in range(0, max(size, 1), block):
        distances = squared_distances(z, z[:, begin : begin + block])  # [B, block, Q]
        distances.masked_fill_(~exists[:, None], torch.inf)
        distances.diagonal(begin, dim1=1, dim2=2).fill_(torch.inf)
        least = distances.topk(min(neighbors, size), dim=2, largest=False)
        indices.append(least.indices)
        found.append(least.values.isfinite().to(z))
    return torch.cat(indices, dim=1).mT, torch.cat(found, dim=1).mT


def smooth(
    unary: Tensor,  # [B, K, Q]
    near: Tensor,  # [B, n, Q]
    weight: Tensor,  # [B, n, Q]
    exists: Tensor,  # [B, Q]
    iterations: int,
    tol: float,
) -> tuple[Tensor, Tensor]:
    """q [B, K, Q] and the number of updates [B]. A task stops when its energy hardly changes:

    E(q) = sum_ki q_ki (log q_ki + unary_ki - pull_ki),  pull_ki = sum of weight * q_kj over neighbours j of i
    """

    total, count, _ = unary.shape
    places = near.flatten(1)[:, None].expand(-1, count, -1)  # [B, K, n Q]

    def pull(q: Tensor) -> Tensor:
        return (q.gather(2, places).view(total, count, *near.shape[1:]) * weight[:, None]).sum(dim=2)

    q = (-unary).softmax(dim=1)
    pulled = pull(q)
    energy = unary.new_full((total,), torch.inf)
    moving, ran = exists.any(dim=1), torch.zeros(total, dtype=torch.int64, device=near.device)
    for t in range(iterations):
        log_q = (pulled - unary).log_softmax(dim=1)
        q = torch.where(moving[:, None, None], log_q.exp(), q)
        pulled = pull(q)
        ran += moving
        before = energy
        energy = ((q * (log_q + unary - pulled)).sum(dim=1) * exists).sum(dim=1)
        if t > 1:
            moving &= (energy - before).abs() > tol * before.abs()
            if not moving.any():
                break
    return q, ran
