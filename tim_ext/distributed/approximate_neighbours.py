"""Neighbours in a pool too large to compare all of its rows: the optional faiss, in one process.

An inverted file: the unit vectors are put into LISTS sqrt(N) cells by k-means, and each is compared with the
rows of the PROBED cells nearest to it. The cosines of what is found are then computed as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import require

LISTS, PROBED = 4, 32
TRAINED_ON = 64  # rows of each cell
ROWS = 4096  # searched in one go
SEED = 1234


def check_alone(processes: int, samples: int, most: int) -> None:
    """Refuses so many samples where they cannot be compared; as if by all ranks, which all know it."""
    expected = f"smoothing: expected at most {most:,} samples, each of which is compared with every other"
    instead = "smoothing=0 has no limit (tim-ext label: --method adm)"
    if processes > 1:
        raise ValueError(f"{expected}, over several processes, got {samples:,}; {instead}")
    try:
        require("faiss", "faiss")
    except ModuleNotFoundError as error:
        raise ValueError(f"{expected}, got {samples:,}, and {error}; {instead}") from error


def approximate_neighbours(c: Tensor, nearest: int, tick: Callable[[], object]) -> tuple[Tensor, Tensor]:
    """Of each row of c [N, d]: cosines [N, k], the largest first, and rows [N, k]."""
    faiss: Any = require("faiss", "faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        return _search(faiss, c, nearest, tick)
    finally:
        faiss.omp_set_num_threads(before)


def _search(faiss: Any, c: Tensor, nearest: int, tick: Callable[[], object]) -> tuple[Tensor, Tensor]:
    N, d = c.shape
    cells = max(1, min(round(LISTS * N**0.5), N))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, cells, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = PROBED
    index.cp.seed, index.cp.min_points_per_centroid = SEED, 1
    some = (
        torch.randperm(N, generator=torch.Generator().manual_seed(SEED))[: TRAINED_ON * cells].sort().values
    )
    index.train(_unit(c[some.to(c.device)]).numpy())
    parts = [slice(start, start + ROWS) for start in range(0, N, ROWS)]
    for part in parts:
        index.add(_unit(c[part]).numpy())
        tick()
    value = c.new_zeros(N, nearest)
    row = torch.zeros(N, nearest, dtype=torch.int64, device=c.device)
    for part in parts:
        _, found = index.search(_unit(c[part]).numpy(), nearest + 1)
        value[part], row[part] = _cosines(c, part.start, torch.from_numpy(found).to(c.device), nearest)
        tick()
    return value, row


def _unit(c: Tensor) -> Tensor:
    return torch.nn.functional.normalize(c.float(), dim=1).cpu().contiguous()


def _cosines(c: Tensor, first: int, found: Tensor, nearest: int) -> tuple[Tensor, Tensor]:
    """Of the rows from `first` on with those found [n, k + 1], -1 for none: largest first, then by row."""
    found = found.sort(dim=1).values
    x = torch.nn.functional.normalize(c[first : first + len(found)], dim=1)
    itself = torch.arange(first, first + len(found), device=c.device)
    cosines = torch.stack(
        [
            (x * torch.nn.functional.normalize(c[one.clamp(min=0)], dim=1))
            .sum(dim=1)
            .masked_fill((one < 0) | (one == itself), 0)
            for one in found.T
        ],
        dim=1,
    )
    order = cosines.clamp(min=0).sort(dim=1, descending=True, stable=True)
    kept = order.indices[:, :nearest]
    return order.values[:, :nearest], found.gather(1, kept)
