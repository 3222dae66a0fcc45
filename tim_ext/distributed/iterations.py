"""The iterations of TIM-ADM and TIM-GD on a task whose samples are spread over ranks.

An iteration is two passes over a rank's samples, each followed by one exchange of sums (docs/scale.md), and
a step that every rank makes alike:

    softmax pass    p_ik,  sum_i c_i p_ik,  log sum over Q of p_ik^(1 + alpha/beta)    3 K + 3 numbers
    weighted pass   A_k = sum_i c_i (t_ik - p_ik) z_i,  sum over Q of q_ik             K d + K numbers
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..reference import decided_marginal_weight, inner, x_log
from ..solver.batch import make_history
from ..solver.graph import smoothing_reach
from ..solver.inputs import QUERY, to_proportions
from ..solver.params import AUTO, DECIDED_AFTER, UNDECIDED_MARGINAL, AdmParams, GdParams, TimParams
from ..solver.refusals import CLASS_WITHOUT_SUPPORT, RESULT_NOT_FINITE, refusal
from ..solver.result import Result
from ..solver.steps import StepControl
from .ranks import Ranks
from .shard import Shard, Sums
from .smoothing import smooth_shard

# tau times the mean of ||z_i - mean||^2 from which on float32 is not enough: see csrc/cpu/core/wide.h
WIDE_LOGITS = 64


@dataclass
class Job:
    """What one rank has checked on its own."""

    shard: Shard
    params: Any
    prior: Any
    weights: Tensor | None  # [K, d] float64: the first W; None: prototypes
    outputs: Sequence[str]
    cache_bytes: int
    callback: Callable[[int], object] | None
    history: bool
    num_classes: int | None


class Iterations:
    """The order of an iteration, on all ranks.

    `weights` [K, d] are float64 in between, and W minus the task's `mean` [d], which is subtracted from all
    samples: distances are the same, and what all samples share costs the kernels no digits.
    """

    order = 1.0  # of the entropies

    def __init__(self, ranks: Ranks, job: Job, classes: int) -> None:
        self.ranks, self.job, self.shard, self.classes = ranks, job, job.shard, classes
        params: TimParams = job.params
        self.params = params
        shard = self.shard
        self.dim = shard.features.shape[1]
        self.shift = torch.zeros(self.dim, dtype=torch.float64)  # of all samples, once they are smoothed
        decides = params.marginal_weight == AUTO
        self.marginal_weight = UNDECIDED_MARGINAL if decides else float(params.marginal_weight)
        radius = self._start()
        logits = params.temperature * radius
        if shard.real == torch.float32 and WIDE_LOGITS < logits < math.inf:
            ranks.do(shard.widen)
            self._start()
        self.log_prior = torch.zeros(classes, dtype=torch.float64)  # -log2(K prior_k)
        if job.prior is not None:
            self.log_prior = -torch.log2(classes * to_proportions("class_prior", job.prior, classes))

    def _start(self) -> float:
        """The size of the task, its mean and the first W; returns the mean of ||z_i - mean||^2."""
        shard, classes, dim = self.shard, self.classes, self.dim

        def local() -> Tensor:
            shard.open(classes, self.job.cache_bytes, self.params.tol > 0)
            counts, sums = shard.support_sums()
            queries = (shard.labels == QUERY).sum().double()
            return torch.cat([counts, queries[None], shard.row_sum(), sums.flatten()])

        total = self.ranks.sum(local, classes * (dim + 1) + dim + 2)
        self.counts, sums = total[:classes], total[classes + dim + 2 :]
        self.support, self.queries = int(self.counts.sum()), int(total[classes])
        if not self.counts.all():
            missing = int((self.counts == 0).nonzero()[0])
            raise ValueError(refusal(CLASS_WITHOUT_SUPPORT, 0, missing, classes))
        means = total[classes + 1 : classes + dim + 2] / (self.support + self.queries)
        self.mean = means[:-1].to(shard.real).double()
        shard.centre(self.mean)
        if self.job.weights is None:
            self.weights = sums.view(classes, dim) / self.counts[:, None] - self.mean  # the prototypes
        else:
            self.weights = self.job.weights - self.shift - self.mean
        return float(means[-1] - self.mean.square().sum())

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
            sums = self._gather(before, terms=self.job.history or self.decides(done))
            if self.job.history:
                terms[done] = self._terms(sums)
            undecided = params.marginal_weight == AUTO and done <= DECIDED_AFTER
            if not more or (params.tol > 0 and done > 0 and sums.change <= params.tol and not undecided):
                break
            if self.decides(done):
                prior = torch.exp2(-self.log_prior) / self.classes
                shots = self.support / self.classes
                m = decided_marginal_weight(sums.query_p / self.queries, prior, shots)
                self.marginal_weight = m if done else min(m, UNDECIDED_MARGINAL)
            before = self.weights.to(shard.device)
            self.update(sums, done + 1)
            done += 1
            if self.job.callback is not None:
                ranks.do(lambda: self.job.callback(done))  # type: ignore[misc]  # noqa: B023
        ranks.stage = "after the last iteration"
        query_p = self._gather(None, terms=True).query_p  # or what the last callback raised
        shard.drop_cache()
        weights = (self.weights + self.mean + self.shift).to(shard.device, shard.result)
        if not weights.isfinite().all():
            raise ValueError(refusal(RESULT_NOT_FINITE, 0, 0, self.classes))
        wanted = [name for name in ("probs", "predictions") if name in self.job.outputs]
        centred = self.weights.to(shard.device)
        marginal_weight = torch.tensor(self.marginal_weight, dtype=shard.result, device=shard.device)
        found = shard.classify(centred, params.temperature, wanted) if wanted else {}
        return Result(
            probs=found.get("probs"),
            predictions=found.get("predictions"),
            weights=weights if "weights" in self.job.outputs else None,
            iterations=torch.tensor(done, device=shard.device),
            proportions=(query_p / max(self.queries, 1)).to(shard.device, shard.result),
            marginal_weight=marginal_weight,
            history=make_history(params, terms.to(shard.device, shard.result), marginal_weight)
            if self.job.history
            else None,
        )

    def decides(self, done: int) -> bool:
        """Whether the marginal weight is decided after so many iterations."""
        return self.params.marginal_weight == AUTO and done in (0, DECIDED_AFTER)

    # What a method defines: the options of shard_softmax, and a step from the sums of the softmax half.

    def softmax_options(self) -> dict[str, Any]:
        raise NotImplementedError

    def update(self, sums: Sums, step: int) -> None:
        raise NotImplementedError

    def _gather(self, before: Tensor | None, terms: bool) -> Sums:
        """The softmax half, of all ranks; `terms`: with the sums for the loss terms, among them query_p."""
        K, shard = self.classes, self.shard
        options = {**self.softmax_options(), "terms": terms}

        def local() -> Tensor:
            weights = self.weights.to(shard.device)
            mine = shard.softmax(weights, before, options, float(self.log_prior.abs().max()))
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


class AdmIterations(Iterations):
    params: AdmParams

    def __init__(self, ranks: Ranks, job: Job, classes: int) -> None:
        super().__init__(ranks, job, classes)
        samples = self.support + self.queries  # of all ranks
        reach = smoothing_reach(self.params.smoothing, self.support, samples, classes)
        if reach > 0:
            self._smooth(reach, samples)
        self.steps: StepControl | None = None
        if self.params.relaxation == AUTO:
            self.steps = StepControl(self.params.iterations, samples, self.params.marginal_weight == AUTO)
        self.residual = torch.zeros_like(self.weights)  # of the point before

    def _smooth(self, reach: float, samples: int) -> None:
        """From here on the samples are smoothed ones, minus `shift`."""
        callback = self.job.callback
        self.shard.drop_cache()
        self.shard, self.shift = smooth_shard(
            self.ranks,
            self.shard,
            self.mean,
            samples,
            self.classes,
            reach,
            tick=lambda: None if callback is None else callback(0),
        )
        self._start()

    def softmax_options(self) -> dict[str, Any]:
        params = self.params
        return {
            "temperature": params.temperature,
            "support_weight": params.lam / (params.beta + params.alpha),  # c_S
            "query_weight": self.support / max(self.queries, 1),  # c_Q
            "power": 1 + params.alpha / params.beta,
            "entropy_order": 1.0,
            "terms": False,
        }

    def update(self, sums: Sums, step: int) -> None:
        """W <- W + f R,  r_k = (A_k + B_k w_k) / D_k - w_k; see `move`"""
        params, options = self.params, self.softmax_options()
        marginal_power = self.marginal_weight / (self.marginal_weight + params.beta)
        exponent = marginal_power * (sums.log_power + self.log_prior)
        shard = self.shard
        a, q = self._sum(
            lambda: shard.adm_sums(self.weights.to(shard.device), exponent.to(shard.device), options)
        )
        mass = options["support_weight"] * self.counts + options["query_weight"] * q  # D_k
        some = mass >= torch.finfo(shard.real).tiny  # only lam = 0 leaves a class without any: it stays
        new = (a + sums.p[:, None] * self.weights) / mass[:, None]
        self.move(torch.where(some[:, None], new - self.weights, 0))

    def move(self, residual: Tensor) -> None:
        """Along R = F(W) - W [K, d], which all ranks know; or back along the R of the point before."""
        if self.steps is None:
            self.weights = self.weights + float(self.params.relaxation) * residual
            return
        factor, refused = self.steps.move(inner(residual, residual), inner(self.residual, residual))
        self.residual = self.residual if refused else residual
        self.weights = self.weights + factor * self.residual


class GdIterations(Iterations):
    params: GdParams

    def __init__(self, ranks: Ranks, job: Job, classes: int) -> None:
        super().__init__(ranks, job, classes)
        self.order = float(torch.tensor(self.params.entropy_order, dtype=self.shard.real))
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

    def softmax_options(self) -> dict[str, Any]:
        weights = {"support_weight": 0.0, "query_weight": 1.0}
        same = {"temperature": self.params.temperature, "entropy_order": self.order}
        return {**same, **weights, "power": 0.0, "terms": False}

    def update(self, sums: Sums, step: int) -> None:
        """Adam on dL/dw_k = tau (sum_i g_ik z_i - w_k sum_i g_ik), as torch.optim.Adam does it."""
        params, shard, order = self.params, self.shard, self.order
        log_ratio = self._log_share(sums.p) + math.log(2) * self.log_prior  # log(phat_k / (K prior_k))
        log_a = log_ratio if order == 1 else torch.expm1((order - 1) * log_ratio) / (order - 1)
        marginal = self.marginal_weight * order * log_a
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
