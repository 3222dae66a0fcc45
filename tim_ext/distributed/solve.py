"""One task too large for one process: its samples lie spread over the ranks of a process group.

Every rank passes the samples it holds and gets their probabilities; the weights are the same on all of them.
This file checks what each rank passes, and that all ranks pass the same; `iterations` solves.

Without a process group the same code solves a huge task in one process: features may be a memory map, which
is read block by block and never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from ..solver.inputs import PADDING, QUERY, refuse_shape, to_features, to_integers, to_numbers
from ..solver.params import (
    ADM,
    GD,
    OUTPUTS,
    ROBUST,
    TimParams,
    check_count,
    check_flag,
    check_outputs,
)
from ..solver.refusals import LABEL_OUT_OF_RANGE, NO_SUPPORT, WEIGHTS_NOT_FINITE, refusal
from ..solver.result import Result, ShortRepr
from .iterations import AdmIterations, GdIterations, Iterations, Job
from .ranks import LostRankError, Ranks, open_ranks
from .shard import Shard

__all__ = ["Labels", "LostRankError", "adm", "classify", "gd", "robust"]

CACHE_BYTES = 1 << 30


def adm(
    features: Any,
    labels: Any,
    *,
    group: Any = None,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = ADM.lam,
    alpha: float = ADM.alpha,
    beta: float = ADM.beta,
    temperature: float = ADM.temperature,
    marginal_weight: float | str = ADM.marginal_weight,
    class_prior: Any = None,
    weights: Any = None,
    sample_weight: Any = None,
    sample_prior: Any = None,
    smoothing: float | str = ADM.smoothing,
    relaxation: float | str = ADM.relaxation,
    iterations: int = ADM.iterations,
    tol: float = ADM.tol,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
    cache_bytes: int = CACHE_BYTES,
    callback: Callable[[int], object] | None = None,
) -> Result:
    """TIM-ADM on one task whose samples are spread over the ranks of a process group.

    As `tim_ext.adm` with form="primal" on the samples of all ranks together, up to the order of sums, which
    are float64. All ranks call it with the same hyper-parameters, and if one of them must refuse, all of them
    raise the same error.

    Args:
        features: [n, d], the samples of this rank: a tensor, array or memory map of float16, bfloat16,
            float32 or float64. n may be 0, and differs from rank to rank as you like.
        labels: [n] integers: the class (>= 0) of a support sample, -1 for a query, -100 for a sample that is
            ignored. Every class needs a support sample on some rank.
        group: a torch.distributed process group; by default all ranks, or this process alone without one.
        num_classes: K; by default the largest label of all ranks + 1.
        normalize, lam, alpha, beta, temperature, marginal_weight, class_prior, relaxation, iterations, tol,
            history: as in `tim_ext.adm`.
        weights: [K, d], the first W, the same on all ranks; by default the prototypes.
        sample_weight, sample_prior: refused, unless None: only `tim_ext.adm`, in one process, has them.
        smoothing: as in `tim_ext.adm`, over the neighbours among the samples of all ranks, up to 250,000 of
            them; beyond, in one process and with approximate neighbours (faiss). It holds a copy of this
            rank's samples in memory. Weights, given or found, are then those of smoothed samples: `classify`
            is of no use.
        outputs: which of "probs" [n, K], "predictions" [n], "weights" [K, d] to return; only "weights" saves
            a pass over the samples, and `classify` gives the others block by block.
        cache_bytes: memory for log p between the two passes of an iteration. Samples that do not fit have it
            computed twice, with the same result.
        callback: called after every iteration with the number of iterations done, on every rank; before the
            first one now and then with 0, while samples are smoothed. What it raises on one rank ends all.

    Raises:
        LostRankError: another rank ended or cannot be reached; the message names it.

    Example:
        >>> import torch, tim_ext.distributed
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.distributed.adm(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """
    return _solve("adm", AdmIterations, ADM, **locals(), form="primal")


def robust(
    features: Any,
    labels: Any,
    *,
    group: Any = None,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = ROBUST.lam,
    alpha: float = ROBUST.alpha,
    beta: float = ROBUST.beta,
    temperature: float = ROBUST.temperature,
    marginal_weight: float | str = ROBUST.marginal_weight,
    class_prior: Any = None,
    weights: Any = None,
    sample_weight: Any = None,
    sample_prior: Any = None,
    smoothing: float | str = ROBUST.smoothing,
    relaxation: float | str = ROBUST.relaxation,
    iterations: int = ROBUST.iterations,
    tol: float = ROBUST.tol,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
    cache_bytes: int = CACHE_BYTES,
    callback: Callable[[int], object] | None = None,
) -> Result:
    """`tim_ext.robust` on one task whose samples are spread over the ranks of a process group.

    It is `adm` of this module with the preset of `tim_ext.robust`, on the square roots sqrt(z + 1e-6) of
    features that have no negative value on any rank.

    Example:
        >>> import torch, tim_ext.distributed
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.distributed.robust(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """
    return _solve("robust", AdmIterations, ROBUST, **locals(), form="primal", roots=True)


def gd(
    features: Any,
    labels: Any,
    *,
    group: Any = None,
    num_classes: int | None = None,
    normalize: bool = True,
    lam: float = GD.lam,
    alpha: float = GD.alpha,
    temperature: float = GD.temperature,
    marginal_weight: float = GD.marginal_weight,
    entropy_order: float = GD.entropy_order,
    class_prior: Any = None,
    weights: Any = None,
    sample_weight: Any = None,
    sample_prior: Any = None,
    iterations: int = GD.iterations,
    lr: float = GD.lr,
    betas: tuple[float, float] = GD.betas,
    eps: float = GD.eps,
    tol: float = GD.tol,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
    cache_bytes: int = CACHE_BYTES,
    callback: Callable[[int], object] | None = None,
) -> Result:
    """TIM-GD on one task whose samples are spread over the ranks of a process group.

    The hyper-parameters are those of `tim_ext.gd`, everything else is as in `tim_ext.distributed.adm`. Every
    rank makes the same steps of Adam, on weights and moments in float64.
    """
    return _solve("gd", GdIterations, GD, **locals())


@dataclass(frozen=True, eq=False, repr=False)
class Labels(ShortRepr):
    """What `classify` returns; an output that was not asked for is None."""

    probs: Tensor | None  # [n, K]
    predictions: Tensor | None  # [n]  argmax of p
    confidences: Tensor | None  # [n]  the largest p


def classify(
    features: Any,
    weights: Any,
    *,
    temperature: float = ADM.temperature,
    normalize: bool = True,
    outputs: Sequence[str] = ("predictions", "confidences"),
) -> Labels:
    """Labels rows with the weights of a solved task: p_ik = softmax_k(-tau/2 * ||w_k - z_i||^2).

    Needs no process group: call it on any rows, a block of a memory map at a time, and write as you go.

    Args:
        features: [n, d], as in `adm`.
        weights: [K, d], `Result.weights`.
        temperature, normalize: as the task was solved with.
        outputs: which of "probs" [n, K], "predictions" [n], "confidences" [n] to return.
    """
    names = check_outputs(outputs, Labels.__dataclass_fields__)
    temperature = TimParams(temperature=temperature).temperature
    normalize = check_flag("normalize", normalize)
    rows = to_features("features", features)
    w = to_features("weights", weights)
    if rows.dim() != 2 or rows.shape[1] == 0:
        refuse_shape("features", "[n, d], d not 0", rows)
    if w.dim() != 2 or len(w) == 0 or w.shape[1] != rows.shape[1]:
        refuse_shape("weights", f"[K, {rows.shape[1]}] to match features", w)
    shard = Shard(rows, torch.full((1,), QUERY, device=rows.device).expand(len(rows)), normalize)
    _check_rows(*shard.measure())
    shard.open(len(w), 0, False)
    w = w.to(rows.device, torch.float64)
    centre = w.mean(dim=0).to(shard.real)
    shard.centre(centre)
    return Labels(
        **{"probs": None, "predictions": None, "confidences": None}
        | shard.classify(w - centre, temperature, names)
    )


# Checks, on all ranks together --------------------------------------------------------------------


def _solve(
    name: str, method: type[Iterations], defaults: TimParams, *, group: Any, **arguments: Any
) -> Result:
    with open_ranks(group) as ranks:
        job, facts = ranks.agree(lambda: _check(name, defaults, **arguments))
        _check_same(ranks, [one["same"] for one in facts])
        if arguments.get("roots") and not any(one["negative"] for one in facts):
            ranks.do(job.shard.take_roots)
        samples = sum(one["samples"] for one in facts)
        top = max(one["top"] for one in facts)
        count = top + 1 if job.num_classes is None else job.num_classes
        if top < 0:
            raise ValueError(refusal(NO_SUPPORT, 0, 0, None))
        if count > samples:  # refused before anything of size K is allocated
            source = f"label {top}" if job.num_classes is None else f"num_classes={count}"
            expected = f"labels: expected support of each class 0 to {count - 1}"
            raise ValueError(f"{expected}, got only {samples} samples ({source})")
        if job.weights is not None and len(job.weights) != count:
            refuse_shape("weights", f"[{count}, {job.weights.shape[1]}], a row for each class", job.weights)
        return method(ranks, job, count).solve()


def _check(
    name: str,
    defaults: TimParams,
    *,
    features: Any,
    labels: Any,
    num_classes: int | None,
    class_prior: Any,
    weights: Any,
    sample_weight: Any,
    sample_prior: Any,
    normalize: bool,
    history: bool,
    outputs: Sequence[str],
    cache_bytes: int,
    callback: Callable[[int], object] | None,
    roots: bool = False,
    **hyper_parameters: Any,
) -> tuple[Job, dict[str, Any]]:
    """Everything that this rank can see; the facts that the others must know."""
    params = defaults.given(hyper_parameters)
    normalize, history = check_flag("normalize", normalize), check_flag("history", history)
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
        raise ValueError(f"cache_bytes: expected an integer >= 0, got {cache_bytes!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function, got {type(callback).__name__}")
    _check_no_samples(name, sample_weight=sample_weight, sample_prior=sample_prior)
    names = check_outputs(outputs)
    rows = to_features("features", features)
    if rows.dim() != 2 or rows.shape[1] == 0:
        refuse_shape("features", "[n, d], d not 0", rows)
    marks = to_integers("labels", labels, rows, rows.shape[:1], "features", keep=True)
    shard = Shard(rows, marks, normalize)
    problem = shard.measure()
    top = int(marks.max()) if len(marks) else PADDING
    if problem[0] == 0 and num_classes is not None and top >= num_classes:
        at = int((marks >= num_classes).nonzero()[0])
        problem = LABEL_OUT_OF_RANGE, at, int(marks[at])
    _check_rows(*problem, num_classes)
    prior = None if class_prior is None else to_numbers("class_prior", class_prior).tolist()
    first = None if weights is None else _check_weights(weights, rows)
    job = Job(
        shard=shard,
        params=params,
        prior=class_prior,
        weights=first,
        outputs=names,
        cache_bytes=cache_bytes,
        callback=callback,
        history=history,
        num_classes=num_classes,
    )
    same = {"method": name, "d": rows.shape[1], "dtype": str(rows.dtype).removeprefix("torch.")}
    same |= {"num_classes": num_classes, "normalize": normalize, "history": history, **asdict(params)}
    same |= {"class_prior": prior, "weights": None if first is None else _digest(first)}
    facts = {"top": top, "samples": int((marks != PADDING).sum()), "same": same}
    facts["negative"] = roots and shard.has_negative()
    return job, facts


def _check_no_samples(method: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}: expected None over ranks, got one: tim_ext.{method} in one process takes it"
            )


def _check_weights(value: Any, rows: Tensor) -> Tensor:
    """[K, d], float64 on the CPU; whether K is right is known when all ranks have met."""
    weights = to_features("weights", value)
    if weights.dim() != 2 or weights.shape[1] != rows.shape[1]:
        refuse_shape("weights", f"[K, {rows.shape[1]}] to match features", weights)
    wrong = ~weights.isfinite().all(dim=1)
    if wrong.any():
        raise ValueError(refusal(WEIGHTS_NOT_FINITE, 0, int(wrong.nonzero()[0]), None))
    return weights.to("cpu", torch.float64)


def _digest(weights: Tensor) -> str:
    """That two ranks have the same W is seen without sending it."""
    return f"{list(weights.shape)} {sha256(weights.numpy().tobytes()).hexdigest()[:16]}"


def _check_rows(code: int, position: int, value: int, classes: int | None = None) -> None:
    if code:
        raise ValueError(refusal(code, position, value, classes))


def _check_same(ranks: Ranks, settings: list[dict[str, Any]]) -> None:
    for name, value in settings[0].items():
        for rank, other in enumerate(settings):
            if other[name] != value:
                raise ValueError(
                    f"{name}: expected the same on all ranks, got {value!r} on {ranks.name(0)} "
                    f"and {other[name]!r} on {ranks.name(rank)}"
                )
