"""Rows that come after a smoothed solve: what the smoothing makes of a row that moves no other.

    y_new = z_new + r sum_j s_new,j y_j,    y = (I - r S)^-1 z  of the samples of the solve
    s_new,j = a_new,j (D_new D_j)^-1/2,     a_new,j = max(0, cos(z_new - mean, z_j - mean))^3

then the length of z_new: `tim_ext.reference.smooth`. a_new,j counts where j is among the nearest of the new
row and the new row would be among those of j, half where only one of the two holds, and else is 0. A row of
the solve is found again, so that it can get what it got there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import reference
from .graph import chebyshev, chebyshev_steps, make_graph, neighbour_count

BLOCK = 1 << 24  # numbers at a time
SAME = {torch.float32: 1e-6, torch.float64: 1e-12}  # of its largest value, a row may be off: rounding


@dataclass(frozen=True, eq=False)
class Extension:
    """The samples of a solve, and what is needed to smooth others among them."""

    reach: float
    nearest: int
    z: Tensor  # [N, d] as the solver took them
    y: Tensor  # [N, d] smoothed, before they get their length back
    degree: Tensor  # [N] D_j
    least: Tensor  # [N] cosine to the farthest neighbour

    def smooth(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z [n, d] smoothed; [n] the sample of the solve that the row equals, the first of them, or -1."""
        known, y, degree, least = (tensor.to(z) for tensor in (self.z, self.y, self.degree, self.least))
        mean = known.mean(dim=0)
        x = _unit(known - mean)
        smoothed, same = torch.empty_like(z), torch.empty(len(z), dtype=torch.int64)
        size = max(1, BLOCK // max(len(known), self.nearest * z.shape[1]))
        for block in (slice(start, start + size) for start in range(0, len(z), size)):
            part = z[block]
            cos = _unit(part - mean) @ x.T  # [n, N]
            nearest, near = cos.topk(self.nearest, dim=1)
            a = ((cos >= nearest[:, -1:]).to(z) + (cos >= least).to(z)) / 2 * cos.clamp(min=0) ** 3
            s = a * (a.sum(dim=1, keepdim=True).clamp(min=1e-9) * degree).rsqrt()
            length = part.norm(dim=1, keepdim=True)
            smoothed[block] = length * reference.unit_length(part + self.reach * (s @ y))
            apart = (known[near] - part[:, None]).abs().amax(dim=2)  # [n, k]
            equal = apart <= SAME[self.z.dtype] * known[near].abs().amax(dim=2)
            first = torch.where(equal, near, len(known)).amin(dim=1)
            same[block] = torch.where(first < len(known), first, -1)
        return smoothed, same


def extend(z: Tensor, num_classes: int, reach: float) -> Extension:
    """For a solve of z [N, d] (unit length or not, as the solver took them) that smooths with this reach."""
    nearest = neighbour_count(len(z), num_classes)
    cos, near = _neighbours(z, nearest)
    graph = make_graph(cos, near, reach)
    y = chebyshev(z, graph, reach, chebyshev_steps(reach, z.dtype))
    return Extension(reach, nearest, z, y, graph.degree, cos[:, -1].clone())


def _neighbours(z: Tensor, nearest: int) -> tuple[Tensor, Tensor]:
    """Cosines [N, k], the largest first, and rows [N, k]; of equally near neighbours any."""
    rows = len(z)
    x = _unit(z - z.mean(dim=0))
    cosines, near = z.new_empty(rows, nearest), torch.empty(rows, nearest, dtype=torch.int64)
    size = max(1, BLOCK // rows)
    for start in range(0, rows, size):
        block = slice(start, min(start + size, rows))
        cos = x[block] @ x.T
        cos[torch.arange(len(cos)), torch.arange(start, block.stop)] = -torch.inf
        cosines[block], near[block] = cos.topk(nearest, dim=1)
    return cosines, near


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.clamp(min=torch.finfo(x.dtype).tiny)
