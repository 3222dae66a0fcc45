"""What the machine can do: multiply-adds in registers, bytes from memory. The report judges solvers by it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tim_ext  # noqa: F401  (registers the operators)

from .comparison import Candidate, Comparison
from .conftest import suite

FLOATS = 32 * 2**20  # 128 MiB: more than the caches hold
THREADS = range(1, min(2, torch.get_num_threads()) + 1)
Arrays = tuple[Tensor, Tensor, Tensor]


def make(device: torch.device) -> Arrays:
    return torch.zeros(FLOATS), torch.full((FLOATS,), 2.0), torch.full((FLOATS,), 3.0)


def peak(double: bool) -> Any:
    return lambda arrays: torch.ops.tim_ext.cpu_peak(0.02, double)


def triad(arrays: Arrays) -> Tensor:
    a, b, c = arrays
    return torch.add(b, c, alpha=0.5, out=a)


def copy(arrays: Arrays) -> Tensor:
    a, b, _ = arrays
    return a.copy_(b)


def check(name: str, result: Any, arrays: Arrays) -> None:
    if isinstance(result, float):
        assert result > 1e8, f"{result:.3g} per second"
    else:
        expected = 2.0 if "copy" in name else 3.5
        assert result[0] == result[-1] == expected, f"got {result[0]}, expected {expected}"


CANDIDATES = {}
for count in THREADS:
    on = f"{count} thread{'s' * (count > 1)}"
    for dtype in ("float32", "float64"):
        CANDIDATES[f"multiply-adds, {dtype}, {on}"] = Candidate(
            peak(dtype == "float64"), multiply_adds=1e9, threads=count, rate=True
        )
    CANDIDATES[f"copy, {on}"] = Candidate(copy, bytes=2 * 4 * FLOATS, threads=count)
    CANDIDATES[f"triad, {on}"] = Candidate(triad, bytes=3 * 4 * FLOATS, threads=count)
COMPARISONS = [Comparison("peaks", make, CANDIDATES, check, quick=True, seconds=3.0)]


@suite("machine", COMPARISONS)
def test_machine(run, comparison, candidate, device):
    run(comparison, candidate, device)
