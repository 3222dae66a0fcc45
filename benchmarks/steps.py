"""Steps that a task chooses: `python -m benchmarks.steps features.npz [more.npz] [--tasks 300] [--many 50]`.

Each file holds `features` [M, d] and `labels` [M]. On the same seeded tasks of 5, 10 and 20 classes, with 1
and 5 shots, balanced and with Dirichlet(2) proportions: TIM-ADM with 150 and with 60 iterations of the paper,
with 150 half steps, and with 60 steps that the task chooses (relaxation="auto"); the paired difference of the
last to the first with its 95 % interval. Then `robust`, as it is and with chosen steps. --many: tasks of the
settings with 20 classes.

--pools: each file as one pool instead, with 1 and 5 labels of each class: the accuracy at the end, and the
largest fall of it between two iterations, in plain torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import tim_ext
from benchmarks.pools import settings
from tim_ext import reference, tasks
from tim_ext.evaluation.statistics import mean_and_ci95

PLAIN, CHOSEN, ROBUST = "150", "auto 60", "robust"
HYPER: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "60": {"iterations": 60},
    "half 150": {"relaxation": 0.5},
    CHOSEN: {"relaxation": "auto", "iterations": 60},
}
ROBUST_HYPER: dict[str, dict[str, Any]] = {
    ROBUST: {},
    "auto 60": {"relaxation": "auto", "iterations": 60},
    "auto 50": {"relaxation": "auto", "iterations": 50},
    "auto 40": {"relaxation": "auto", "iterations": 40},
}


def accuracies(pool: Any, sampler: Any, count: int, method: str, hyper: dict[str, Any]) -> dict[str, Any]:
    """[tasks] of each choice of hyper-parameters."""
    evaluation = tim_ext.evaluate(
        pool.features,
        pool.labels,
        methods=[f"{name}={method}" for name in hyper],
        sampler={"one": sampler},
        tasks=count,
        hyper=hyper,
    )
    return {name: evaluation.accuracies["one"][name].double() for name in hyper}


def all_settings(labels: Any, counts: dict[int, int], seed: int) -> Iterator[tuple[str, Any, int]]:
    for ways, count in counts.items():
        for shots in (1, 5):
            for kind, sampler in settings(labels, ways, shots, seed).items():
                yield f"{ways}-way {shots}-shot {kind}", sampler, count


def compare(
    pools: dict[str, Any], counts: dict[int, int], seed: int, method: str, hyper: dict[str, Any]
) -> None:
    first, *others = hyper
    print(f"\n| {method} | {' | '.join(hyper)} | {' | '.join(f'{name} - {first}' for name in others)} |")
    print("|---" * (2 * len(hyper)) + "|")
    gaps: dict[str, dict[str, list[float]]] = {"balanced": {}, "Dirichlet(2)": {}}
    for file, pool in pools.items():
        for name, sampler, count in all_settings(pool.labels, counts, seed):
            found = accuracies(pool, sampler, count, method, hyper)
            cells = [f"{float(of.mean()):.2f}" for of in found.values()]
            for other in others:
                gap, ci = mean_and_ci95(found[other] - found[first])
                gaps[name.split()[-1]].setdefault(other, []).append(gap)
                cells.append(f"{gap:+.2f} +- {ci:.2f}")
            print(f"| {file} {name} | {' | '.join(cells)} |", flush=True)
    for kind, of in gaps.items():
        means = "; ".join(f"{name}: mean {np.mean(g):+.2f}, least {min(g):+.2f}" for name, g in of.items())
        print(f"{kind}: {means}")


def path_of(features: Any, labels: Any, truth: Any, **hyper: Any) -> np.ndarray[Any, Any]:
    """Percent of the queries right at W(0), W(1), ..., by the reference."""
    right, query = [], labels < 0
    compute = reference.log_distance_softmax

    def watched(*arguments: Any) -> Any:
        log_p = compute(*arguments)
        right.append(100 * float((log_p[query].argmax(dim=1) == truth[query]).double().mean()))
        return log_p

    with patch.object(reference, "log_distance_softmax", watched):
        reference.adm(features, labels, **hyper)
    return np.array(right)


def whole_pools(pools: dict[str, Any], seed: int) -> None:
    print("| pool | classes | rows | W(0) | 150 half steps | largest fall | 60 chosen steps | largest fall |")
    print("|---" * 8 + "|")
    for file, pool in pools.items():
        for shots in (1, 5):
            task = tasks.whole_pool(pool.labels, shots=shots, seed=seed)[0:1]
            features, labels, truth = (
                torch.as_tensor(pool.features)[task.index[0]],
                task.labels[0],
                task.truth[0],
            )
            half = path_of(features, labels, truth, relaxation=0.5)
            chosen = path_of(features, labels, truth, relaxation="auto", iterations=60)
            falls = [float((path[:-1] - path[1:]).max()) for path in (half, chosen)]
            print(
                f"| {file} {shots}-shot | {int(labels.max()) + 1} | {len(labels)} "
                f"| {half[0]:.2f} | {half[-1]:.2f} | {falls[0]:.2f} | {chosen[-1]:.2f} | {falls[1]:.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--many", type=int, default=50, help="tasks of 20 classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pools", action="store_true")
    options = parser.parse_args()
    pools = {path.stem.split("_")[0]: tim_ext.load_features(path) for path in options.files}
    if options.pools:
        return whole_pools(pools, options.seed)
    counts = {5: options.tasks, 10: options.tasks, 20: options.many}
    compare(pools, counts, options.seed, "tim-adm", HYPER)
    compare(pools, counts, options.seed, "robust", ROBUST_HYPER)


if __name__ == "__main__":
    main()
