"""Few-shot tasks drawn from a labelled pool: which rows, and which of them are support.

sampler = tim_ext.tasks.balanced(labels, ways=5, shots=5)
tasks = sampler[0:10_000]
tim_ext.adm(pool, tasks.labels, index=tasks.index)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..solver.inputs import refuse_shape, to_integers
from ..solver.params import check_count, check_number
from .drawing import (
    Limits,
    Pool,
    before,
    compose_equal,
    compose_meta_dataset,
    compose_whole_pool,
    dirichlet_shares,
    few_shares,
    round_shares,
    same_shares,
    shuffled_shares,
)
from .hierarchy import Groups, check_groups, check_names, classes_of_nodes, classes_of_superclasses
from .sequence import Sampler, count_of

CONCENTRATIONS = 0.01, 1e6  # outside, gamma variates leave the range of float64


# The samplers -------------------------------------------------------------------------------------


def balanced(labels: Any, *, ways: int = 5, shots: int = 1, queries: int = 15, seed: int = 0) -> Sampler:
    """The tasks of the standard benchmarks: `ways` random classes, `shots` and `queries` samples of each.

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        ways: classes of a task.
        shots: support samples of each class.
        queries: query samples of each class.
        seed: integer >= 0; another seed gives other tasks.

    Example:
        >>> import torch, tim_ext
        >>> sampler = tim_ext.tasks.balanced(torch.arange(200) % 10, ways=2, shots=1, queries=2)
        >>> sampler[0:1000]
        Tasks(index=[1000, 6], labels=[1000, 6], truth=[1000, 6], classes=[1000, 2])
        >>> sampler[0:1].labels
        tensor([[ 0,  1, -1, -1, -1, -1]])
    """
    settings = _check_counts(ways=ways, shots=shots, queries=queries, seed=seed)
    ways, shots, queries, _ = settings.values()
    pool = _make_pool(labels)
    _check_ways(pool, ways)
    _check_sizes(pool, shots + queries, f"{count_of(shots, 'shot')} + {count_of(queries, 'query')}")
    compose = partial(compose_equal, ways=ways, shots=shots, share=partial(same_shares, queries=queries))
    return Sampler(pool, compose, "balanced", settings)


def dirichlet(
    labels: Any,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 75,
    concentration: float = 2.0,
    seed: int = 0,
) -> Sampler:
    """Tasks whose classes have random shares of the queries, as in the evaluation of alpha-TIM.

    The shares of a task come from the Dirichlet distribution of `ways` equal parameters `concentration`; the
    numbers of queries are the shares times `queries`, rounded by largest remainder. Shares that ask more of a
    class than it has are drawn again; every class must have enough samples for the largest class of the
    median task, so half of all shares fit at least.

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        ways: classes of a task.
        shots: support samples of each class.
        queries: query samples of the task, all classes together; a class may have none.
        concentration: 0.01 to 1e6: the smaller, the more unequal. The variance of a share is
            (1/K) (1 - 1/K) / (K concentration + 1), K = ways.
        seed: integer >= 0; another seed gives other tasks.
    """
    settings = _check_counts(ways=ways, shots=shots, queries=queries, seed=seed)
    ways, shots, queries, _ = settings.values()
    concentration = check_number("concentration", concentration, positive=True)
    low, high = CONCENTRATIONS
    if not low <= concentration <= high:
        raise ValueError(f"concentration: expected a number from {low:g} to {high:g}, got {concentration:g}")
    pool = _make_pool(labels)
    _check_ways(pool, ways)
    share = partial(dirichlet_shares, queries=queries, concentration=concentration)
    draws = share(np.random.Generator(np.random.PCG64(0)), np.full((1001, ways), queries))
    typical = int(np.median(draws.max(axis=1)))
    largest = f"{count_of(typical, 'query')} of the largest class in a task of median imbalance"
    _check_sizes(pool, shots + typical, f"{count_of(shots, 'shot')} + {largest}")
    compose = partial(compose_equal, ways=ways, shots=shots, share=share)
    return Sampler(pool, compose, "dirichlet", settings | {"concentration": concentration})


def few_classes(
    labels: Any, *, ways: int = 5, present: int = 2, shots: int = 1, queries: int = 75, seed: int = 0
) -> Sampler:
    """Tasks in which only `present` of the classes, at random, have queries, as equally as possible.

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        ways: classes of a task: all of them have support samples.
        present: classes among the queries.
        shots: support samples of each class.
        queries: query samples of the task, all classes together.
        seed: integer >= 0; another seed gives other tasks.
    """
    settings = _check_counts(ways=ways, present=present, shots=shots, queries=queries, seed=seed)
    ways, present, shots, queries, _ = settings.values()
    for name, limit in (("ways", ways), ("queries", queries)):
        if present > limit:
            raise ValueError(f"present: expected at most {name}={limit}, got {present}")
    pool = _make_pool(labels)
    _check_ways(pool, ways)
    most = -(-queries // present)
    _check_sizes(pool, shots + most, f"{count_of(shots, 'shot')} + {count_of(most, 'query')}")
    share = partial(few_shares, present=present, queries=queries)
    compose = partial(compose_equal, ways=ways, shots=shots, share=share)
    return Sampler(pool, compose, "few_classes", settings)


def zipf(
    labels: Any,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 75,
    exponent: float = 1.0,
    seed: int = 0,
) -> Sampler:
    """Tasks whose classes have shares of the queries as the words of a language: 1, 1/2^a, 1/3^a, ..

    The largest class is a random one, the second another, and so on; the numbers of queries are the shares
    times `queries`, rounded by largest remainder.

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        ways: classes of a task.
        shots: support samples of each class.
        queries: query samples of the task, all classes together; a class may have none.
        exponent: a; 0 gives equal shares.
        seed: integer >= 0; another seed gives other tasks.
    """
    settings = _check_counts(ways=ways, shots=shots, queries=queries, seed=seed)
    exponent = check_number("exponent", exponent)
    shares = [float(rank) ** -exponent for rank in range(1, settings["ways"] + 1)]
    return _unequal(labels, "zipf", settings, {"exponent": exponent}, shares)


def dominant(
    labels: Any,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 75,
    share: float = 0.5,
    seed: int = 0,
) -> Sampler:
    """Tasks in which one class, at random, has `share` of the queries; the others share the rest equally.

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        ways: classes of a task.
        shots: support samples of each class.
        queries: query samples of the task, all classes together.
        share: of the dominant class, 1/ways to 1.
        seed: integer >= 0; another seed gives other tasks.
    """
    settings = _check_counts(ways=ways, shots=shots, queries=queries, seed=seed)
    share, equal = check_number("share", share), 1 / settings["ways"]
    if not equal <= share <= 1:
        raise ValueError(f"share: expected a number from 1/ways = {equal:g} to 1, got {share:g}")
    others = [(1 - share) / max(settings["ways"] - 1, 1)] * (settings["ways"] - 1)
    return _unequal(labels, "dominant", settings, {"share": share}, [share, *others])


def whole_pool(labels: Any, *, shots: int = 1, seed: int = 0) -> Sampler:
    """Tasks of all classes and all rows: `shots` random samples of each class, all other rows are queries.

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        shots: support samples of each class. Class k of a task is the k-th of the classes of `labels`.
        seed: integer >= 0; another seed gives other tasks.
    """
    settings = _check_counts(shots=shots, seed=seed)
    shots, _ = settings.values()
    pool = _make_pool(labels)
    _check_sizes(pool, shots, count_of(shots, "shot"))
    if len(pool.rows) == shots * len(pool.sizes):
        raise ValueError(f"shots: expected a class with more samples, for queries, got none with {shots + 1}")
    compose = partial(compose_whole_pool, shots=shots)
    return Sampler(pool, compose, "whole_pool", settings, block=1)


def meta_dataset(
    labels: Any,
    *,
    hierarchy: Groups | None = None,
    superclasses: Groups | None = None,
    class_names: Sequence[str] | None = None,
    min_ways: int = 5,
    max_ways: int = 50,
    max_leaves: int = 392,
    max_queries: int = 10,
    max_support: int = 500,
    max_support_per_class: int = 100,
    seed: int = 0,
) -> Sampler:
    """The random tasks of Meta-Dataset (Triantafillou et al. 2020): ways, shots and class balance vary.

    Of n classes with n_c samples a task has

        ways  K    uniform in min_ways .. min(max_ways, n)
        queries    q = min(max_queries, min_c floor(n_c / 2)) of each class
        support    |S| = min(max_support, sum_c floor(b min(max_support_per_class, n_c - q) + 1)), b ~ U[0, 1)
        shots      k_c = min(floor(pi_c (|S| - K)) + 1, n_c - q),  pi_c ~ n_c exp(a_c), a_c ~ U[ln 1/2, ln 2)

    Args:
        labels: [M] integers, the class of each row of the pool; rows with a negative label are not used.
        hierarchy: {node: [class or node, ...]}, what is below each node, without cycles (ILSVRC: WordNet). It
            is cut down to the classes of `labels`, and nodes left with one child are dropped. A task takes a
            uniform node of those that span min_ways .. max_leaves classes, and all of them, or max_ways at
            random if there are more.
        superclasses: {superclass: [class, ...]} (Omniglot: alphabets). A task takes a uniform superclass,
            then K uniform in min_ways .. min(max_ways, its size) of its classes.
        class_names: class_names[c] is another way to write class c in `hierarchy` or `superclasses`.
        min_ways, max_ways, max_leaves, max_queries, max_support, max_support_per_class: as above; the
            defaults are those of Meta-Dataset.
        seed: integer >= 0; another seed gives other tasks.

    Returns:
        Sampler. Its tasks differ in size: `Tasks` holds lists.
    """
    settings = _check_counts(
        min_ways=min_ways,
        max_ways=max_ways,
        max_leaves=max_leaves,
        max_queries=max_queries,
        max_support=max_support,
        max_support_per_class=max_support_per_class,
        seed=seed,
    )
    for name, least in (("max_ways", "min_ways"), ("max_leaves", "min_ways"), ("max_support", "max_ways")):
        if settings[name] < settings[least]:
            raise ValueError(f"{name}: expected at least {least}={settings[least]}, got {settings[name]}")
    if hierarchy is not None and superclasses is not None:
        raise ValueError("superclasses: expected None, as hierarchy is given, got both")
    pool = _make_pool(labels)
    _check_ways(pool, min_ways, "min_ways")
    _check_sizes(pool, 2, "1 shot + 1 query")
    names = check_names(class_names, pool.numbers)
    choice: dict[str, Any] = {}
    if hierarchy is not None:
        choice["hierarchy"] = check_groups("hierarchy", hierarchy, names)
        groups = classes_of_nodes(choice["hierarchy"], names, pool.numbers, min_ways, max_leaves)
    elif superclasses is not None:
        choice["superclasses"] = check_groups("superclasses", superclasses, names)
        groups = classes_of_superclasses(choice["superclasses"], pool.numbers, min_ways)
    else:
        groups = [np.arange(len(pool.sizes))]
    compose = partial(
        compose_meta_dataset,
        group_sizes=np.array([len(group) for group in groups]),
        group_classes=np.concatenate(groups),
        take_all=hierarchy is not None,
        limits=Limits(
            min_ways=min_ways,
            max_ways=max_ways,
            max_queries=max_queries,
            max_support=max_support,
            max_support_per_class=max_support_per_class,
        ),
    )
    return Sampler(pool, compose, "meta_dataset", choice | settings, equal=False)


# What was asked for -------------------------------------------------------------------------------


def _unequal(
    labels: Any, kind: str, settings: dict[str, int], more: dict[str, float], shares: Sequence[float]
) -> Sampler:
    """Tasks whose classes have, in random order, these shares [K] of the queries, up to a factor."""
    ways, shots, queries, _ = settings.values()
    pool = _make_pool(labels)
    _check_ways(pool, ways)
    counts = round_shares(np.array([shares]) / sum(shares) * queries, queries)[0]
    most = int(counts.max())
    largest = f"{count_of(most, 'query')} of the largest class"
    _check_sizes(pool, shots + most, f"{count_of(shots, 'shot')} + {largest}")
    compose = partial(compose_equal, ways=ways, shots=shots, share=partial(shuffled_shares, counts=counts))
    return Sampler(pool, compose, kind, settings | more)


def _make_pool(labels: Any) -> Pool:
    tensor = to_integers("labels", labels, None)
    if tensor.dim() != 1 or not len(tensor):
        refuse_shape("labels", "[M], not 0", tensor)
    array = tensor.cpu().numpy()
    used = np.flatnonzero(array >= 0)
    if not len(used):
        raise ValueError("labels: expected classes (>= 0), got only negative numbers")
    rows = used[np.argsort(array[used], kind="stable")]
    numbers, sizes = np.unique(array[rows], return_counts=True)
    return Pool(numbers, sizes, before(sizes), rows, tensor.device)


def _check_counts(**values: Any) -> dict[str, int]:
    return {
        name: check_count(name, value, at_least=0 if name == "seed" else 1) for name, value in values.items()
    }


def _check_ways(pool: Pool, ways: int, name: str = "ways") -> None:
    if ways > len(pool.sizes):
        raise ValueError(f"{name}: expected at most {len(pool.sizes)}, the classes of labels, got {ways}")


def _check_sizes(pool: Pool, needed: int, reason: str) -> None:
    small = np.flatnonzero(pool.sizes < needed)
    if len(small):
        number, size = pool.numbers[small[0]], int(pool.sizes[small[0]])
        others = f" ({len(small)} classes are too small)" if len(small) > 1 else ""
        raise ValueError(
            f"labels: class {number} has {count_of(size, 'sample')}, {reason} need {needed}{others}"
        )
