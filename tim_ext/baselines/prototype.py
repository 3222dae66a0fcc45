"""Nearest prototype: the mean of the support features of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..solver.params import ADM, OUTPUTS, check_number
from ..solver.result import Result
from ..solver.solve import adm
from .native import run_solver
from .pieces import Piece, Solution, cosines, prototypes, solve_tasks

METRICS = ("euclidean", "cosine")


def prototype(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    metric: str = "euclidean",
    temperature: float = ADM.temperature,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """Nearest prototype: SimpleShot (Wang et al. 2019) with its transforms UN, L2N and CL2N.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform: "none" (UN), "l2" (L2N), "cl2" (CL2N: minus base_mean, then l2), or steps of
            `tim_ext.transforms` joined by "+" ("center", "l2", "power", "task_center",
            "joint_center", "min_max").
        base_mean: [d], the mean of the features of the base classes, for "cl2" and "center".
        metric: "euclidean" as in the paper, or "cosine", with prototypes scaled to unit length.
        temperature: tau of p_ik = softmax_k(-tau/2 ||w_k - z_i||^2), or softmax_k(tau cos(w_k, z_i)). It
            does not change the predictions.

    Returns:
        Result; its weights are the prototypes, of transformed features.

    Example:
        >>> import torch
        >>> from tim_ext import baselines
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> baselines.prototype(features, [0, 1, -1, -1, -1]).predictions
        tensor([0, 1, 0, 1, 0])
    """
    if metric not in METRICS:
        raise ValueError(f"metric: expected one of {', '.join(map(repr, METRICS))}, got {metric!r}")
    temperature = check_number("temperature", temperature, positive=True)
    task = features, labels, index, num_classes
    if metric == "euclidean":
        return run_solver(
            adm, task, transform, base_mean, outputs, {"temperature": temperature, "iterations": 0}
        )

    def solve(piece: Piece) -> Solution:
        w = prototypes(piece.z, piece.one_hot)
        return Solution((temperature * cosines(piece.z, w)).softmax(dim=1), w, 0)

    return solve_tasks(solve, task, transform, base_mean, outputs)


def protonet(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """Inference of prototypical networks (Snell et al. 2017): p_ik = softmax_k(-||w_k - z_i||^2).

    Features are taken as they are, as the metric that a prototypical network was trained for is theirs.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.

    Returns:
        Result; its weights are the prototypes.
    """
    # temperature 2 cancels the 1/2 of the distance softmax
    task = features, labels, index, num_classes
    return run_solver(adm, task, "none", None, outputs, {"temperature": 2.0, "iterations": 0})
