"""The graph of nearest neighbours by its edges, and (I - r S)^-1 c: `tim_ext.reference.smooth`, sparse."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from .params import AUTO

LEAST_DEGREE = 1e-9


def smoothing_reach(smoothing: float | str, support: int, samples: int, num_classes: int) -> float:
    """r; "auto": 0.7 s^-0.2 with s support samples per class; with n > 100 samples per class in all longer,
    1 - r = (1 - 0.7 s^-0.2) (100 / n)^1/2, but at most 0.9
    """
    if smoothing != AUTO:
        return float(smoothing)
    reach: float = 0.7 * (support / num_classes) ** -0.2
    longer = 1 - (1 - reach) * math.sqrt(100 / max(samples / num_classes, 100))
    return max(reach, min(longer, 0.9))


def neighbour_count(samples: int, num_classes: int) -> int:
    """k = N / 2K, rounded, 3 to 10; all others of a task that has fewer"""
    return min(max(3, min(10, (samples + num_classes) // (2 * num_classes))), samples - 1)


class Graph(NamedTuple):
    """r S by its rows: the entries start[i] .. start[i + 1] - 1 are those of row i."""

    start: Tensor  # [N + 1]
    column: Tensor  # [E]
    value: Tensor  # [E]
    degree: Tensor  # [N] D_i


def make_graph(value: Tensor, row: Tensor, reach: float) -> Graph:
    """r S = r D^-1/2 A D^-1/2,  a_ij = (b_ij + b_ji) / 2,  b_ij = cos_ij^3 from value [N, k] and row [N, k]

    A row of it is first the neighbours of i, then those that i is a neighbour of.
    """
    N = len(value)
    here, place = (value > 0).nonzero().unbind(dim=1)
    there = row[here, place]
    half = value[here, place].double() ** 3 / 2
    rows = torch.cat([here, there])
    degree = torch.bincount(rows, torch.cat([half, half]), minlength=N).clamp(min=LEAST_DEGREE)
    entries = (reach * (degree[here] * degree[there]).rsqrt() * half).to(value.dtype)
    start = torch.zeros(N + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(rows, minlength=N), 0, out=start[1:])
    order = rows.argsort(stable=True)
    columns, values = torch.cat([there, here])[order], torch.cat([entries, entries])[order]
    return Graph(start, columns, values, degree.to(value.dtype))


def chebyshev_steps(reach: float, dtype: torch.dtype) -> int:
    """Until the error, which falls by (1 - sqrt(1 - r^2)) / r with each step, is below the rounding."""
    factor = (1 - math.sqrt(1 - reach * reach)) / reach
    return 2 + max(0, int(math.log(torch.finfo(dtype).eps / 16) / math.log(factor)))


def chebyshev(c: Tensor, graph: Graph, reach: float, steps: int) -> Tensor:
    """y_n = y_(n-2) + w_n (r S y_(n-1) + c - y_(n-2))

    with w_1 = 1, w_2 = 2 / (2 - r^2), w_(n+1) = 1 / (1 - w_n r^2 / 4), from y_0 = 0.
    """
    now, before = torch.zeros_like(c), torch.zeros_like(c)
    factor = 1.0
    for step in range(1, steps + 1):
        if step == 2:
            factor = 2 / (2 - reach * reach)
        elif step > 2:
            factor = 1 / (1 - factor * reach * reach / 4)
        before.lerp_(times(graph, now).add_(c), factor)
        now, before = before, now
    return now


def times(graph: Graph, y: Tensor) -> Tensor:
    """r S y, for y [N, columns]"""
    return embedding_bag(
        graph.column, y, graph.start, mode="sum", per_sample_weights=graph.value, include_last_offset=True
    )
