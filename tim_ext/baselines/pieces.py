"""From a batch of tasks to dense pieces of it and back: what all baselines share.

A baseline is a function `solve(Piece) -> Solution`. A piece holds tasks of the same number of classes, padded
to the same number of samples. Pieces bound the memory, and keep what a method works on in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from ..solver.batch import Batch, check_status, make_batch, make_result, refuse
from ..solver.inputs import PADDING, QUERY
from ..solver.params import TimParams, check_outputs
from ..solver.refusals import RESULT_NOT_FINITE, find_problem
from ..solver.result import Result
from ..transforms import Transform, blank, l2_normalize, make_transform
from .operators import Source, native
from .threads import for_each

PIECE_BYTES = 8 * 2**20  # of features, or of results; a task that is larger makes a piece of its own

Task = tuple[Any, Any, Any, int | None]  # features, labels, index, num_classes as the user passed them


class Piece(NamedTuple):
    """B tasks of one kind with K classes; N is the size of the largest. Methods do not write to it."""

    z: Tensor  # [B, N, d]  transformed features, 0 for padding
    labels: Tensor  # [B, N]
    num_classes: int
    kind: float

    @property
    def support(self) -> Tensor:
        return self.labels >= 0  # [B, N]

    @property
    def query(self) -> Tensor:
        return self.labels == QUERY  # [B, N]

    @property
    def one_hot(self) -> Tensor:
        """y_ki on the support, 0 elsewhere: [B, K, N]"""
        classes = torch.arange(self.num_classes, device=self.labels.device)[:, None]
        return (self.labels[:, None] == classes).to(self.z)


class Solution(NamedTuple):
    probs: Tensor  # [B, K, N]  classes first: a softmax over a short last dimension is ten times slower
    weights: Tensor  # [B, K, d]
    iterations: Tensor | int  # [B]


# a method as an operator, on tasks with so many classes: its solution, and whether their features are finite
Operator = Callable[[Source, int], tuple[Solution, Tensor]]


@torch.no_grad()
def solve_tasks(
    solve: Callable[[Piece], Solution],
    task: Task,
    transform: Any,
    base_mean: Any,
    outputs: Sequence[str],
    kinds_of: Callable[[Batch], Sequence[float]] = lambda batch: [0.0] * len(batch.sizes),
    operator: Operator | None = None,
) -> Result:
    """Runs `solve` on all tasks, piece by piece; on the CPU the operator instead, if there is one.

    The kind of a task is a hyper-parameter of its own.
    """
    outputs = check_outputs(outputs)
    batch = make_batch(*task)
    change = make_transform(transform, base_mean, batch.features)
    on_cpu = native(batch.features)  # features are looked at where they are gathered
    check_values(batch, features_too=not on_cpu)
    features, change = (batch.features, change) if on_cpu else transform_pool(batch, change)
    operator = operator if on_cpu else None
    results = _Results(batch, outputs)

    def run(members: tuple[Tensor, float]) -> None:
        tasks, kind = members
        samples, rows, labels = samples_of(batch, tasks)
        source, count = Source(features, rows, labels, change), int(batch.classes[tasks[0]])
        if operator is None:
            z, finite = source.gather()
        else:
            solution, all_finite = operator(source, count)
            finite = bool(all_finite.all())
        if not finite:
            check_values(batch)
        if operator is None:
            solution = solve(Piece(z, labels, count, kind))
        results.put(tasks, samples, labels, solution)

    total, threads = len(batch.sizes), torch.get_num_threads()
    if operator is None:
        parts = split(batch, kinds_of(batch), batch.features.shape[1], total)
    else:  # enough pieces that none of their operations is split among threads: see threads.py
        most = total if threads == 1 else -(-total // (2 * threads))
        parts = split(batch, kinds_of(batch), 4 * max(batch.counts), most)
    for_each(run, list(parts), batch.features.device)
    check_status(batch, results.status)
    return make_result(batch, TimParams(), outputs, *results.flat())


def transform_pool(batch: Batch, change: Transform) -> tuple[Tensor, Transform]:
    """Features and what is left to do to them: a pool whose rows serve several tasks is transformed once."""
    rows_only = change.rows_only
    if batch.rows is None or rows_only == 0 or len(batch.features) > len(batch.rows):
        return batch.features, change
    done = change._replace(steps=change.steps[:rows_only])
    return done(batch.features), change._replace(steps=change.steps[rows_only:])


# Pieces -------------------------------------------------------------------------------------------


def split(batch: Batch, kinds: Sequence[float], numbers: int, most: int) -> Iterator[tuple[Tensor, float]]:
    """Tasks [B] of each piece, of one kind and one number of classes and of similar size, and their kind.

    A sample counts as so many numbers; a piece has at most so many tasks.
    """
    bytes_per_sample = numbers * (8 if batch.features.dtype == torch.float64 else 4)
    order = sorted(range(len(batch.sizes)), key=lambda t: (kinds[t], batch.counts[t], batch.sizes[t]))
    for (kind, _), group in groupby(order, key=lambda t: (kinds[t], batch.counts[t])):
        piece: list[int] = []
        for t in group:
            full = (len(piece) + 1) * batch.sizes[t] * bytes_per_sample > PIECE_BYTES
            if piece and (full or len(piece) == most):
                yield torch.tensor(piece, device="cpu"), kind
                piece = []
            piece.append(t)
        yield torch.tensor(piece, device="cpu"), kind


def support_sizes(batch: Batch) -> list[int]:
    """The number of support samples of each task."""
    before = torch.cumsum(batch.labels >= 0, 0)  # [R]
    ends = before[batch.offsets[1:].to(before.device) - 1].cpu()
    sizes: list[int] = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    return sizes


def samples_of(batch: Batch, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of some tasks [B, N]: the numbers of the samples, -1 past the last of a task; their rows and labels."""
    starts, ends = batch.offsets[tasks], batch.offsets[tasks + 1]
    samples = starts[:, None] + torch.arange(int((ends - starts).max()), device="cpu")
    samples = samples.masked_fill_(samples >= ends[:, None], -1).to(batch.labels.device)
    labels = batch.labels[samples].masked_fill_(samples < 0, PADDING)
    return samples, samples if batch.rows is None else batch.rows[samples], labels


class _Results:
    """The flat results of all tasks, filled piece by piece, in any order."""

    def __init__(self, batch: Batch, outputs: Sequence[str]) -> None:
        features, device = batch.features, batch.labels.device
        dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
        sizes, counts = torch.tensor(batch.sizes, device="cpu"), batch.classes
        self.probs_start = torch.cumsum(sizes * counts, 0) - sizes * counts  # [T]
        self.weights_start = torch.cumsum(counts, 0) - counts  # [T]
        probs_size = int((sizes * counts).sum()) if "probs" in outputs else 0
        weights_rows = int(counts.sum()) if "weights" in outputs else 0
        self.probs = torch.empty(probs_size, dtype=dtype, device=device)
        self.predictions = torch.empty_like(batch.labels)
        self.weights = torch.empty(weights_rows, features.shape[1], dtype=dtype, device=device)
        self.proportions = torch.empty(int(counts.sum()), dtype=dtype, device=device)
        self.iterations = torch.empty(len(sizes), dtype=torch.int64, device=device)
        self.status = torch.zeros(len(sizes), 3, dtype=torch.int64, device=device)

    def put(self, tasks: Tensor, samples: Tensor, labels: Tensor, solution: Solution) -> None:
        padding, query = labels == PADDING, labels == QUERY  # [B, N]
        count, device = solution.probs.shape[1], samples.device
        predictions = solution.probs.max(dim=1).indices.masked_fill_(padding, PADDING)
        probs = blank(solution.probs.mT, padding)  # [B, N, K]
        inside = slice(None) if bool((samples >= 0).all()) else samples >= 0
        self.predictions[samples[inside]] = predictions[inside]
        if self.probs.numel():
            size = samples.shape[1] * count
            places = self.probs_start[tasks, None].to(device) + torch.arange(size, device=device)
            self.probs[places.view_as(probs)[inside]] = probs[inside]
        places = self.weights_start[tasks, None].to(device) + torch.arange(count, device=device)
        total = query.sum(dim=1, keepdim=True).clamp(min=1)
        self.proportions[places] = (solution.probs * query[:, None]).sum(dim=2) / total
        if self.weights.numel():
            self.weights[places] = solution.weights
        finite = probs.isfinite().flatten(1).all(dim=1)
        tasks = tasks.to(device)
        self.iterations[tasks] = torch.as_tensor(solution.iterations, device=device)
        self.status[tasks[~finite], 0] = RESULT_NOT_FINITE

    def flat(self) -> tuple[Tensor, ...]:
        history = self.weights.new_empty(len(self.iterations), 0, 3)
        return self.probs, self.predictions, self.weights, self.iterations, history, self.proportions


# What only the values show ------------------------------------------------------------------------


def check_values(batch: Batch, features_too: bool = True) -> None:
    """Refuses the first task that `find_problem` finds fault with, looking at all tasks at once.

    Without the features, it looks at them if something else is wrong: the first of all faults counts.
    """
    labels, device = batch.labels, batch.labels.device
    counts = batch.classes.to(device)
    task = torch.repeat_interleave(torch.tensor(batch.sizes, device=device))  # [R]  of each sample
    used = labels != PADDING
    wrong = (labels < QUERY) | (labels >= counts[task])
    if batch.rows is None:
        if features_too:
            wrong |= ~finite_rows(batch.features)
    else:
        outside = (batch.rows < 0) | (batch.rows >= len(batch.features))
        wrong |= outside
        if features_too:
            rows = batch.rows.masked_fill(outside, 0)
            of_pool = len(batch.features) <= len(rows)  # of a larger one, only what the tasks use
            finite = finite_rows(batch.features)[rows] if of_pool else finite_rows(batch.features, rows)
            wrong |= ~finite
    wrong &= used

    start = torch.cumsum(counts, 0) - counts
    known = (labels >= 0) & ~wrong
    shots = torch.bincount((start[task] + labels)[known], minlength=int(counts.sum()))
    empty = torch.repeat_interleave(counts)[shots == 0]  # tasks of the classes without support
    refused = torch.cat([task[wrong], empty])
    if refused.numel() and not features_too:
        check_values(batch)
    if refused.numel():
        t = int(refused.min())
        rows, task_labels, count = next(islice(batch.tasks(), t, None))
        refuse(batch, t, *find_problem(batch.features, rows, task_labels, count))


def finite_rows(features: Tensor, rows: Tensor | None = None) -> Tensor:
    """Of all rows [M], or of some [R]: the length of a row is finite if all its numbers are, unless their
    squares overflow. A block at a time, as torch converts half types before it sums."""
    total = len(features) if rows is None else len(rows)
    length_type = torch.float64 if features.dtype == torch.float64 else torch.float32
    step = max(PIECE_BYTES // (features.shape[1] * length_type.itemsize), 1)
    finite = torch.empty(total, dtype=torch.bool, device=features.device)
    for start in range(0, total, step):
        part = slice(start, start + step)
        block = features[part] if rows is None else features.index_select(0, rows[part])
        known = vector_norm(block, dim=1, dtype=length_type).isfinite()
        known[~known] = block[~known].isfinite().all(dim=1)
        finite[part] = known
    return finite


# The equations they share -------------------------------------------------------------------------


def prototypes(z: Tensor, y: Tensor) -> Tensor:
    """w_k = sum_i y_ki z_i / sum_i y_ki: [B, K, d]"""
    return y @ z / y.sum(dim=2)[..., None]


def cosines(z: Tensor, w: Tensor) -> Tensor:
    """cos(w_k, z_i): [B, K, N]; 0 for a zero vector"""
    return l2_normalize(w) @ l2_normalize(z).mT


def divisor(lengths: Tensor) -> Tensor:
    """For a division that leaves zero vectors zero; a length that overflowed gives NaN, which is refused."""
    return torch.where(lengths > 0, lengths, 1).masked_fill_(lengths.isinf(), torch.nan)


def squared_distances(z: Tensor, w: Tensor) -> Tensor:
    """||w_k - z_i||^2: [B, K, N]"""
    squares = vector_norm(w, dim=2)[..., None].square() + vector_norm(z, dim=2)[:, None].square()
    return torch.baddbmm(squares, w, z.mT, alpha=-2).clamp_(min=0)


def gram_matrix(z: Tensor) -> Tensor | None:
    """Z Z^T [B, N, N], where `nearness` by it takes fewer multiplications: K N^2 instead of 2 K N d"""
    return z @ z.mT if z.shape[1] <= 2 * z.shape[2] else None


def nearness(c: Tensor, z: Tensor, gram: Tensor | None) -> Tensor:
    """-||w_k - z_i||^2 for w_k = sum_j c_kj z_j, but for what is the same for all k: [B, K, N]"""
    dot = c @ z @ z.mT if gram is None else c @ gram  # w_k . z_i
    return 2 * dot - (c * dot).sum(dim=2, keepdim=True)


def first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of the samples of mask [B, N], their positions in the piece flattened to [B N, ..]: [B, M], with M that
    of the task that has most of them, and where a task has that many: [B, M]."""
    total, size = mask.shape
    most = int(mask.sum(dim=1).max())
    order = (~mask).int().argsort(dim=1, stable=True)[:, :most]
    places = order + size * torch.arange(total, device=mask.device)[:, None]
    return places, mask.take_along_dim(order, dim=1)


def take(tensor: Tensor, places: Tensor) -> Tensor:
    """Of tensor [B, N, d], the samples at places [B, M]: [B, M, d]"""
    return tensor.flatten(0, 1).index_select(0, places.flatten()).view(*places.shape, tensor.shape[2])
