"""The solvers: check, one operator call, result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _native
from .batch import check_status, make_batch, make_result
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
    """Labels the query samples of one or many few-shot tasks with TIM-ADM.

    Args:
        features: one task [N, d], a batch [T, N, d], or a list of [N_t, d]; tensors or arrays of float32 or
            float64 (half types are computed in float32). With `index`, a pool [M, d].
        labels: integers of the same leading shape: the class (>= 0) of a support sample, -1 for a query,
            -100 for padding, which is ignored.
        index: rows of the pool, [N], [T, N] or a list of [N_t]: many tasks share one copy of the features.
        num_classes: K; by default the largest label + 1 (of the whole batch, or of each task of a list).
            Every class needs a support sample.
        normalize: scale features to unit length (a zero vector stays zero).
        lam: weight of the cross entropy on the support samples.
        alpha: weight of the conditional entropy of the queries; 0 leaves it out.
        beta: weight of the penalty that ties the assignments q to the probabilities p.
        temperature: tau of p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2).
        marginal_weight: weight m of the marginal entropy of the queries; 0 leaves it out.
        iterations: number of updates; 0 gives the prototypes.
        tol: stop a task when no probability moved by more than this in an iteration; 0 runs them all.
        solver: "dual" (Gram domain, fast for N small against d), "primal", or "auto" by cost.
        history: also return the terms of the loss at every iteration.
        outputs: which of "probs", "predictions", "weights" to return; the others are None and cost no memory.

    Returns:
        Result. A task's result does not depend on the other tasks of the batch or on the number of threads.

    Example:
        >>> import torch, tim_ext
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.adm(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """
    params = AdmParams(lam, alpha, beta, temperature, marginal_weight, iterations, tol, solver)
    check_outputs(outputs)
    batch = make_batch(features, labels, index, num_classes)
    _native.require(batch.features.device)
    sizes, counts = batch.sizes, batch.counts
    *flat, status = torch.ops.tim_ext.adm_solve(
        batch.features,
        batch.rows,
        batch.labels,
        batch.offsets,
        batch.classes,
        lam=params.lam,
        alpha=params.alpha,
        beta=params.beta,
        temperature=params.temperature,
        marginal_weight=params.marginal_weight,
        iterations=params.iterations,
        tol=params.tol,
        normalize=bool(normalize),
        solver=params.solver,
        probs_size=sum(map(int.__mul__, sizes, counts)) if "probs" in outputs else 0,
        weights_rows=sum(counts) if "weights" in outputs else 0,
        history=bool(history),
    )
    check_status(batch, status)
    return make_result(batch, params, outputs, *flat)
