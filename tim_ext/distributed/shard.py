"""The samples of one rank: half an iteration of TIM on them at a time, segment by segment.

A segment is a range of rows small enough that nothing the size of the shard is ever allocated, apart from
log p of as many segments as `cache_bytes` holds. The kernels are the operators shard_* (csrc/ops.cpp) on a
CPU and `TorchKernels`, the same functions in plain torch, on a GPU. Sums are float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files.mapped import check_mapped
from ..reference import unit_length, x_log
from ..solver import native
from ..solver.inputs import PADDING, QUERY
from ..solver.refusals import LABEL_OUT_OF_RANGE, NOT_FINITE, RESULT_NOT_FINITE, refusal

SEGMENT_ROWS = 1 << 18
SEGMENT_NUMBERS = 1 << 24  # of log p in a segment, at most
SUM_NUMBERS = 1 << 20  # of a block of rows that torch sums
LANES = 256  # log p is kept for whole blocks of so many samples


class Sums(NamedTuple):
    """The softmax half, summed over samples; what is not asked for is 0."""

    p: Tensor  # [K] sum_i c_i p_ik
    log_power: Tensor  # [K] log2 sum over Q of p_ik^power; -inf without a query
    query_p: Tensor  # [K] sum over Q of p_ik
    cross: float  # sum over S of log2 p_i,y(i)
    conditional: float  # sum over Q, k of p log_a p
    change: float  # max |p - p before|


class Shard:
    """features [n, d] and labels [n] of this rank, on one device."""

    def __init__(self, features: Tensor, labels: Tensor, normalize: bool) -> None:
        self.features, self.labels, self.normalize = features, labels, normalize
        self.real = torch.float64 if features.dtype == torch.float64 else torch.float32
        self.result = self.real  # the type of results
        self.device = features.device
        self.kernels: Any = TorchKernels
        if self.device.type == "cpu":
            native.require(self.device)
            self.kernels = native.torch_ops.tim_ext
        self.scale = torch.empty(len(features), dtype=self.real, device=self.device)
        self.far_rows: list[slice] = []  # ranges with rows so long or short that squares leave the range
        self.forward = False
        self.mean: Tensor | None = None  # [d], subtracted from every sample; weights are W minus it

    # Preparation ----------------------------------------------------------------------------------

    def measure(self) -> tuple[int, int, int]:
        """Row lengths; the first problem as (code of csrc/common/status.h, row, value), or code 0."""
        for part in self._cut(self._most_rows()):
            scale, status = self.kernels.shard_scale(self._rows(part), self._labels(part), self.normalize)
            code, position, value = status.tolist()
            if code:
                return code, part.start + position, value
            self.scale[part] = scale
            if value and self.normalize:
                self.far_rows.append(part)
        return 0, 0, 0

    def widen(self) -> None:
        """Computes in float64 from here on, a segment of converted rows at a time; results stay float32."""
        self.real, self.far_rows = torch.float64, []
        self.scale = self.scale.double()
        self.measure()

    def open(self, classes: int, cache_bytes: int, keep_before: bool) -> None:
        """Fixes K, the segments, and how many of them are kept."""
        self.classes, self.keep_before = classes, keep_before
        rows = min(self._most_rows(), SEGMENT_NUMBERS // classes)
        rows = max(rows // LANES, 1) * LANES
        self.segments = list(self._cut(rows))
        self.extreme = [self._is_extreme(part) for part in self.segments]
        copies = 2 if keep_before else 1
        one = lanes(rows) * classes * copies
        kept = min(len(self.segments), cache_bytes // (one * self.real.itemsize))
        self.cache = torch.empty(kept, one, dtype=self.real, device=self.device)
        self.scratch = torch.empty(
            one if kept < len(self.segments) else 0, dtype=self.real, device=self.device
        )

    def support_sums(self) -> tuple[Tensor, Tensor]:
        """Support samples of each class [K], and the sums of their features [K, d]."""
        counts = torch.zeros(self.classes, dtype=torch.float64, device=self.device)
        sums = counts.new_zeros(self.classes, self.features.shape[1])
        for j, part in enumerate(self.segments):
            labels = self._labels(part)
            rows = (labels >= 0).nonzero()[:, 0]
            if len(rows):
                features, scale = self._scaled(j)
                z = features[rows].double() * scale[rows, None].double()
                sums.index_add_(0, labels[rows], z)
                counts += torch.bincount(labels[rows], minlength=self.classes)
        return counts, sums

    def row_sum(self) -> Tensor:
        """The sum of all samples that count, z_i = scale_i x_i, and of their ||z_i||^2: [d + 1]."""
        total = torch.zeros(self.features.shape[1] + 1, dtype=torch.float64, device=self.device)
        rows = max(SUM_NUMBERS // len(total), 1)
        for j in range(len(self.segments)):
            features, scale = self._scaled(j)
            for first in range(0, len(features), rows):
                some = slice(first, first + rows)
                z = rows_of(features[some], scale[some], self.real, None)
                total[:-1] += z.sum(dim=0, dtype=torch.float64)
                total[-1] += z.square().sum(dtype=torch.float64)
        return total

    def centre(self, mean: Tensor) -> None:
        """From here on samples are z_i - mean, and weights are given and sums meant likewise."""
        self.mean = mean.to(self.device, self.real)

    # The halves of an iteration -------------------------------------------------------------------

    def softmax(
        self, weights: Tensor, before: Tensor | None, options: dict[str, Any], prior_range: float
    ) -> Sums:
        """log p at `weights` [K, d]; the change is against p at the weights `before`, if they are given."""
        columns = torch.zeros(3, self.classes, dtype=torch.float64, device=self.device)
        columns[1] = -inf
        scalars = torch.zeros(len(self.segments) + 1, 4, dtype=torch.float64, device=self.device)
        for j in self._order():
            log_p, p_before = self._kept(j)
            if p_before is not None and before is not None and j >= len(self.cache):  # p was not kept
                self._softmax(j, before, log_p, p_before, options)
            mine, scalars[j] = self._softmax(j, weights, log_p, p_before, options)
            columns[0::2] += mine[0::2]
            columns[1] = torch.logaddexp2(columns[1], mine[1])
        margins, *others = scalars.cpu().unbind(dim=1)
        self.exact = [margin <= prior_range for margin in margins.tolist()]
        cross, conditional, change = others
        return Sums(
            columns[0],
            columns[1],
            columns[2],
            float(cross.sum()),
            float(conditional.sum()),
            float(change.max()),
        )

    def adm_sums(self, weights: Tensor, exponent: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """sum_i c_i (t_ik - p_ik) z_i [K, d] and sum over Q of q_ik [K]; q_ik ~ p_ik^power 2^-exponent_k."""
        factors = {True: exponent.to(self.real), False: torch.exp2(-exponent).to(self.real)}
        names = "support_weight", "query_weight", "power"
        own = {name: options[name] for name in names}
        return self._weighted(
            weights,
            options,
            lambda j, *part: self.kernels.shard_adm_sums(
                *part, factors[self.exact[j]], **own, exact=self.exact[j], mean=self.mean
            ),
        )

    def gd_sums(
        self, weights: Tensor, marginal: Tensor, softmax: dict[str, Any], gradient: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """sum_i g_ik z_i [K, d] and sum_i g_ik [K]"""
        factor = marginal.to(self.real)
        own = gradient | {"mean": self.mean}
        return self._weighted(
            weights, softmax, lambda j, *part: self.kernels.shard_gd_sums(*part, factor, **own)
        )

    def _weighted(self, weights: Tensor, options: dict[str, Any], sums_of: Any) -> tuple[Tensor, Tensor]:
        totals = torch.zeros(self.classes, dtype=torch.float64, device=self.device)
        sums = totals.new_zeros(weights.shape)
        for j in self._order():
            log_p, _ = self._kept(j)
            if j >= len(self.cache):  # log p was not kept
                self._softmax(j, weights, log_p, None, options | {"terms": False, "power": 0.0})
            features, scale = self._scaled(j)
            more, counts = sums_of(j, features, self._labels(self.segments[j]), scale, log_p)
            sums += more
            totals += counts
        return sums, totals

    def _softmax(
        self, j: int, weights: Tensor, log_p: Tensor, before: Tensor | None, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        features, scale = self._scaled(j)
        labels = self._labels(self.segments[j])
        result: tuple[Tensor, Tensor] = self.kernels.shard_softmax(
            features, labels, scale, weights.to(self.real), log_p, before, **options, mean=self.mean
        )
        return result

    def classify(self, weights: Tensor, temperature: float, names: Sequence[str]) -> dict[str, Tensor]:
        """The named ones of "probs" [n, K], "predictions" [n], "confidences" [n].

        Samples that are ignored get 0, -100 and 0.
        """
        n = len(self.features)
        shapes = {"probs": (n, self.classes), "predictions": (n,), "confidences": (n,)}
        out = {
            name: torch.empty(
                shapes[name], dtype=torch.int64 if name == "predictions" else self.result, device=self.device
            )
            for name in names
        }
        for j, part in enumerate(self.segments):
            features, scale = self._scaled(j)
            labels = self._labels(part)
            *results, status = self.kernels.shard_classify(
                features,
                labels,
                scale,
                weights.to(self.real),
                temperature=temperature,
                probs="probs" in names,
                mean=self.mean,
            )
            code, position, value = status.tolist()
            if code:
                raise ValueError(refusal(code, position, value, self.classes))
            for name, result in zip(shapes, results, strict=True):
                if name in names:
                    out[name][part] = result
        return out

    def drop_cache(self) -> None:
        self.cache = self.cache[:0].clone()
        self.scratch = self.scratch[:0].clone()

    # Pieces ---------------------------------------------------------------------------------------

    def _cut(self, rows: int) -> Iterator[slice]:
        for first in range(0, len(self.features), rows):
            yield slice(first, min(first + rows, len(self.features)))

    def _order(self) -> Sequence[int]:
        """Forth and back: of a pool that memory does not hold, the end that was read last is read first."""
        self.forward = not self.forward
        order = range(len(self.segments))
        return order if self.forward else order[::-1]

    def _most_rows(self) -> int:
        """Of a segment: fewer where its rows are converted."""
        wide = self.real != self.result
        return min(SEGMENT_ROWS, max(SEGMENT_NUMBERS // self.features.shape[1], 1)) if wide else SEGMENT_ROWS

    def _rows(self, part: slice) -> Tensor:
        check_mapped(self.features)
        rows = self.features[part].contiguous()
        return rows.to(self.real) if self.real != self.result else rows

    def _labels(self, part: slice) -> Tensor:
        return self.labels[part].to(torch.int64).contiguous()

    def _scaled(self, j: int) -> tuple[Tensor, Tensor]:
        part = self.segments[j]
        if self.extreme[j]:
            z = unit_length(self._rows(part).to(self.real))
            return torch.where(self.labels[part, None] == PADDING, 0, z), torch.ones_like(self.scale[part])
        return self._rows(part), self.scale[part]

    def _is_extreme(self, part: slice) -> bool:
        """Whether these rows are normalised before use, in every pass."""
        near = any(far.start < part.stop and part.start < far.stop for far in self.far_rows)
        return near and bool(((self.scale[part] == 0) & (self.labels[part] != PADDING)).any())

    def _kept(self, j: int) -> tuple[Tensor, Tensor | None]:
        """Memory for log p and, if it is kept, p before."""
        part = self.segments[j]
        size = lanes(part.stop - part.start) * self.classes
        both = self.cache[j] if j < len(self.cache) else self.scratch
        half = len(both) // 2
        return both[:size], both[half : half + size] if self.keep_before else None


def lanes(rows: int) -> int:
    return -(-rows // LANES) * LANES


class TorchKernels:
    """The operators shard_* in plain torch: what GPUs run, and what the tests hold the native ones to.

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
