"""`Result.confidence`: the probability that a prediction is right, estimated without a label of any query.

Whatever method made the predictions, `robust` with its defaults judges them: it solves the task as it is, and
four times with other labelled samples (`other_labels`). From these, for a query i and its predicted class k:

    e_ik   mean of p_ik over these solves
    v_ik   sum_j b_ij a_jk / sum_j b_ij over the nearest neighbours j of i; b_ij = max(0, cos)^3 of samples
           minus their mean, a_jk = y_jk of a labelled neighbour and p_jk of another
    h, g   of the labelled samples in the solves where they have no label: the share that gets its own class
           back, and the mean p of that class
    s, u   of the same samples, n in number, the mean p of the class that they get, and the mean v of it
    V, P   means over the queries of v and p of the class that is largest in p_i
    E      mean over the queries of the largest e_ik
    m      the marginal weight that the solve decided on

    confidence_i = sigmoid(c0 + c . t),   L(x) = log(x / (1 - x))
    t = [L(v), L(e), L(h), L(g), L(V), L(P), L(m), L(v) L(h),
         n / (n + 40) (L(h) - L(u)),                  whether votes are too sure, where it can be told
         (L(v) - L(V) + L(e) - L(E)) (L(h) - L(s)),   where p is softer than what is right, more slope
         L(E), log(queries / K)]                      these two with one labelled sample of each class

There are two sets of constants, as h means two things: where a class has several labelled samples, half of
them are held out, and h is what a smaller task gets right; where it has one, a confident query takes its
place, and h is only what the solution thinks of its own start. Between, by the share of such classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from .batch import Batch
from .inputs import QUERY
from .roots import LEAST as LEAST_ROOT

# c and c0, fitted by `python -m benchmarks.calibration --fit`, which says on what
HELD_OUT = (0.174, 0.530, 0.566, 0.106, -0.244, 0.283, -0.222, 0.023, 0.032, 0.971, 0.092)
ONE_SHOT = (*(-0.930, 0.361, 0.285, 0.064, -0.117, 0.502, -0.442, 0.038, 0.026, 0.502, 0.049), 0.342, 0.155)

SOLVES = 4  # with other labelled samples
# queries of one solve; more are taken in parts, of 50 of each class where that is more
MOST_QUERIES, MOST_OF_A_CLASS, MOST_OF_MANY = 2000, 50, 20_000
NUMBERS, COSINES = 1 << 24, 1 << 24  # in memory at a time
ENOUGH_HELD = 40.0  # samples held out: from there on, that they are right less often than their vote counts
LARGE = 0.5  # of the mean size of a class: from there on a query may stand for its only labelled sample
# L(x) is that of x within floor .. 1 - floor: v, e, h, g, V, P, m
FLOORS = (2e-2, 5e-3, 2e-2, 2e-2, 1e-2, 1e-2, 1e-3)

# p of every sample, flat [sum N_t K_t], and m [T] by `robust` with its defaults, features at unit length
Judge = Callable[[Batch], tuple[Tensor, Tensor]]


def confidences(batch: Batch, predictions: Tensor, judge: Judge) -> Tensor:
    """[R]: of a labelled sample 1, or 0 where its label is not what was predicted; of padding 0."""
    known = batch.labels >= 0
    dtype = torch.float64 if batch.features.dtype == torch.float64 else torch.float32
    found = (known & (predictions == batch.labels)).to(dtype)
    for queries, terms, held_out in evidence(batch, predictions, judge):
        found[queries] = chance(terms, held_out).to(dtype)
    return found


def chance(terms: Tensor, held_out: float) -> Tensor:
    """[n] from the terms [n, 12] of the equation above."""
    more = len(ONE_SHOT) - len(HELD_OUT)
    several, single = terms.new_tensor(HELD_OUT + (0.0,) * more), terms.new_tensor(ONE_SHOT)
    c = held_out * several + (1 - held_out) * single
    return (terms @ c[1:] + c[0]).sigmoid()


def evidence(batch: Batch, predictions: Tensor, judge: Judge) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Of each part of each task: the places of its queries in the batch [n], the terms of the equation
    [n, 12], and the share of the classes whose labelled samples are held out."""
    for parts in _chunks(list(_parts(batch))):
        base, m = judge(_batch_of(batch, parts, [part.labels[None] for part in parts]))
        p = [
            one.view(len(part.labels), part.classes)
            for one, part in zip(_split(base, parts), parts, strict=True)
        ]
        others = [other_labels(part, one) for part, one in zip(parts, p, strict=True)]
        again, _ = judge(_batch_of(batch, parts, others))
        repeated = _split(again, parts, SOLVES)
        for part, first, weight, labels, more in zip(parts, p, m, others, repeated, strict=True):
            queries = part.labels == QUERY
            k = predictions[part.places[queries]].clamp(min=0)
            z = batch.features[part.places if batch.rows is None else batch.rows[part.places]]
            terms = _terms(part, z, first, weight, labels, more.view(SOLVES, *first.shape), k)
            yield part.places[queries], terms, float((part.counts > 1).float().mean())


# The parts of a task ------------------------------------------------------------------------------


class Part(NamedTuple):
    """Samples of one task that are solved together: the labelled ones and some of the queries, or all."""

    task: int
    places: Tensor  # [n] in the batch
    labels: Tensor  # [n]
    classes: int  # K
    fixed: Tensor  # [n] class vectors beside labelled samples, which keep their label
    counts: Tensor  # [K] labelled samples of each class


def _parts(batch: Batch) -> Iterator[Part]:
    start = 0
    for t, (size, count) in enumerate(zip(batch.sizes, batch.counts, strict=True)):
        labels = batch.labels[start : start + size]
        vectors = torch.zeros_like(labels, dtype=torch.bool)
        if batch.added is not None:
            own = size - batch.added[t]
            vectors[own:] = bool((labels[:own] >= 0).any())
        queries, known = (labels == QUERY).nonzero()[:, 0], (labels >= 0).nonzero()[:, 0]
        for some in _shares(queries, most_queries(len(known), count)):
            chosen = torch.cat([known, some]).sort().values
            counts = torch.bincount(labels[known], minlength=count)
            yield Part(t, start + chosen, labels[chosen], count, vectors[chosen], counts)
        start += size


def most_queries(labelled: int, classes: int) -> int:
    """Of a part. As the labelled samples are in every part, no fewer than these: the work stays linear."""
    return max(MOST_QUERIES, min(MOST_OF_A_CLASS * classes, MOST_OF_MANY), labelled)


def _shares(queries: Tensor, most: int) -> Iterator[Tensor]:
    """All of them, or random shares of equal size."""
    if len(queries) <= most:
        if len(queries):
            yield queries
        return
    order = torch.randperm(len(queries), generator=_generator(), device="cpu").to(queries.device)
    yield from torch.tensor_split(queries[order], -(-len(queries) // most))


def _chunks(parts: list[Part]) -> Iterator[list[Part]]:
    chunk: list[Part] = []
    numbers = 0
    for part in parts:
        chunk.append(part)
        numbers += SOLVES * len(part.labels) * part.classes
        if numbers >= NUMBERS:
            yield chunk
            chunk, numbers = [], 0
    if chunk:
        yield chunk


def _batch_of(batch: Batch, parts: list[Part], labels: list[Tensor]) -> Batch:
    """Each part with each row of its labels [r, n] as a task of its own, on the features of the batch."""
    times = len(labels[0])
    places = torch.cat([part.places.repeat(times) for part in parts])
    sizes = [len(part.labels) for part in parts for _ in range(times)]
    counts = [part.classes for part in parts for _ in range(times)]
    prior = None
    if batch.class_prior is not None:
        priors = batch.priors()
        prior = torch.cat([p for part in parts for p in [priors[part.task]] * times if p is not None])
    return Batch(
        features=batch.features,
        rows=places if batch.rows is None else batch.rows[places],
        labels=torch.cat([one.flatten() for one in labels]),
        offsets=torch.tensor([0, *accumulate(sizes)], device="cpu"),
        classes=torch.tensor(counts, device="cpu"),
        sizes=sizes,
        counts=counts,
        lead=None,
        class_prior=prior,
    )


def _split(flat: Tensor, parts: list[Part], times: int = 1) -> tuple[Tensor, ...]:
    return torch.split(flat, [times * len(part.labels) * part.classes for part in parts])


# The labels of the other solves ---------------------------------------------------------------------


def other_labels(part: Part, p: Tensor) -> Tensor:
    """[SOLVES, n]: of a class with several labelled samples a random half keeps its labels, and in the next
    solve the other half. The only one of a class becomes a query, and a query that p [n, K] gives to the
    class, drawn by its probability, is labelled instead; or nothing changes, if the class got less than half
    of what classes get on average.

    The draws depend on the number of samples alone: a task has them alone as in any batch.
    """
    y, n = part.labels, len(part.labels)
    size = 3 * SOLVES // 2, n
    draws = torch.rand(size, generator=_generator(), dtype=torch.float64, device="cpu").to(y.device)
    several = part.counts > 1  # [K]
    labels = y.repeat(SOLVES, 1)

    own = (y >= 0) & ~part.fixed  # [n]
    held = own & several[y.clamp(min=0)]
    # rank of each among the samples of its class: by class, then by the draw
    group = torch.where(held, y, part.classes)
    order = (group + draws[: SOLVES // 2]).argsort(dim=1)
    sizes = torch.bincount(group, minlength=part.classes + 1)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(n, device=y.device).expand_as(order))
    rank -= (sizes.cumsum(0) - sizes)[group]
    first = 2 * rank < sizes[group]  # [SOLVES / 2, n]
    labels[0::2].masked_fill_(held & ~first, QUERY)
    labels[1::2].masked_fill_(held & first, QUERY)

    queries = y == QUERY
    largest, owner = p.max(dim=1)
    found = torch.bincount(owner[queries], minlength=part.classes)
    enough = max(2.0, LARGE * int(queries.sum()) / part.classes)
    replaced = ~several & (found >= enough)  # [K]
    if bool(replaced.any()):
        # the largest of log p + Gumbel's noise is a draw by p
        noise = -(-draws[SOLVES // 2 :].clamp(1e-9, 1 - 1e-9).log()).log()
        noisy = (largest.clamp(min=1e-9).log() + noise).masked_fill(~queries, -torch.inf)  # [SOLVES, n]
        best = noisy.new_full((SOLVES, part.classes), -torch.inf)
        best.scatter_reduce_(1, owner.expand_as(labels), noisy, "amax")
        labels.masked_fill_(own & replaced[y.clamp(min=0)], QUERY)
        drawn = (noisy == best[:, owner]) & queries & replaced[owner]
        labels = torch.where(drawn, owner, labels)
    return labels


def _generator() -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(0)


# The terms ----------------------------------------------------------------------------------------


def _terms(
    part: Part,
    z: Tensor,  # [n, d]
    p: Tensor,  # [n, K]
    m: Tensor,
    labels: Tensor,  # [SOLVES, n]
    repeated: Tensor,  # [SOLVES, n, K]
    k: Tensor,  # [queries] predicted
) -> Tensor:
    """[queries, 12]"""
    queries = part.labels == QUERY
    asked = (labels == QUERY)[:, queries, None].to(p)
    e = (p[queries] + (repeated[:, queries] * asked).sum(dim=0)) / (1 + asked.sum(dim=0))
    near = neighbours(z.to(p.dtype), part.classes)
    v = neighbour_vote(near, part.labels[None], p[None], queries[None])
    held = returned(part.labels, labels, repeated, near)
    largest, owner = p[queries].max(dim=1)
    of_task = (held.h, held.g, v.gather(1, owner[:, None]).mean(), largest.mean(), m)
    of_query = (v.gather(1, k[:, None])[:, 0], e.gather(1, k[:, None])[:, 0])
    terms = [_log_odds(x.double(), floor) for x, floor in zip((*of_query, *of_task), FLOORS, strict=True)]
    lv, le, lh, _, lV, *_ = terms
    lE = _log_odds(e.amax(dim=1).mean().double(), FLOORS[5])
    over, soft = (lh - _log_odds(x, FLOORS[2]) for x in (held.u, held.s))
    terms += [lv * lh, held.total / (held.total + ENOUGH_HELD) * over, (lv - lV + le - lE) * soft]
    terms += [lE, lE.new_tensor(len(k) / part.classes).log()]
    return torch.stack([term.expand(len(k)) for term in terms], dim=1)


class Neighbours(NamedTuple):
    weights: Tensor  # [n, nearest]  b_ij
    places: Tensor  # [n, nearest]  j


def neighbours(z: Tensor, classes: int) -> Neighbours:
    """`robust` takes roots and neighbours likewise."""
    if bool((z >= 0).all()):
        z = (z + LEAST_ROOT).sqrt()
    z = normalize(z)
    x = normalize(z - z.mean(dim=0))
    n = len(x)
    nearest = min(max(3, min(10, (n + classes) // (2 * classes))), n - 1)
    found = []
    for rows in torch.split(torch.arange(n, device=z.device), max(1, COSINES // n)):
        cos = x[rows] @ x.T
        cos[torch.arange(len(rows), device=z.device), rows] = -1.0
        value, j = cos.topk(nearest, dim=1)
        found.append((value.clamp(min=0) ** 3, j))
    return Neighbours(*map(torch.cat, zip(*found, strict=True)))


def neighbour_vote(
    near: Neighbours,
    labels: Tensor,  # [S, n]
    p: Tensor,  # [S, n, K] of the solves with these
    asked: Tensor,  # [S, n]
) -> Tensor:
    """v [n', K] of the samples that are asked; equal shares where no neighbour is positive."""
    classes = p.shape[2]
    found = [p.new_empty(0, classes)]
    for rows in torch.split(asked.nonzero(), max(1, COSINES // (10 * classes))):
        solve, i = rows[:, :1], rows[:, 1]
        b, j = near.weights[i], near.places[i]  # [rows, nearest]
        y = labels[solve, j]
        a = torch.where((y >= 0)[..., None], one_hot(y.clamp(min=0), classes).to(p), p[solve, j])
        total = b.sum(dim=1, keepdim=True)
        mean = (b[..., None] * a).sum(dim=1) / torch.where(total > 0, total, 1)
        found.append(torch.where(total > 0, mean, 1 / classes))
    return torch.cat(found)


class Returned(NamedTuple):
    """Of the labelled samples that are queries in another solve, and half a sample of 9 in 10 beside them, as
    few are no proof."""

    h: Tensor  # share that gets its own class
    g: Tensor  # mean p of that class
    s: Tensor  # mean p of the class that it gets
    u: Tensor  # mean v of it, in that solve
    total: int


def returned(y: Tensor, labels: Tensor, repeated: Tensor, near: Neighbours) -> Returned:
    asked = (labels == QUERY) & (y >= 0)  # [SOLVES, n]
    p, own = repeated[asked], y.expand_as(labels)[asked]
    largest, got = p.max(dim=1)
    vote = neighbour_vote(near, labels, repeated, asked).gather(1, got[:, None])[:, 0]
    parts = (got == own, p.gather(1, own[:, None])[:, 0], largest, vote)
    h, g, s, u = ((0.45 + x.double().sum()) / (len(own) + 0.5) for x in parts)
    return Returned(h, g, s, u, len(own))


def _log_odds(x: Tensor, floor: float) -> Tensor:
    return x.clamp(floor, 1 - floor).logit()
