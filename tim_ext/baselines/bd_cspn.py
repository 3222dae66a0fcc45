"""BD-CSPN: prototypes rectified by the pseudo-labelled queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from ..solver.inputs import QUERY
from ..solver.params import OUTPUTS, check_number
from ..solver.result import Result
from .operators import Source
from .pieces import Piece, Solution, cosines, divisor, solve_tasks

SCALE = 10.0


def bd_cspn(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    scale: float = SCALE,
    temperature: float = 10.0,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """BD-CSPN (Liu et al. 2020): nearest prototype by cosine, after one rectification of the prototypes.

    Queries are shifted by the difference of the means of support and queries, labelled by the nearest
    prototype, and averaged into it together with the support, weighted by exp(scale * cosine).

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`.
        scale: epsilon of the paper: how much more the samples near a prototype count.
        temperature: tau of p_ik = softmax_k(tau cos(w_k, z_i)). It does not change the predictions.

    Returns:
        Result; its weights are the rectified prototypes, of transformed features.
    """
    scale = check_number("scale", scale)
    temperature = check_number("temperature", temperature, positive=True)

    def solve(piece: Piece) -> Solution:
        w = rectified_prototypes(piece, scale)
        probs = (temperature * cosines(piece.z, w)).softmax(dim=1)
        return Solution(probs, w, piece.query.any(dim=1).long())

    def operator(source: Source, count: int) -> tuple[Solution, Tensor]:
        probs, w, finite = source.call("bd_cspn", count, scale, temperature)
        return Solution(probs, w, (source.labels == QUERY).any(dim=1).long()), finite

    task = features, labels, index, num_classes
    return solve_tasks(solve, task, transform, base_mean, outputs, operator=operator)


def rectified_prototypes(piece: Piece, scale: float) -> Tensor:
    """w_k = sum_i a_ki z'_i with a_ki = softmax of scale * cos(w_k(0), z'_i) over the samples i of class k

    z'_i is z_i on S and z_i + shift on Q, shift = mean_S z - mean_Q z; a query is of the class of its largest
    cosine. z' is not formed: what is needed of it follows from z and the shift. Returns [B, K, d]; without
    queries, the prototypes.
    """
    z, y, K = piece.z, piece.one_hot, piece.num_classes
    support, query = piece.support.to(z)[:, None], piece.query.to(z)[:, None]  # [B, 1, N]
    sets = torch.cat([y, support, query], dim=1)
    means = sets @ z / sets.sum(dim=2).clamp(min=1)[..., None]
    w, shift = means[:, :K], means[:, K : K + 1] - means[:, K + 1 :]  # [B, K, d], [B, 1, d]

    dots = torch.cat([w, shift], dim=1) @ z.mT
    dot = dots[:, :K] + query * (w @ shift.mT)  # w_k . z'_i
    square = vector_norm(z, dim=2)[:, None].square() + query * (2 * dots[:, K:] + shift @ shift.mT)
    lengths = vector_norm(w, dim=2, keepdim=True) * square.clamp_(min=0).sqrt_()  # ||w_k|| ||z'_i||
    cosine = dot / divisor(lengths)  # [B, K, N]

    nearest = cosine.mT.contiguous().argmax(dim=2)  # [B, N]
    own = (
        torch.where(piece.query, nearest, piece.labels)[:, None] == torch.arange(K, device=z.device)[:, None]
    )
    a = (scale * cosine).masked_fill_(~own, -torch.inf).softmax(dim=2)
    rectified = a @ z + (a * query).sum(dim=2, keepdim=True) * shift
    return torch.where(piece.query.any(dim=1)[:, None, None], rectified, w)
