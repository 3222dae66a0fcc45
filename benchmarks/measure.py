"""Timing that a busy machine does not fool: candidates take turns, and the median of the turns counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def interleaved(candidates: Mapping[str, Callable[[], object]], seconds: float = 10.0) -> dict[str, float]:
    """Median seconds per call of each candidate, from at least 3 turns. Fast ones get more calls a turn."""
    calls, times = {}, {name: [] for name in candidates}
    for name, call in candidates.items():
        call()  # warm up
        begin = time.perf_counter()
        call()
        calls[name] = max(1, min(50, round(0.05 / (time.perf_counter() - begin))))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 3:
        for name, call in candidates.items():
            for _ in range(calls[name]):
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def peak(dtype: torch.dtype = torch.float32) -> float:
    """Multiply-adds per second on all of torch's threads: the best of a few short measurements."""
    return max(torch.ops.tim_ext.cpu_peak(0.1, dtype == torch.float64) for _ in range(5))


def adm_multiply_adds(tasks: int, samples: int, dim: int, ways: int, iterations: int = 150) -> float:
    """What the dual form is charged with: half a Gram matrix and one N x N x K product per iteration."""
    return tasks * (samples**2 * dim / 2 + iterations * samples**2 * ways)


def gd_multiply_adds(tasks: int, samples: int, dim: int, ways: int, iterations: int = 1000) -> float:
    """Two N x d x K products per iteration."""
    return tasks * iterations * 2 * samples * dim * ways
