"""Pools as they are: `python -m benchmarks.pools features.npz [more.npz] [--tasks 500] [--many 50]`.

Each file holds `features` [M, d] and `labels` [M]. On the same seeded tasks: the nearest prototype, TIM-ADM,
TIM-ADM told the true proportions (oracle), and `tim_ext.robust`, all with their defaults. Prints, for every
setting, accuracies as means over the files and the paired difference of `robust` with its 95 % interval: to
TIM-ADM where classes are balanced, to the oracle where they are not; and the least difference to the nearest
prototype among the files. --many: tasks of the settings with 20 classes.

`--time`, without files: `adm` and `robust` take turns on 200 tasks (5-way 5-shot, 75 queries, d = 640), on
one of them, and on a pool of 8,000 x 1280 with 102 classes; medians.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation.statistics import mean_and_ci95

METHODS = ["prototype", "tim-adm", "oracle=tim-adm", "robust"]
NAMES = ["prototype", "tim-adm", "oracle", "robust"]


def settings(labels: Any, ways: int, shots: int, seed: int) -> dict[str, Any]:
    """15 queries of each class; where classes are small, Dirichlet tasks have 8 or 5 on the average."""
    smallest = int(np.unique(np.asarray(labels), return_counts=True)[1].min())
    queries = ways * (15 if smallest >= 60 else 8 if ways < 10 else 5)
    same = {"ways": ways, "shots": shots, "seed": seed}
    return {
        "balanced": tasks.balanced(labels, queries=15, **same),
        "Dirichlet(2)": tasks.dirichlet(labels, queries=queries, **same),
    }


def dominated(labels: Any, seed: int) -> dict[str, Any]:
    """Ten classes, five shots, one of the classes with a share of the 150 queries."""
    same = {"ways": 10, "shots": 5, "queries": 150, "seed": seed}
    return {
        f"one class {share:.0%}": tasks.dominant(labels, share=share, **same)
        for share in (0.1, 0.3, 0.5, 0.7)
    }


def others(labels: Any, shots: int, seed: int) -> dict[str, Any]:
    same = {"ways": 10, "shots": shots, "seed": seed}
    return {
        "half of 10 missing": tasks.few_classes(labels, present=5, queries=75, **same),
        "25 queries in all": tasks.few_classes(labels, present=10, queries=25, **same),
    }


def accuracies(pool: Any, sampler: Any, count: int) -> dict[str, Any]:
    """[tasks] of each method."""
    evaluation = tim_ext.evaluate(
        pool.features,
        pool.labels,
        methods=METHODS,
        sampler={"one": sampler},
        tasks=count,
        hyper={"oracle": {"class_prior": "oracle"}},
    )
    return {name: evaluation.accuracies["one"][name].double() for name in NAMES}


def line(name: str, found: dict[str, dict[str, Any]], than: str) -> None:
    """found: by file. Files count alike; the interval is that of the mean of their means."""
    means = [np.mean([float(of[method].mean()) for of in found.values()]) for method in NAMES]
    paired = [mean_and_ci95(of["robust"] - of[than]) for of in found.values()]
    difference = np.mean([mean for mean, _ in paired])
    interval = np.sqrt(np.sum(np.square([ci for _, ci in paired]))) / len(paired)
    least = min((float((of["robust"] - of["prototype"]).mean()), file) for file, of in found.items())
    columns = " | ".join(f"{mean:.1f}" for mean in means)
    gain = f"{difference:+.1f} +- {interval:.1f} to {than}"
    print(f"| {name} | {columns} | {gain} | {least[0]:+.1f} ({least[1]}) |", flush=True)


def made_task(rows: int, dim: int, classes: int, seed: int = 0) -> tuple[Any, Any]:
    """Five labelled samples of each class."""
    draw = torch.Generator().manual_seed(seed)
    truth = torch.arange(rows) % classes
    features = torch.randn(classes, dim, generator=draw)[truth] + 2 * torch.randn(rows, dim, generator=draw)
    return features, torch.where(torch.arange(rows) < 5 * classes, truth, -1)


def time_solvers() -> None:
    small = [made_task(100, 640, 5, seed) for seed in range(200)]
    batch = torch.stack([z for z, _ in small]), torch.stack([y for _, y in small])
    pool = made_task(8000, 1280, 102)
    for name, task, turns in (("200 tasks", batch, 15), ("one task", small[0], 200), ("pool", pool, 3)):
        seconds: dict[str, list[float]] = {"adm": [], "robust": []}
        for _ in range(turns):
            for solver, taken in seconds.items():
                start = time.perf_counter()
                getattr(tim_ext, solver)(*task)
                taken.append(time.perf_counter() - start)
        adm, robust = (1e3 * float(np.median(taken)) for taken in seconds.values())
        print(f"{name}: adm {adm:.3f} ms, robust {robust:.3f} ms, {robust / adm:.2f} x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--many", type=int, default=50, help="tasks of 20 classes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.time:
        return time_solvers()
    if not options.files:
        parser.error("expected files of features, or --time")
    pools = {path.stem.split("_")[0]: tim_ext.load_features(path) for path in options.files}
    print(f"| setting | {' | '.join(NAMES)} | robust, paired | robust - prototype, least |")
    print("|---" * 7 + "|")
    for ways, count in ((5, options.tasks), (20, options.many)):
        for shots in (1, 5):
            for kind in ("balanced", "Dirichlet(2)"):
                found = {}
                for name, pool in pools.items():
                    sampler = settings(pool.labels, ways, shots, options.seed)[kind]
                    found[name] = accuracies(pool, sampler, count)
                than = "tim-adm" if kind == "balanced" else "oracle"
                line(f"{ways}-way {shots}-shot {kind}", found, than)
    large = {name: pool for name, pool in pools.items() if name != "omniglot"}
    for kind in dominated(next(iter(pools.values())).labels, options.seed):
        found = {
            name: accuracies(pool, dominated(pool.labels, options.seed)[kind], options.tasks // 2)
            for name, pool in large.items()
        }
        line(f"10-way 5-shot, {kind}", found, "oracle")
    for shots in (1, 5):
        for kind in ("half of 10 missing", "25 queries in all"):
            found = {
                name: accuracies(pool, others(pool.labels, shots, options.seed)[kind], options.tasks // 2)
                for name, pool in pools.items()
            }
            line(f"10-way {shots}-shot, {kind}", found, "oracle")


if __name__ == "__main__":
    main()
