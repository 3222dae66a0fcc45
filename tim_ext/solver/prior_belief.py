"""How much to believe the priors of a task: sample_prior_weight="auto".

The labelled samples say it, n of them with a prior that is not flat. On them, and on one sample more whose
class is anybody's guess,

    CE(t) = [ sum_i -log softmax_k(t log prior_ik)_y(i) + mean_ik -log softmax_k(t log prior_ik) ] / (n + 1)

t, at most 1, minimises it: how sure the priors should have been. I = max(0, 1 - CE(t) / log K) is the share
of what there is to know about the class that they then know. The iteration gets

    log prior_ik <- I t log prior_ik,   lam_0 = 0.2

Without such samples I t = 1/2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LAM_0 = 0.2
UNKNOWN = 0.5  # I t, if there is nothing to tell by
TEMPERATURES = [2.0 ** (-j / 4) for j in range(33)]  # t, 1 to 1/256


def belief(log_prior: Tensor, labels: Tensor, tasks: int) -> Tensor:
    """I t [tasks], float64 on the CPU, from log_prior [tasks * N, K] and labels [tasks * N].

    On the CPU, as sums of a GPU have no order of their own.
    """
    size, classes = len(labels) // tasks, log_prior.shape[1]
    known = (labels >= 0) & (labels < classes)  # others are refused later
    of_labelled = known.nonzero()[:, 0]
    logs = log_prior[of_labelled].double().cpu()  # [S, K]
    says = logs.amin(dim=1) < logs.amax(dim=1)
    logs, rows = logs[says], of_labelled.cpu()[says]
    of_task, y = rows // size, labels.cpu()[rows]
    n = torch.bincount(of_task, minlength=tasks).double()
    if classes == 1:
        return torch.ones_like(n)

    def mean_of_task(value: Tensor) -> Tensor:
        return torch.zeros_like(n).index_add_(0, of_task, value) / n.clamp(min=1)

    least, best = torch.full_like(n, math.inf), torch.ones_like(n)
    for t in TEMPERATURES:
        missed = -(t * logs).log_softmax(dim=1)
        own = mean_of_task(missed.gather(1, y[:, None])[:, 0])
        entropy = (n * own + mean_of_task(missed.mean(dim=1))) / (n + 1)
        better = entropy < least
        least, best = torch.where(better, entropy, least), torch.where(better, t, best)
    share = (1 - least / math.log(classes)).clamp(min=0)  # I
    return torch.where(n > 0, share * best, UNKNOWN)
