"""One task too large for one process: its samples lie spread over the ranks of a process group.

Every rank passes the samples it holds and gets their probabilities; the weights are the same on all of them.
An iteration is two passes over a rank's samples, each followed by one exchange of sums (docs/scale.md):

    softmax pass    p_ik,  sum_i c_i p_ik,  log sum over Q of p_ik^(1 + alpha/beta)    3 K + 3 numbers
    weighted pass   A_k = sum_i c_i (t_ik - p_ik) z_i,  sum over Q of q_ik             K d + K numbers

Without a process group the same code solves a huge task in one process: features may be a memory map, which
is read block by block and never copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..reference import x_log
from ..solver.batch import make_history
from ..solver.inputs import PADDING, QUERY, refuse_shape, to_features, to_integers, to_numbers, to_proportions
from ..solver.params import (
    ADM,
    GD,
    OUTPUTS,
    AdmParams,
    GdParams,
    TimParams,
    check_count,
    check_flag,
    check_outputs,
)
from ..solver.refusals import (
    CLASS_WITHOUT_SUPPORT,
    LABEL_OUT_OF_RANGE,
    NO_SUPPORT,
    RESULT_NOT_FINITE,
    refusal,
)
from ..solver.result import Result, ShortRepr
from .ranks import LostRankError, Ranks, open_ranks
from .shard import Shard, Sums

__all__ = ["Labels", "LostRankError", "adm", "classify", "gd"]

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
    marginal_weight: float = ADM.marginal_weight,
    class_prior: Any = None,
    iterations: int = ADM.iterations,
    tol: float = ADM.tol,
    history: bool = False,
    outputs: Sequence[str] = OUTPUTS,
    cache_bytes: int = CACHE_BYTES,
    callback: Callable[[int], object] | None = None,
) -> Result:
    """TIM-ADM on one task whose samples are spread over the ranks of a process group.

    As `tim_ext.adm` with solver="primal" on the samples of all ranks together, up to the order of sums, which
    are float64. All ranks call it with the same hyper-parameters, and if one of them must refuse, all of them
    raise the same error.

    Args:
        features: [n, d], the samples of this rank: a tensor, array or memory map of float16, bfloat16,
            float32 or float64. n may be 0, and differs from rank to rank as you like.
        labels: [n] integers: the class (>= 0) of a support sample, -1 for a query, -100 for a sample that is
            ignored. Every class needs a support sample on some rank.
        group: a torch.distributed process group; by default all ranks, or this process alone without one.
        num_classes: K; by default the largest label of all ranks + 1.
        normalize, lam, alpha, beta, temperature, marginal_weight, class_prior, iterations, tol, history: as
            in `tim_ext.adm`.
        outputs: which of "probs" [n, K], "predictions" [n], "weights" [K, d] to return; only "weights" saves
            a pass over the samples, and `classify` gives the others block by block.
        cache_bytes: memory for log p between the two passes of an iteration. Samples that do not fit have it
            computed twice, with the same result.
        callback: called after every iteration with the number of iterations done, on every rank. What it
            raises on one rank ends all.

    Raises:
        LostRankError: another rank ended or cannot be reached; the message names it.

    Example:
        >>> import torch, tim_ext.distributed
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8], [0.8, 0.3]])
        >>> labels = torch.tensor([0, 1, -1, -1, -1])
        >>> tim_ext.distributed.adm(features, labels).predictions
        tensor([0, 1, 0, 1, 0])
    """

    def make_params() -> AdmParams:
        return AdmParams(
            lam=lam,
            alpha=alpha,
            temperature=temperature,
            marginal_weight=marginal_weight,
            tol=tol,
            iterations=iterations,
            beta=beta,
        )

    task = features, labels, num_classes, class_prior, normalize, history, outputs, cache_bytes, callback
    return _solve("adm", _Adm, make_params, task, group)


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

    def make_params() -> GdParams:
        return GdParams(
            lam=lam,
            alpha=alpha,
            temperature=temperature,
            marginal_weight=marginal_weight,
            tol=tol,
            iterations=iterations,
            entropy_order=entropy_order,
            lr=lr,
            betas=betas,
            eps=eps,
        )

    task = features, labels, num_classes, class_prior, normalize, history, outputs, cache_bytes, callback
    return _solve("gd", _Gd, make_params, task, group)


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
    return Labels(
        **{"probs": None, "predictions": None, "confidences": None}
        | shard.classify(w.to(rows.device, shard.real), temperature, names)
    )


# Checks, on all ranks together --------------------------------------------------------------------


@dataclass
class _Job:
    """What one rank has checked on its own."""

    shard: Shard
    params: Any
    prior: Any
    outputs: Sequence[str]
    cache_bytes: int
    callback: Callable[[int], object] | None
    history: bool
    num_classes: int | None


def _solve(
    name: str,
    method: type[_Method],
    make_params: Callable[[], TimParams],
    task: tuple[Any, ...],
    group: Any,
) -> Result:
    with open_ranks(group) as ranks:
        job, facts = ranks.agree(lambda: _check(name, make_params(), *task))
        _check_same(ranks, [one["same"] for one in facts])
        samples = sum(one["samples"] for one in facts)
        top = max(one["top"] for one in facts)
        count = top + 1 if job.num_classes is None else job.num_classes
        if top < 0:
            raise ValueError(refusal(NO_SUPPORT, 0, 0, None))
        if count > samples:  # refused before anything of size K is allocated
            source = f"label {top}" if job.num_classes is None else f"num_classes={count}"
            expected = f"labels: expected support of each class 0 to {count - 1}"
            raise ValueError(f"{expected}, got only {samples} samples ({source})")
        solver = method(ranks, job, count)
        return solver.solve()


def _check(
    name: str,
    params: TimParams,
    features: Any,
    labels: Any,
    num_classes: int | None,
    class_prior: Any,
    normalize: bool,
    history: bool,
    outputs: Sequence[str],
    cache_bytes: int,
    callback: Callable[[int], object] | None,
) -> tuple[_Job, dict[str, Any]]:
    """Everything that this rank can see; the facts that the others must know."""
    normalize, history = check_flag("normalize", normalize), check_flag("history", history)
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
        raise ValueError(f"cache_bytes: expected an integer >= 0, got {cache_bytes!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function, got {type(callback).__name__}")
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
    job = _Job(shard, params, class_prior, names, cache_bytes, callback, history, num_classes)
    same = {"method": name, "d": rows.shape[1], "dtype": str(rows.dtype).removeprefix("torch.")}
    same |= {"num_classes": num_classes, "normalize": normalize, "history": history, **asdict(params)}
    same |= {"class_prior": prior}
    facts = {"top": top, "samples": int((marks != PADDING).sum()), "same": same}
    return job, facts


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


# The iterations -----------------------------------------------------------------------------------


class _Method:
    """The order of an iteration, on all ranks; `weights` [K, d] are float64 in between."""

    order = 1.0  # of the entropies

    def __init__(self, ranks: Ranks, job: _Job, classes: int) -> None:
        self.ranks, self.job, self.shard, self.classes = ranks, job, job.shard, classes
        params: TimParams = job.params
        self.params = params
        shard = self.shard
        self.dim = shard.features.shape[1]

        def start() -> Tensor:
            shard.open(classes, job.cache_bytes, params.tol > 0)
            counts, sums = shard.support_sums()
            queries = (shard.labels == QUERY).sum().double()
            return torch.cat([counts, sums.flatten(), queries[None]])

        total = ranks.sum(start, classes * (self.dim + 1) + 1)
        self.counts = total[:classes]
        self.support, self.queries = int(self.counts.sum()), int(total[-1])
        if not self.counts.all():
            missing = int((self.counts == 0).nonzero()[0])
            raise ValueError(refusal(CLASS_WITHOUT_SUPPORT, 0, missing, classes))
        self.weights = total[classes:-1].view(classes, self.dim) / self.counts[:, None]  # w_k(0)
        self.log_prior = torch.zeros(classes, dtype=torch.float64)  # -log2(K prior_k)
        if job.prior is not None:
            self.log_prior = -torch.log2(classes * to_proportions("class_prior", job.prior, classes))

    def solve(self) -> Result:
        params, shard, ranks = self.params, self.shard, self.ranks
        planned = params.iterations if self.queries else 0
        terms = torch.full((params.iterations + 1, 3), torch.nan, dtype=torch.float64)
        before: Tensor | None = None
        done = 0
        while True:
            more = done < planned
            if not (more or self.job.history or params.tol > 0):
                break
            ranks.stage = f"in iteration {done + 1}" if more else "after the last iteration"
            sums = self._gather(before)
            if self.job.history:
                terms[done] = self._terms(sums)
            if not more or (params.tol > 0 and done > 0 and sums.change <= params.tol):
                break
            before = self.weights.to(shard.device)
            self.update(sums, done + 1)
            done += 1
            if self.job.callback is not None:
                ranks.do(lambda: self.job.callback(done))  # type: ignore[misc]  # noqa: B023
        ranks.stage = "after the last iteration"
        ranks.gather(lambda: torch.zeros(1), 1)  # what the last callback raised
        shard.drop_cache()
        if not self.weights.to(shard.real).isfinite().all():
            raise ValueError(refusal(RESULT_NOT_FINITE, 0, 0, self.classes))
        weights = self.weights.to(shard.device, shard.real)
        wanted = [name for name in ("probs", "predictions") if name in self.job.outputs]
        found = shard.classify(weights, params.temperature, wanted) if wanted else {}
        return Result(
            probs=found.get("probs"),
            predictions=found.get("predictions"),
            weights=weights if "weights" in self.job.outputs else None,
            iterations=torch.tensor(done, device=shard.device),
            history=make_history(params, terms.to(shard.device, shard.real)) if self.job.history else None,
        )

    # What a method defines: the options of shard_softmax, and a step from the sums of the softmax half.

    def softmax_options(self) -> dict[str, Any]:
        raise NotImplementedError

    def update(self, sums: Sums, step: int) -> None:
        raise NotImplementedError

    def _gather(self, before: Tensor | None) -> Sums:
        """The softmax half, of all ranks."""
        K, shard = self.classes, self.shard

        def local() -> Tensor:
            weights = self.weights.to(shard.device)
            mine = shard.softmax(weights, before, self.softmax_options(), float(self.log_prior.abs().max()))
            scalars = torch.tensor([mine.cross, mine.conditional, mine.change], dtype=torch.float64)
            return torch.cat([mine.p.cpu(), mine.log_power.cpu(), mine.query_p.cpu(), scalars])

        rows = self.ranks.gather(local, 3 * K + 3)  # [ranks, ..]
        p, query_p = rows[:, :K].sum(dim=0), rows[:, 2 * K : 3 * K].sum(dim=0)
        log_power = torch.logsumexp(rows[:, K : 2 * K] * math.log(2), dim=0) / math.log(2)
        cross, conditional = rows[:, 3 * K : 3 * K + 2].sum(dim=0).tolist()
        return Sums(p, log_power, query_p, cross, conditional, float(rows[:, -1].max()))

    def _sum(self, local: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The weighted half, of all ranks: [K, d] and [K]."""
        K = self.classes

        def flat() -> Tensor:
            sums, totals = local()
            return torch.cat([sums.flatten(), totals]).cpu()

        total = self.ranks.sum(flat, K * (self.dim + 1))
        return total[:-K].view(K, self.dim), total[-K:]

    def _log_share(self, query_p: Tensor) -> Tensor:
        """log phat_k; a phat of 0 counts as the smallest normal number."""
        return (query_p.clamp(min=torch.finfo(self.shard.real).tiny) / self.queries).log()

    def _terms(self, sums: Sums) -> Tensor:
        """As in tim_ext.reference.loss_terms."""
        cross = -math.log(2) * sums.cross / self.support
        if not self.queries:
            return torch.tensor([cross, 0.0, 0.0])
        ratio = torch.exp2(-self.log_prior)  # K prior_k
        marginal = -(ratio * x_log(self._log_share(sums.query_p) - ratio.log(), self.order)).sum()
        return torch.tensor([cross, float(marginal), -sums.conditional / self.queries], dtype=torch.float64)


class _Adm(_Method):
    params: AdmParams

    def softmax_options(self) -> dict[str, Any]:
        params = self.params
        return {
            "temperature": params.temperature,
            "support_weight": params.lam / (params.beta + params.alpha),  # c_S
            "query_weight": self.support / max(self.queries, 1),  # c_Q
            "power": 1 + params.alpha / params.beta,
            "entropy_order": 1.0,
            "terms": self.job.history,
        }

    def update(self, sums: Sums, step: int) -> None:
        """w_k <- (A_k + B_k w_k) / D_k"""
        params, options = self.params, self.softmax_options()
        marginal_power = params.marginal_weight / (params.marginal_weight + params.beta)
        exponent = marginal_power * (sums.log_power + self.log_prior)
        shard = self.shard
        a, q = self._sum(
            lambda: shard.adm_sums(self.weights.to(shard.device), exponent.to(shard.device), options)
        )
        mass = options["support_weight"] * self.counts + options["query_weight"] * q  # D_k
        some = mass >= torch.finfo(shard.real).tiny  # only lam = 0 leaves a class without any: it stays
        new = (a + sums.p[:, None] * self.weights) / mass[:, None]
        self.weights = torch.where(some[:, None], new, self.weights)


class _Gd(_Method):
    params: GdParams

    def __init__(self, ranks: Ranks, job: _Job, classes: int) -> None:
        super().__init__(ranks, job, classes)
        self.order = float(torch.tensor(self.params.entropy_order, dtype=self.shard.real))
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

    def softmax_options(self) -> dict[str, Any]:
        weights = {"support_weight": 0.0, "query_weight": 1.0}
        same = {"temperature": self.params.temperature, "entropy_order": self.order}
        return {**same, **weights, "power": 0.0, "terms": self.job.history}

    def update(self, sums: Sums, step: int) -> None:
        """Adam on dL/dw_k = tau (sum_i g_ik z_i - w_k sum_i g_ik), as torch.optim.Adam does it."""
        params, shard, order = self.params, self.shard, self.order
        log_ratio = self._log_share(sums.p) + math.log(2) * self.log_prior  # log(phat_k / (K prior_k))
        log_a = log_ratio if order == 1 else torch.expm1((order - 1) * log_ratio) / (order - 1)
        marginal = params.marginal_weight * order * log_a
        options = {
            "support_weight": params.lam / self.support,
            "query_weight": 1 / max(self.queries, 1),
            "alpha": params.alpha,
            "entropy_order": order,
        }
        softmax = self.softmax_options()
        a, g = self._sum(
            lambda: shard.gd_sums(self.weights.to(shard.device), marginal.to(shard.device), softmax, options)
        )
        gradient = params.temperature * (a - self.weights * g[:, None])
        (beta1, beta2), eps = params.betas, params.eps
        self.first = torch.lerp(gradient, self.first, beta1)
        self.second = beta2 * self.second + (1 - beta2) * gradient.square()
        root = (self.second / (1 - beta2**step)).sqrt() + eps
        self.weights = self.weights - params.lr / (1 - beta1**step) * self.first / root
