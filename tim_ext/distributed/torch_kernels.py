"""The operators shard_* (csrc/ops.cpp) in plain torch: half an iteration of TIM on some samples."""

from __future__ import annotations

from math import inf, log

import torch
from torch import Tensor

from ..reference import x_log
from ..solver.inputs import PADDING, QUERY
from ..solver.refusals import LABEL_OUT_OF_RANGE, NOT_FINITE, RESULT_NOT_FINITE


class TorchKernels:
    """What GPUs run, and what the tests hold the native operators to.

    log_probs holds log2 p [n, K] here, in its first numbers.
    """

    @staticmethod
    def shard_scale(features: Tensor, labels: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
        used = labels != PADDING
        real = torch.float64 if features.dtype == torch.float64 else torch.float32
        x = features.to(real)
        wrong_label, wrong_row = used & (labels < QUERY), used & ~x.isfinite().all(dim=1)
        for code, wrong in ((LABEL_OUT_OF_RANGE, wrong_label), (NOT_FINITE, wrong_row)):
            if wrong.any():
                at = int(wrong.nonzero()[0])
                return x.new_empty(0), torch.tensor([code, at, int(labels[at])])
        limit = 1e30 if real == torch.float32 else 1e280
        square = x.square().sum(dim=1)
        ordinary = (square > 1 / limit) & (square < limit) & used
        scale = torch.where(ordinary, square.rsqrt() if normalize else 1.0, 0.0 if normalize else 1.0).to(
            real
        )
        extreme = used & ~ordinary & (x != 0).any(dim=1)
        return torch.where(used, scale, 0), torch.tensor([0, 0, int(extreme.any())])

    @staticmethod
    def shard_softmax(
        features: Tensor,
        labels: Tensor,
        scale: Tensor,
        weights: Tensor,
        log_probs: Tensor,
        before: Tensor | None,
        *,
        temperature: float,
        support_weight: float,
        query_weight: float,
        power: float,
        entropy_order: float,
        terms: bool,
        mean: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        n, classes = len(features), len(weights)
        support, query = labels >= 0, labels == QUERY
        log_p = TorchKernels.log_probs(features, scale, mean, weights, temperature)  # [n, K]
        p = log_p.exp()
        c = support.double() * support_weight + query.double() * query_weight
        columns = log_p.new_zeros(3, classes, dtype=torch.float64)
        columns[0] = (c[:, None] * p.double()).sum(dim=0)
        columns[1] = -inf
        if power > 0:
            exponent = (power / log(2)) * log_p.double()
            columns[1] = torch.where(query[:, None], exponent, -inf).mul(log(2)).logsumexp(dim=0) / log(2)
        scalars = columns.new_zeros(4)
        scalars[0] = inf  # shard_adm_sums works in the log domain throughout
        if terms:
            columns[2] = p[query].sum(dim=0, dtype=torch.float64)
            own = log_p[support].gather(1, labels[support][:, None])
            scalars[1] = own.sum(dtype=torch.float64) / log(2)
            scalars[2] = x_log(log_p[query], entropy_order).sum(dtype=torch.float64)
        if before is not None:
            old = before[: n * classes].view(n, classes)
            if n:
                scalars[3] = torch.where((labels != PADDING)[:, None], (p - old).abs(), 0).max()
            old.copy_(p)
        log_probs[: n * classes].view(n, classes).copy_(log_p / log(2))
        return columns, scalars

    @staticmethod
    def shard_adm_sums(
        features: Tensor,
        labels: Tensor,
        scale: Tensor,
        log_probs: Tensor,
        factor: Tensor,
        *,
        support_weight: float,
        query_weight: float,
        power: float,
        exact: bool,
        mean: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        log_p = log_probs[: len(features) * len(factor)].view(len(features), len(factor)) * log(2)
        offset = factor * log(2) if exact else -factor.log()
        support, query = labels >= 0, labels == QUERY
        q = (power * log_p - offset).softmax(dim=1) * query[:, None]
        c = support.to(q) * support_weight + query.to(q) * query_weight
        target = q.clone()
        target[support, labels[support]] = 1
        x = c[:, None] * (target - log_p.exp())
        return TorchKernels.product(x, features, scale, mean), q.sum(dim=0, dtype=torch.float64)

    @staticmethod
    def shard_gd_sums(
        features: Tensor,
        labels: Tensor,
        scale: Tensor,
        log_probs: Tensor,
        marginal: Tensor,
        *,
        support_weight: float,
        query_weight: float,
        alpha: float,
        entropy_order: float,
        mean: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        log_p = log_probs[: len(features) * len(marginal)].view(len(features), len(marginal)) * log(2)
        p = log_p.exp()
        support, query = labels >= 0, labels == QUERY
        v = p * marginal - alpha * entropy_order * x_log(log_p, entropy_order)
        g = (v - p * v.sum(dim=1, keepdim=True)) * (query.to(p) * query_weight)[:, None]
        y = torch.zeros_like(p)
        y[support, labels[support]] = 1
        g += (p - y) * (support.to(p) * support_weight)[:, None]
        return TorchKernels.product(g, features, scale, mean), g.sum(dim=0, dtype=torch.float64)

    @staticmethod
    def shard_classify(
        features: Tensor,
        labels: Tensor,
        scale: Tensor,
        weights: Tensor,
        *,
        temperature: float,
        probs: bool,
        mean: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        used = labels != PADDING
        p = TorchKernels.log_probs(features, scale, mean, weights, temperature).exp()
        p = torch.where(used[:, None], p, 0)
        confidences, predictions = p.max(dim=1)
        status = torch.tensor([0 if p.isfinite().all() else RESULT_NOT_FINITE, 0, 0])
        return p[: len(p) if probs else 0], torch.where(used, predictions, PADDING), confidences, status

    @staticmethod
    def log_probs(
        features: Tensor, scale: Tensor, mean: Tensor | None, weights: Tensor, temperature: float
    ) -> Tensor:
        """log p [n, K] = log_softmax_k(tau (z_i . w_k - ||w_k||^2 / 2))"""
        logits = rows_of(features, scale, weights.dtype, mean) @ weights.T
        return (temperature * (logits - weights.square().sum(dim=1) / 2)).log_softmax(dim=1)

    @staticmethod
    def product(x: Tensor, features: Tensor, scale: Tensor, mean: Tensor | None) -> Tensor:
        """sum_i x_ik z_i [K, d]"""
        return (x.T @ rows_of(features, scale, x.dtype, mean)).double()


def rows_of(features: Tensor, scale: Tensor, dtype: torch.dtype, mean: Tensor | None) -> Tensor:
    """z_i = scale_i x_i, minus the mean if there is one. Ignored rows may hold anything: they count as 0."""
    z = torch.where((scale != 0)[:, None], features.to(dtype) * scale[:, None], 0)
    return z if mean is None else z - mean
