"""Smoothing over the graph of nearest neighbours, of samples that are spread over ranks, once per solve.

    neighbours   exact, from all cosines: every rank compares its rows with a block of rows after the other,
                 which the rank that has them broadcasts; N n d multiply-adds for the n rows of a rank
    graph        the lists of all ranks, on every rank: they are short
    y = M c      M = (I - r S)^-1, c_i = z_i - mean, by Chebyshev's iteration: each rank has a share of the
                 columns of all rows, and the graph, so that only the columns travel, once there and once back

solver/graph.py has graph and iteration, csrc/cpu/kernels/graph-inl.h the same in one process. Memory of a
rank: a copy of its rows, BYTES_PER_SAMPLE for each of all N samples (the graph), and 100 MB or so, whatever
N, for blocks and columns. Beyond MOST_COMPARED samples the neighbours are those of approximate_neighbours.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..solver.graph import Graph, chebyshev, chebyshev_steps, make_graph, neighbour_count
from ..solver.inputs import PADDING
from ..solver.refusals import RESULT_NOT_FINITE, refusal
from .approximate_neighbours import approximate_neighbours, check_alone
from .ranks import Ranks
from .shard import Shard

MOST_COMPARED = 250_000  # samples, each of which is compared with every other
# Every product has this shape, with rows of 0 where there are fewer: a cosine is then the same, to the bit,
# wherever its rows lie, and rows that are there twice are equally near on any number of ranks.
TILE, BLOCK = 1024, 4096  # rows of this rank, rows of any
BYTES_PER_SAMPLE = 1500  # at most, while the graph is made; 250 are kept
COLUMN_NUMBERS = 1 << 21  # of the columns that are smoothed at a time
LEAST_COLUMNS = 8


class Smoothed(NamedTuple):
    shard: Shard  # z'_i - shift
    shift: Tensor  # [d], a multiple of the mean, float64 on the CPU


class Lists(NamedTuple):
    """The nearest of each row, the nearest first; what is not positive is no neighbour."""

    value: Tensor  # [n, k] cosines
    row: Tensor  # [n, k] by the numbers of all samples of all ranks


def smooth_shard(
    ranks: Ranks,
    shard: Shard,
    mean: Tensor,
    samples: int,
    classes: int,
    reach: float,
    tick: Callable[[], object],
) -> Smoothed:
    """The samples of this rank smoothed with those of all ranks; `tick` is called after every block.

    mean [d] is that of all samples, `samples` how many there are on all ranks without those that are ignored.
    """
    if samples > MOST_COMPARED:
        check_alone(ranks.size, samples, MOST_COMPARED)
    ranks.stage = "while the samples are smoothed"
    mean = mean.to(shard.device, shard.real)
    (c, squares), facts = ranks.agree(lambda: (centred_copy(shard, mean), {"rows": len(shard.features)}))
    counts = [int(one["rows"]) for one in facts]
    nearest = neighbour_count(samples, classes)
    if samples > MOST_COMPARED:
        lists = Lists(*approximate_neighbours(c, nearest, tick))
    else:
        lists = exact_neighbours(ranks, c, counts, nearest, tick)
    everyone = all_lists(ranks, lists, counts)
    steps = chebyshev_steps(reach, shard.real)
    (graph, sums), _ = ranks.agree(lambda: (graph_and_sums(everyone, reach, steps), {}))
    smooth_columns(ranks, c, counts, graph, reach, steps, tick)
    first = sum(counts[: ranks.rank])
    shift = rescale(ranks, c, squares, sums[first : first + len(c)].to(c.device), mean, samples)
    smoothed = Shard(c, shard.labels, normalize=False)
    smoothed.result = shard.result
    ranks.do(partial(measure, smoothed, classes))
    return Smoothed(smoothed, shift)


def measure(shard: Shard, classes: int) -> None:
    code, *_ = shard.measure()
    if code:
        raise ValueError(refusal(RESULT_NOT_FINITE, 0, 0, classes))


def centred_copy(shard: Shard, mean: Tensor) -> tuple[Tensor, Tensor]:
    """z_i - mean [n, d], 0 for samples that are ignored, and ||z_i||^2 [n] in float64."""
    c = torch.empty(shard.features.shape, dtype=shard.real, device=shard.device)
    squares = torch.empty(len(c), dtype=torch.float64, device=shard.device)
    for part, z in shard.samples():
        squares[part] = z.double().square().sum(dim=1)
        c[part] = torch.where((shard.labels[part] == PADDING)[:, None], 0, z - mean)
    return c, squares


# Neighbours -----------------------------------------------------------------------------------------


def exact_neighbours(
    ranks: Ranks, c: Tensor, counts: list[int], nearest: int, tick: Callable[[], object]
) -> Lists:
    """Of the rows c [n, d] of this rank, among the rows of all ranks."""
    lists = Lists(
        c.new_zeros(len(c), nearest), torch.zeros(len(c), nearest, dtype=torch.int64, device=c.device)
    )
    mine = sum(counts[: ranks.rank])
    first = 0
    for source, count in enumerate(counts):
        for start in range(0, count if nearest else 0, BLOCK):
            rows = min(BLOCK, count - start)
            block = ranks.broadcast(source, lambda: c[start : start + rows], (rows, c.shape[1]), c.dtype)  # noqa: B023
            ranks.do(lambda: compare(lists, c, block.to(c.device), first + start - mine, mine))  # noqa: B023
            ranks.do(tick)
        first += count
    return Lists(lists.value * inverse_lengths(c)[:, None], lists.row)


def compare(lists: Lists, c: Tensor, block: Tensor, offset: int, mine: int) -> None:
    """Rows c [n, d] with a block [b, d] of rows whose first is row `offset` of c, were it one of them. Blocks
    come in the order of the rows, so that of equally near ones those that are there already come first."""
    width = len(block)
    others = pad(block, (0, 0, 0, BLOCK - width))
    inverse = inverse_lengths(others)[:width]
    product = c.new_empty(TILE, BLOCK)
    for start in range(0, len(c), TILE):
        part = slice(start, min(start + TILE, len(c)))
        n = part.stop - part.start
        torch.mm(pad(c[part], (0, 0, 0, TILE - n)), others.T, out=product)
        tile = product[:n, :width].mul_(inverse)  # |c_i| cos_ij
        itself = torch.arange(n, device=c.device) + (start - offset)
        inside = ((itself >= 0) & (itself < width)).nonzero()[:, 0]
        tile[inside, itself[inside]] = -1
        lists.value[part], lists.row[part] = merged(lists.value[part], lists.row[part], tile, offset + mine)


def inverse_lengths(c: Tensor) -> Tensor:
    """1 / |c_i|, 0 for a row of zeros: [n]"""
    length = torch.linalg.vector_norm(c, dim=1)
    return torch.where(length > torch.finfo(c.dtype).tiny ** 0.5, 1 / length, 0)


def merged(value: Tensor, row: Tensor, tile: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of value [n, k] and tile [n, b], whose columns are rows from `first` on."""
    k = value.shape[1]
    more, columns = largest(tile, k, value[:, -1])
    order = torch.cat([value, more], dim=1).sort(dim=1, descending=True, stable=True)
    rows = torch.cat([row, columns + first], dim=1).gather(1, order.indices[:, :k])
    return order.values[:, :k], rows


def largest(tile: Tensor, k: int, limit: Tensor) -> tuple[Tensor, Tensor]:
    """The k largest of each row of the tile [n, b] above limit [n], by value, then by column."""
    found = tile.topk(min(k + 1, tile.shape[1]), dim=1)
    columns = found.indices.sort(dim=1).indices
    values, columns = found.values.gather(1, columns), found.indices.gather(1, columns)
    order = values.sort(dim=1, descending=True, stable=True)
    values, columns = order.values[:, :k], columns.gather(1, order.indices[:, :k])
    if found.values.shape[1] > k:  # which of several that equal the k-th were found is up to topk
        last = found.values[:, k - 1]
        tied = ((last == found.values[:, k]) & (last > limit)).nonzero()[:, 0]
        if len(tied):
            again = tile[tied].sort(dim=1, descending=True, stable=True)
            values[tied], columns[tied] = again.values[:, :k], again.indices[:, :k]
    return values.clamp(min=0), columns


# The graph ------------------------------------------------------------------------------------------


def all_lists(ranks: Ranks, mine: Lists, counts: list[int]) -> Lists:
    """The lists of all ranks, on the CPU: [N, k]"""
    k = mine.value.shape[1]
    gathered = [
        torch.cat([ranks.broadcast(s, lambda: one, (n, k), one.dtype).cpu() for s, n in enumerate(counts)])  # noqa: B023
        for one in mine
    ]
    return Lists(*gathered)


def graph_and_sums(lists: Lists, reach: float, steps: int) -> tuple[Graph, Tensor]:
    """r S, and sum_j M_ij [N] in float64."""
    graph = make_graph(*lists, reach)
    ones = torch.ones(len(lists.value), 1, dtype=torch.float64)
    return graph, chebyshev(ones, graph._replace(value=graph.value.double()), reach, steps)[:, 0]


# y = (I - r S)^-1 c ---------------------------------------------------------------------------------


def smooth_columns(
    ranks: Ranks,
    c: Tensor,
    counts: list[int],
    graph: Graph,
    reach: float,
    steps: int,
    tick: Callable[[], object],
) -> None:
    """c [n, d] <- (M c) [n, d], in place. Rank s smooths the columns d s / ranks to d (s + 1) / ranks."""
    d, size, total = c.shape[1], ranks.size, len(graph.start) - 1
    graph = Graph(*(one.to(c.device) for one in graph))
    ends = [d * rank // size for rank in range(size + 1)]
    width = max(LEAST_COLUMNS, COLUMN_NUMBERS // max(total, 1))
    widest = max(ends[rank + 1] - ends[rank] for rank in range(size))
    for start in range(0, widest, width):
        parts = [
            slice(min(ends[s] + start, ends[s + 1]), min(ends[s] + start + width, ends[s + 1]))
            for s in range(size)
        ]
        widths = [part.stop - part.start for part in parts]
        mine = widths[ranks.rank]
        there, back = [len(c) * w for w in widths], [n * mine for n in counts]
        got = ranks.swap(lambda: [c[:, part] for part in parts], there, back, c.dtype)  # noqa: B023

        def smoothed() -> list[Tensor]:
            columns = torch.cat([one.view(n, mine) for one, n in zip(got, counts, strict=True)])  # noqa: B023
            y = chebyshev(columns.to(c.device), graph, reach, steps) if mine else columns  # noqa: B023
            return list(y.split_with_sizes(counts))

        results = ranks.swap(smoothed, back, there, c.dtype)
        for part, result, w in zip(parts, results, widths, strict=True):
            c[:, part] = result.view(len(c), w).to(c.device)
        ranks.do(tick)


def rescale(ranks: Ranks, c: Tensor, squares: Tensor, sums: Tensor, mean: Tensor, samples: int) -> Tensor:
    """From (M c)_i, in place, to z'_i - shift,  z'_i = u_i y_i,  y_i = (M c)_i + a_i mean

    with u_i = ||z_i|| / ||y_i|| and a_i = sum_j M_ij [n]. What all samples have of the mean is left out, and
    costs no digits: shift = mean times the mean of u_i a_i, which is returned.
    """
    wide = mean.double()
    unit = torch.empty_like(squares)

    def lengths() -> Tensor:
        for start in range(0, len(c), BLOCK):
            part = slice(start, start + BLOCK)
            y, a = c[part].double(), sums[part]
            after = y.square().sum(dim=1) + 2 * a * (y @ wide) + a.square() * wide.square().sum()
            some = (squares[part] > 0) & (after > 0)
            unit[part] = torch.where(some, squares[part] / torch.where(some, after, 1), 0).sqrt()
        return (unit * sums).sum()[None]

    share = float(ranks.sum(lengths, 1)) / samples
    for start in range(0, len(c), BLOCK):
        part = slice(start, start + BLOCK)
        c[part] *= unit[part, None].to(c.dtype)
        c[part] += (unit[part] * sums[part] - share).to(c.dtype)[:, None] * mean
    return (wide * share).cpu()
