"""How the tasks of a block are drawn, all of them at once: what they consist of, then which rows.

compose_*    ways, classes, shots and queries of every task
draw         the samples of every class of every task
choose       some out of many, without replacement
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..solver.inputs import QUERY

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BLOCK = 64  # tasks of one generator: another number gives other tasks
LOG_WEIGHTS = -math.log(2), math.log(2)  # of Meta-Dataset: a class counts half to twice its size


class Pool(NamedTuple):
    """Rows by class: class i is numbers[i] in the labels and has the sizes[i] rows from starts[i] on."""

    numbers: Ints  # [C]  increasing
    sizes: Ints  # [C]
    starts: Ints  # [C]
    rows: Ints  # [sum of sizes]
    device: torch.device


class Composition(NamedTuple):
    """What the tasks of a block consist of; a pair is a task and one of its classes, P = sum of ways."""

    ways: Ints  # [B]
    classes: Ints  # [P]  positions in the pool
    shots: Ints  # [P]
    queries: Ints  # [P]


Compose = Callable[[np.random.Generator, Ints], Composition]
Share = Callable[[np.random.Generator, Ints], Ints]


def draw(rng: np.random.Generator, pool: Pool, tasks: Composition) -> tuple[Ints, ...]:
    """Samples of every pair, task by task: support of class 0, 1, .., then queries of class 0, 1, .."""
    ways, classes, shots, queries = tasks
    counts = shots + queries
    sample = choose(rng, pool.sizes[classes], counts)
    pair, step = segments(counts)  # [R]  of each sample: its pair, and its number within the pair

    first = before(ways)  # [B]  first pair of each task
    task, k = segments(ways)  # [P]
    sizes, supports = np.add.reduceat(counts, first), np.add.reduceat(shots, first)
    start = before(sizes)[task]  # [P]  where the samples of the task begin
    support_at = start + before_in_task(shots, first, task)
    query_at = start + supports[task] + before_in_task(queries, first, task) - shots

    is_support = step < shots[pair]
    place = step + np.where(is_support, support_at[pair], query_at[pair])
    index, labels, truth = (np.empty_like(sample) for _ in range(3))
    index[place] = pool.rows[pool.starts[classes][pair] + sample]
    truth[place] = k[pair]
    labels[place] = np.where(is_support, k[pair], QUERY)
    return sizes, ways, index, labels, truth, classes


def choose(rng: np.random.Generator, sizes: Ints, counts: Ints) -> Ints:
    """For each i, counts[i] different numbers out of 0 .. sizes[i] - 1, in random order; [sum of counts].

    The algorithm of Fisher and Yates: with n = sizes[i], m = counts[i] and the cards 0 .. n - 1 at the places
    0 .. n - 1, step s = 0 .. m - 1 swaps the places s and r_s, r_s uniform in s .. n - 1. Place s then holds
    sample s for good. This goes through neither cards nor steps: a card that is not at its own place was put
    there by a swap, so with

        held_s   = the card at place s before step s
                 = held_j for the last step j < s with r_j = s, or s if there is none,
        sample_s = the card at place r_s before step s
                 = held_j for the last step j < s with r_j = r_s, or r_s if there is none,

    one stable sort by r finds all j, and held follows from its chain of j by pointer doubling. (Where
    r_s = s, no later step asks for held_s, and it may be anything.) The cost does not depend on n.
    """
    owner, step = segments(counts)
    target = step + (rng.random(len(step)) * (sizes[owner] - step)).astype(np.int64)  # r_s

    place = target + before(sizes)[owner]  # no two i share a place
    order = np.argsort(place, kind="stable")
    ordered = place[order]
    again = ordered[1:] == ordered[:-1]
    previous = np.full(len(step), -1)  # the last step before, with the same r
    previous[order[1:][again]] = order[:-1][again]

    last = order[np.append(~again, True)]  # the last step of each r: the j of step s = r, if there is one
    last = last[target[last] < counts[owner[last]]]
    origin = np.arange(len(step))
    origin[last - step[last] + target[last]] = last
    while not np.array_equal(further := origin[origin], origin):
        origin = further
    return np.where(previous >= 0, step[origin[previous]], target)


def compose_equal(
    rng: np.random.Generator, class_sizes: Ints, *, ways: int, shots: int, share: Share
) -> Composition:
    """Tasks of one size: `share` gives the queries of each class, none above the room [B, K] it is passed."""
    all_ways = np.full(BLOCK, ways)
    classes = choose(rng, np.full(BLOCK, len(class_sizes)), all_ways)
    queries = share(rng, class_sizes[classes].reshape(BLOCK, ways) - shots)
    return Composition(all_ways, classes, np.full(BLOCK * ways, shots), queries.reshape(-1))


def same_shares(rng: np.random.Generator, room: Ints, *, queries: int) -> Ints:
    return np.full(room.shape, queries)


def dirichlet_shares(rng: np.random.Generator, room: Ints, *, queries: int, concentration: float) -> Ints:
    tasks, ways = room.shape
    shares = np.empty((tasks, ways), dtype=np.int64)
    left = np.arange(tasks)
    while len(left):
        parts = rng.standard_gamma(concentration, size=(len(left), ways))
        shares[left] = round_shares(parts / parts.sum(axis=1, keepdims=True) * queries, queries)
        left = left[(shares[left] > room[left]).any(axis=1)]
    return shares


def round_shares(parts: Floats, total: int) -> Ints:
    """Parts [B, K] of sum total, rounded down, then one more to those of the largest remainders."""
    whole = np.floor(parts)
    missing = total - whole.sum(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(whole - parts, axis=1), axis=1)  # 0 for the largest fraction
    rounded: Ints = (whole + (rank < missing)).astype(np.int64)
    return rounded


def few_shares(rng: np.random.Generator, room: Ints, *, present: int, queries: int) -> Ints:
    tasks, ways = room.shape
    chosen = choose(rng, np.full(tasks, ways), np.full(tasks, present)).reshape(tasks, present)
    shares = np.zeros((tasks, ways), dtype=np.int64)
    equal, rest = divmod(queries, present)
    np.put_along_axis(shares, chosen, equal + (np.arange(present) < rest)[None], axis=1)
    return shares


def shuffled_shares(rng: np.random.Generator, room: Ints, *, counts: Ints) -> Ints:
    """counts [K], in an order of its own for each task."""
    tasks, ways = room.shape
    return counts[choose(rng, np.full(tasks, ways), np.full(tasks, ways)).reshape(tasks, ways)]


def compose_whole_pool(rng: np.random.Generator, class_sizes: Ints, *, shots: int) -> Composition:
    """One task of all classes in their order; what is not support is a query."""
    ways = len(class_sizes)
    return Composition(np.array([ways]), np.arange(ways), np.full(ways, shots), class_sizes - shots)


class Limits(NamedTuple):
    min_ways: int
    max_ways: int
    max_queries: int
    max_support: int
    max_support_per_class: int


def compose_meta_dataset(
    rng: np.random.Generator,
    class_sizes: Ints,
    *,
    group_sizes: Ints,  # [G]
    group_classes: Ints,  # [sum of group_sizes]
    take_all: bool,  # all classes of the group, not a random number of them
    limits: Limits,
) -> Composition:
    group = uniform(rng, np.full(BLOCK, len(group_sizes)))
    n = group_sizes[group]  # [B]
    ways = np.minimum(n, limits.max_ways)
    if not take_all:
        ways = limits.min_ways + uniform(rng, ways - limits.min_ways + 1)
    task, _ = segments(ways)  # [P]
    classes = group_classes[before(group_sizes)[group][task] + choose(rng, n, ways)]

    first = before(ways)
    size = class_sizes[classes]  # [P]  n_c
    queries = np.minimum(limits.max_queries, np.minimum.reduceat(size // 2, first))[task]
    room = size - queries

    b = rng.random(BLOCK)[task]
    contribution = np.floor(b * np.minimum(limits.max_support_per_class, room) + 1)
    support = np.minimum(limits.max_support, np.add.reduceat(contribution, first))  # [B]  |S|
    weight = size * np.exp(rng.uniform(*LOG_WEIGHTS, size=len(size)))
    pi = weight / np.add.reduceat(weight, first)[task]
    shots = np.minimum(np.floor(pi * (support - ways)[task]).astype(np.int64) + 1, room)
    return Composition(ways, classes, shots, queries)


def uniform(rng: np.random.Generator, counts: Ints) -> Ints:
    """Uniform integers in 0 .. counts - 1."""
    return (rng.random(len(counts)) * counts).astype(np.int64)


# Segments: vectors of several lengths, one after the other ----------------------------------------


def segments(lengths: Ints) -> tuple[Ints, Ints]:
    """For each element: the number of its segment, and its position within it."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - before(lengths)[owner]


def before(lengths: Ints) -> Ints:
    """Where each segment begins."""
    return np.cumsum(lengths) - lengths


def before_in_task(lengths: Ints, first: Ints, task: Ints) -> Ints:
    start = before(lengths)
    return start - start[first][task]


def cut(lengths: Ints, first: int, last: int) -> slice:
    """The elements of the segments first .. last - 1."""
    return slice(int(lengths[:first].sum()), int(lengths[:last].sum()))
