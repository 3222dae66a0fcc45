"""How much a query looks as if it were of none of the classes: `Result.outlier`, 0 to 1.

In the space of `robust`: z~ are the samples (their square roots, if none is negative) smoothed over the graph
of nearest neighbours, M = (I - r S)^-1, D its degrees. For weights W,

    d_ik = ||z~_i - w_k||^2,   mu = median over Q of the second smallest d_ik
    x_i  = min(1, min_k d_ik / mu) on Q, 0 on S
    s    = M D^1/2 x / M D^1/2 1         a mean of x over what i reaches in the graph
    o(W) = sigmoid(12 (s - 0.65))

mu is how far a sample is from a class that is not its own, and so a foreign one from the nearest. With

    W_0  the prototypes of the support
    W_1  of `robust`, with sample weights 1 - o(W_0)^2

the score is o((W_0 + W_1) / 2): the prototypes know nothing of the pool, and a solve has followed some of the
foreign queries. `sample_weight="auto"` is

    1 - t o^4,   t = min(1, m_1 / m)

with m the solver's own marginal weight, and m_1 what the pool decided on in the solve of W_1; t = 1 where the
solver's is "auto" as well, or the proportions are given. A doubt costs nothing, and what is foreign for sure
does not count: but a solver that takes classes to be of equal size, where they are not, fills those that have
few with foreign samples first, and without these with samples of the others.

The score is computed on the CPU, task by task: a task's scores do not depend on the others, and
only their rounding does on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .batch import Batch, per_sample, refuse
from .graph import Graph, chebyshev, chebyshev_steps, make_graph, neighbour_count, smoothing_reach
from .inputs import PADDING, QUERY, real_type
from .params import AUTO, ROBUST, is_auto
from .refusals import find_problem, in_task
from .result import Result
from .roots import with_roots

SLOPE, MIDDLE = 12.0, 0.65
FOREIGN = 0.5  # a score from which a sample looks so
PARAMS = replace(ROBUST, smoothing=0.0)  # of samples that are smoothed already
BLOCK = 1 << 22  # numbers of the samples and graphs of tasks that are solved in one go
COMPARED = 1 << 24  # cosines at a time
DENSE = 400  # samples of a task whose graph is a matrix

# W [sum K_t, d] and m [T] of samples that are taken as they are, with PARAMS
Solve = Callable[[Batch], tuple[Tensor, Tensor]]


class Task(NamedTuple):
    """The samples of a task that are not padding, smoothed."""

    z: Tensor  # [N, d]
    labels: Tensor  # [N]
    classes: int  # K
    mean: Callable[[Tensor], Tensor]  # x [N] -> M D^1/2 x / M D^1/2 1
    prototypes: Tensor  # [K, d]

    def scores(self, w: Tensor) -> Tensor:
        """o(w), 0 on the support: [N]"""
        query = self.labels == QUERY
        centre = w.mean(dim=0)  # what all share would cost float32 its digits
        z, w = self.z - centre, w - centre
        lengths = [x.square().sum(dim=1) for x in (z, w)]
        distance = (lengths[0][:, None] + lengths[1] - 2 * z @ w.T).clamp(min=0)
        first, second = distance.topk(2, dim=1, largest=False).values.unbind(dim=1)
        mu = second[query].median().clamp(min=torch.finfo(distance.dtype).tiny)
        x = torch.where(query, first / mu, 0).clamp(max=1)
        return torch.where(query, torch.sigmoid(SLOPE * (self.mean(x) - MIDDLE)), 0)


def needs_outliers(outputs: Sequence[str], given: Mapping[str, Any]) -> bool:
    return "outlier" in outputs or is_auto(given["sample_weight"])


class Scores(NamedTuple):
    outlier: Tensor  # [R], of the type computed in; 0 for support and padding
    marginal: Tensor  # [R]  m_1 of the task


def inlier_weight(scores: Scores, given: Mapping[str, Any]) -> Tensor:
    """[R], sample_weight="auto" of a solver with these arguments."""
    m = given["marginal_weight"]
    if is_auto(m) or given["class_prior"] is not None:
        return 1 - scores.outlier**4
    t = (scores.marginal / max(float(m), 1e-9)).clamp(max=1)
    return 1 - t * scores.outlier**4


def solve_with_outliers(
    batch: Batch,
    outputs: Sequence[str],
    given: Mapping[str, Any],  # the arguments of a solver, by name
    weights: Solve,
    solve: Callable[[dict[str, Any]], Result],
) -> Result:
    """The caller's solve, with the scores beside it or in its sample weights."""
    scores = outlier_scores(batch, bool(given["normalize"]), weights)
    chosen = {**given, "outputs": [name for name in outputs if name != "outlier"]}
    if is_auto(given["sample_weight"]):
        chosen["sample_weight"] = per_sample(batch, inlier_weight(scores, given))
    result = solve(chosen)
    return replace(result, outlier=per_sample(batch, scores.outlier)) if "outlier" in outputs else result


def outlier_scores(batch: Batch, normalize: bool, solve: Solve) -> Scores:
    """What a solver would refuse is refused."""
    device = batch.features.device
    real = real_type(batch.features)
    check(batch)
    batch = with_roots(_on_cpu(batch))
    scores = Scores(*torch.zeros(2, len(batch.labels), dtype=real))
    places = torch.split(torch.arange(len(batch.labels)), list(batch.sizes))
    block: list[tuple[Tensor, Task]] = []
    for place, (rows, labels, count) in zip(places, batch.tasks(), strict=True):
        if not (labels == QUERY).any():
            continue
        used = labels != PADDING
        z = batch.features[rows[used]].to(real)
        block.append((place[used], _smoothed(_unit(z) if normalize else z, labels[used], count)))
        if sum(len(task.z) * (len(task.z) + task.z.shape[1]) for _, task in block) >= BLOCK:
            _score(block, scores, solve)
            block = []
    _score(block, scores, solve)
    return Scores(*(one.to(device) for one in scores))


def check(batch: Batch) -> None:
    for t, (rows, labels, count) in enumerate(batch.tasks()):
        code, position, value = find_problem(batch.features, rows, labels, count)
        if code:
            refuse(batch, t, code, position, value)
        if count < 2:
            here = in_task(t, len(batch.sizes))
            raise ValueError(f"outputs: expected two classes or more for 'outlier', got one{here}")


def _on_cpu(batch: Batch) -> Batch:
    rows = None if batch.rows is None else batch.rows.cpu()
    return batch._replace(features=batch.features.cpu(), rows=rows, labels=batch.labels.cpu())


def _score(block: list[tuple[Tensor, Task]], scores: Scores, solve: Solve) -> None:
    if not block:
        return
    tasks = [task for _, task in block]
    inliers = torch.cat([(1 - task.scores(task.prototypes).square()) * (task.labels < 0) for task in tasks])
    sizes, counts = [len(task.z) for task in tasks], [task.classes for task in tasks]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    z, labels = torch.cat([task.z for task in tasks]), torch.cat([task.labels for task in tasks])
    classes = torch.tensor(counts)
    batch = Batch(z, None, labels, offsets, classes, sizes, counts, None, sample_weight=inliers)
    weights, marginal = solve(batch)
    for (place, task), w, m in zip(block, torch.split(weights, counts), marginal, strict=True):
        scores.outlier[place] = task.scores((task.prototypes + w) / 2)
        scores.marginal[place] = m.to(scores.marginal)


# Smoothing, as `tim_ext.reference.smooth` ---------------------------------------------------------


def _smoothed(z: Tensor, labels: Tensor, count: int) -> Task:
    reach = smoothing_reach(AUTO, int((labels >= 0).sum()), len(z), count)
    c = z - z.mean(dim=0)
    graph = make_graph(*nearest_neighbours(c, neighbour_count(len(z), count)), reach)
    m = _solver(graph, reach, z.dtype)
    root = graph.degree.sqrt()
    columns = m(torch.cat([z, root[:, None]], dim=1))  # M z, M D^1/2 1
    y, below = columns[:, :-1], columns[:, -1]
    z = z.norm(dim=1, keepdim=True) * _unit(y)
    members = one_hot(labels.clamp(min=0), count).to(z) * (labels >= 0)[:, None]
    prototypes = members.T @ z / members.sum(dim=0)[:, None]
    return Task(z, labels, count, lambda x: m((root * x)[:, None])[:, 0] / below, prototypes)


def nearest_neighbours(c: Tensor, nearest: int) -> tuple[Tensor, Tensor]:
    """Of each row of c [N, d]: cosines [N, k], 0 where negative, and rows [N, k]."""
    x = _unit(c)
    parts = [_nearest_of(x, part, nearest) for part in _parts(len(x))]
    return torch.cat([value for value, _ in parts]), torch.cat([row for _, row in parts])


def _nearest_of(x: Tensor, part: slice, nearest: int) -> tuple[Tensor, Tensor]:
    cos = x[part] @ x.T
    own = torch.arange(part.start, part.start + len(cos))
    cos[torch.arange(len(cos)), own] = -torch.inf
    value, row = cos.topk(nearest, dim=1)
    return value.clamp(min=0), row


def _parts(total: int) -> Iterator[slice]:
    step = max(1, COMPARED // total)
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def _solver(graph: Graph, reach: float, real: torch.dtype) -> Callable[[Tensor], Tensor]:
    """c [N, columns] -> (I - r S)^-1 c"""
    N = len(graph.degree)
    if N > DENSE:
        steps = chebyshev_steps(reach, real)
        return lambda c: chebyshev(c, graph, reach, steps)
    rows = torch.arange(N).repeat_interleave(graph.start.diff())
    matrix = torch.eye(N, dtype=real).index_put_((rows, graph.column), -graph.value, accumulate=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    return lambda c: inverse @ c


def _unit(x: Tensor) -> Tensor:
    """Scaled first, so that no square overflows; a zero vector stays zero."""
    largest = x.abs().amax(dim=1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    length = x.norm(dim=1, keepdim=True)
    return x / torch.where(length > 0, length, 1)
