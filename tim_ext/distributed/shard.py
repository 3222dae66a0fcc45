"""The samples of one rank: half an iteration of TIM on them at a time, segment by segment.

A segment is a range of rows small enough that nothing the size of the shard is ever allocated, apart from
log p of as many segments as `cache_bytes` holds. The kernels are the operators shard_* (csrc/ops.cpp) on a
CPU and `TorchKernels`, the same functions in plain torch, on a GPU. Sums are float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files.mapped import check_mapped
from ..reference import unit_length
from ..solver import native
from ..solver.inputs import PADDING
from ..solver.refusals import refusal
from ..solver.roots import LEAST
from .torch_kernels import TorchKernels, rows_of

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
        self.forward = self.roots = False
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

    def has_negative(self) -> bool:
        """Whether a sample that counts has a negative value."""
        return any(
            bool(((self._rows(part).amin(dim=1) < 0) & (self.labels[part] != PADDING)).any())
            for part in self._cut(self._most_rows())
        )

    def take_roots(self) -> None:
        """From here on samples are sqrt(x + 1e-6), a segment of them at a time."""
        self.roots, self.far_rows = True, []
        self.measure()

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
        for _, z in self.samples():
            total[:-1] += z.sum(dim=0, dtype=torch.float64)
            total[-1] += z.square().sum(dtype=torch.float64)
        return total

    def samples(self) -> Iterator[tuple[slice, Tensor]]:
        """z_i = scale_i x_i, a block of rows at a time; 0 where they are ignored."""
        rows = max(SUM_NUMBERS // (self.features.shape[1] + 1), 1)
        for j, part in enumerate(self.segments):
            features, scale = self._scaled(j)
            for first in range(0, len(features), rows):
                some = slice(first, min(first + rows, len(features)))
                z = rows_of(features[some], scale[some], self.real, None)
                yield slice(part.start + some.start, part.start + some.stop), z

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
        wide = self.real != self.result or self.roots
        return min(SEGMENT_ROWS, max(SEGMENT_NUMBERS // self.features.shape[1], 1)) if wide else SEGMENT_ROWS

    def _rows(self, part: slice) -> Tensor:
        check_mapped(self.features)
        rows = self.features[part].contiguous()
        if self.roots:
            rows = rows.to(self.result).clamp(min=0).add_(LEAST).sqrt_()
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
