"""The solvers: check, one operator call, result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import native
from .batch import Batch, check_status, make_result
from .class_vectors import batch_of
from .confidence import confidences
from .outliers import PARAMS, needs_outliers, solve_with_outliers
from .params import (
    ADM,
    CLASS_VECTOR_WEIGHT,
    GD,
    KNOWN_OUTPUTS,
    OUTPUTS,
    ROBUST,
    SAMPLE_PRIOR_WEIGHT,
    TimParams,
    check_flag,
    check_form_with_weights,
    check_outputs,
)
from .renames import renamed
from .result import Result
from .roots import with_roots

# of adm_solve and gd_solve, in their order
RESULTS = (
    *("probs", "predictions", "weights", "iterations", "history"),
    *("proportions", "marginal_weights", "status"),
)


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
    """Labels the query samples of one or many few-shot tasks with TIM-ADM.

    Args:
        features: one task [N, d], a batch [T, N, d], or a list of [N_t, d]; tensors or arrays of float32 or
            float64 (half types are computed in float32). With `index`, a pool [M, d].
        labels: integers of the same leading shape: the class (>= 0) of a support sample, -1 for a query,
            -100 for padding, which is ignored.
        index: rows of the pool, [N], [T, N] or a list of [N_t]: many tasks share one copy of the features.
        num_classes: K; by default the largest label + 1 (of the whole batch, or of each task of a list).
            Every class needs a support sample, or one of `class_vectors`, whose number then is the default.
        normalize: scale features to unit length (a zero vector stays zero).
        lam: weight of the cross entropy on the support samples.
        alpha: weight of the conditional entropy of the queries; 0 leaves it out.
        beta: weight of the penalty that ties the assignments q to the probabilities p.
        temperature: tau of p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2).
        marginal_weight: weight m of the marginal entropy of the queries; 0 leaves it out. "auto": each task
            decides, by how far its proportions are from equal ones (or from `class_prior`):
            m = max(0.005, min(1, 0.05 s^-1/2 / KL)^2), s support samples per class; first at the prototypes,
            with m <= 0.1, and after 25 iterations once more.
        class_prior: proportions of the classes among the queries, if known: [K] for all tasks, [T, K], or a
            list of [K_t], each > 0 and of sum 1. The marginal entropy, largest for equal proportions, becomes
            log K - KL(phat || prior). `tim_ext.reference.q_update` derives the update.
        weights: the first W, as `Result.weights` of an earlier solve: [K, d] for all tasks, [T, K, d], or a
            list of [K_t, d]; by default the prototypes. Such tasks are solved in the primal form. With `tol`
            it saves iterations: `adm(features, more_labels, weights=before.weights, tol=1e-2)`.
        class_vectors: a vector of each class from elsewhere, as the text embedding of its name by the encoder
            of the features: [K, d] for all tasks, [T, K, d], or a list of [K_t, d]. It is a labelled sample
            beside the others, or instead of them. Samples and vectors are each taken from their own centre,
            and `weights` are points there; `tim_ext.solver.class_vectors` has the equations.
        class_vector_weight: as how many labelled samples a class vector counts, where there are any.
        sample_weight: how much each query counts, >= 0: numbers of the shape of `labels` that multiply it in
            every sum over the queries. Only their ratios matter. A query of weight 0 moves no other one, and
            is labelled all the same. Smoothing, `tol` and what stands at other samples know nothing of it.
            "auto", for pools with samples of none of the classes: 1 - t `Result.outlier`^4, where t is 1, or
            less where the marginal weight asks for proportions that the pool does not have.
        sample_prior: what is known of each query's class from elsewhere, as another model's probabilities:
            numbers >= 0 of the shape of `labels` and K. Only the ratios within a row matter, and none is
            taken as less than 1e-6 of the largest; a row of zeros, or of equal numbers, says nothing. Of each
            query, -lam_0 sum_k q_ik log prior_ik enters what the iteration minimises;
            `tim_ext.reference.q_update` derives the update. `probs` are the distance softmax all the same.
        sample_prior_weight: lam_0 > 0, as it is. "auto": each task finds out how much to believe its priors,
            by those of its labelled samples (what the other model said of them, or zeros; not their labels);
            `tim_ext.solver.prior_belief` has the equations.
        smoothing: reach r of a smoothing over the graph of nearest neighbours, 0 <= r < 1; 0 leaves it out.
            "auto": 0.7 s^-0.2, longer with more than 100 samples per class. Samples keep their length, and
            `weights` are points among the smoothed samples. `tim_ext.reference.smooth` has the equations.
        relaxation: factor > 0 of every step of W; 1 is the paper's step, 0.5 half of it. "auto": each task
            chooses its steps, longer ones where that is stable and shorter ones where it is not, so that 50
            iterations do for 150; the last are guarded. `tim_ext.solver.steps.StepControl` has the rule.
        iterations: number of updates; 0 gives the prototypes, or `weights`.
        tol: stop a task when no probability moved by more than this in an iteration; 0 runs them all.
        form: "dual" (Gram domain, fast for N small against d), "primal", or "auto" by cost.
        history: also return the terms of the loss at every iteration.
        outputs: which of "probs", "predictions", "weights" to return; the others are None and cost no memory.
            Besides them, if asked for: "outlier", how much each query looks as if it were of none of the
            classes, 0 to 1, whatever the solver, and 0 for other samples, by a solve and a graph more
            (`tim_ext.solver.outliers` has the equations); and "confidence", the probability that a prediction
            is right, estimated without labels of queries in five solves of `robust` more, and of a labelled
            sample 1, or 0 where its label was not predicted (`tim_ext.solver.confidence`).

    Returns:
        Result. A task's result does not depend on the other tasks of the batch or on the number of threads.

    Example:
        >>> import torch, tim_ext
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.adm(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """
    return _solve("adm_solve", ADM, locals())


def robust(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = ROBUST.lam,
    alpha: float = ROBUST.alpha,
    beta: float = ROBUST.beta,
    temperature: float = ROBUST.temperature,
    marginal_weight: float | str = ROBUST.marginal_weight,
    class_prior: Any = None,
    weights: Any = None,
    class_vectors: Any = None,
    class_vector_weight: int = CLASS_VECTOR_WEIGHT,
    sample_weight: Any = None,
    sample_prior: Any = None,
    sample_prior_weight: float | str = SAMPLE_PRIOR_WEIGHT,
    smoothing: float | str = ROBUST.smoothing,
    relaxation: float | str = ROBUST.relaxation,
    iterations: int = ROBUST.iterations,
    tol: float = ROBUST.tol,
    form: str = ROBUST.form,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """`adm` for pools as they are, whose proportions nobody knows; all arguments are those of `adm`.

    It is `adm` with marginal_weight="auto", smoothing="auto", relaxation=0.5, lam=0.3 and iterations=100, on
    the square roots sqrt(z + 1e-6) of features that have no negative value in a task; nothing more.

    Example:
        >>> import torch, tim_ext
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.robust(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """
    return _solve("adm_solve", ROBUST, locals(), roots=True)


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
    """Labels the query samples of one or many few-shot tasks with TIM-GD: Adam on the classifier weights.

    Slower than `adm` and in the paper the more accurate of the two. Shapes, normalisation, `index`,
    `num_classes`, `tol`, `history`, `outputs` and what a result does not depend on: as in `adm`.

    Args:
        features: [N, d], [T, N, d], or a list of [N_t, d]; with `index`, a pool [M, d].
        labels: the class (>= 0) of a support sample, -1 for a query, -100 for padding.
        index: rows of the pool, [N], [T, N] or a list of [N_t].
        num_classes: K; by default the largest label + 1.
        normalize: scale features to unit length.
        lam: weight of the cross entropy on the support samples.
        alpha: weight of the conditional entropy of the queries; 0 leaves it out.
        temperature: tau of p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2).
        marginal_weight: weight m of the marginal entropy of the queries; 0 leaves it out.
        entropy_order: order a > 0 of both entropies (Tsallis, alpha-TIM): 1 is Shannon's; a > 1 asks less for
            equal proportions of the classes.
        class_prior: proportions of the classes among the queries, if known: [K] for all tasks, [T, K], or a
            list of [K_t], each > 0 and of sum 1; uniform by default.
        weights: the first W: [K, d] for all tasks, [T, K, d], or a list of [K_t, d]; by default the
            prototypes. Adam's moments start from 0 all the same.
        class_vectors, class_vector_weight: a vector of each class from elsewhere, as in `adm`.
        sample_weight: how much each query counts, as in `adm`.
        sample_prior, sample_prior_weight: what is known of each query's class, as in `adm`; the loss gains
            lam_0 times the mean over the queries of -sum_k p_ik log prior_ik.
        iterations: number of Adam steps; 0 gives the prototypes, or `weights`.
        lr, betas, eps: step size and constants of Adam, as in torch.optim.Adam.
        tol: stop a task when no probability moved by more than this in a step; 0 runs them all.
        history: also return the terms of the loss at every step.
        outputs: which of "probs", "predictions", "weights", "outlier", "confidence" to return, as in `adm`.

    Example:
        >>> import torch, tim_ext
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.gd(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """
    return _solve("gd_solve", GD, locals())


def _solve(
    operator: str,
    defaults: TimParams,
    given: dict[str, Any],  # the arguments of `adm` or `gd`, by name
    roots: bool = False,
) -> Result:
    params = defaults.given(given)
    check_form_with_weights(params, given["weights"])
    outputs = check_outputs(given["outputs"], KNOWN_OUTPUTS)
    normalize, history = check_flag("normalize", given["normalize"]), check_flag("history", given["history"])
    batch = batch_of(given)
    native.require(batch.features.device)
    if needs_outliers(outputs, given):
        again = partial(_solve, operator, defaults, roots=roots)
        return solve_with_outliers(batch, outputs, given, _weights, again)
    found = _call(operator, batch, params, outputs, roots=roots, normalize=normalize, history=history)
    status = found.pop("status")
    if not _is_captured(status):
        check_status(batch, status)
    confidence = None
    if "confidence" in outputs:
        if _is_captured(status):
            raise ValueError("outputs: expected no 'confidence' while a CUDA graph is recorded, got it")
        confidence = confidences(batch, found["predictions"], judge)
    return make_result(batch, params, outputs, **found, confidence=confidence)


def _call(
    operator: str,
    batch: Batch,
    params: TimParams,
    outputs: Sequence[str],
    *,
    roots: bool = False,
    normalize: bool = True,
    history: bool = False,
) -> dict[str, Tensor]:
    """Flat results, by the names that `make_result` has for them, and status."""
    more = batch.sample_arguments()
    if roots and batch.features.device == native.CPU:
        more["roots"] = True  # as with_roots, but task by task, in memory that a cache holds
    elif roots:
        batch = with_roots(batch)
    sizes, counts = batch.sizes, batch.counts
    found = native.call(
        operator,
        batch.features,
        batch.rows,
        batch.labels,
        batch.offsets,
        batch.classes,
        normalize=normalize,
        probs_size=sum(map(int.__mul__, sizes, counts)) if "probs" in outputs else 0,
        weights_rows=sum(counts) if "weights" in outputs else 0,
        proportions_size=sum(counts),
        history=history,
        class_prior=batch.class_prior,
        weights=batch.weights,
        **params.arguments(),
        **more,
    )
    return dict(zip(RESULTS, found, strict=True))


def judge(batch: Batch) -> tuple[Tensor, Tensor]:
    """p of every sample and the marginal weights by `robust`, for `confidences`."""
    found = _call("adm_solve", batch, ROBUST, ("probs",), roots=True)
    check_status(batch, found["status"])
    return found["probs"], found["marginal_weights"]


def _weights(batch: Batch) -> tuple[Tensor, Tensor]:
    """W [sum K_t, d] of the samples as they are, and m, by the steps of `robust`, for the outlier scores."""
    found = _call("adm_solve", batch, PARAMS, ("weights",), normalize=False)
    check_status(batch, found["status"])
    return found["weights"], found["marginal_weights"]


def _is_captured(status: Tensor) -> bool:
    """Whether this call only records a CUDA graph: there is no status yet, and no waiting for one.

    A refused task then gives NaN probabilities and predictions of -100.
    """
    return status.is_cuda and torch.cuda.is_current_stream_capturing()
