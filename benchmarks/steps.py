"""Steps that a task chooses: `python -m benchmarks.steps features.npz [more.npz] [--tasks 300] [--many 50]`.

Each file holds `features` [M, d] and `labels` [M]. On the same seeded tasks of 5, 10 and 20 classes, with 1
and 5 shots, balanced and with Dirichlet(2) proportions: TIM-ADM with 150 and with 50 iterations of the paper,
with 150 half steps, and with steps that the task chooses (relaxation="auto"), 40 to 60 of them; paired
differences to the first with their 95 % intervals. Then `robust`, as it is and with chosen steps. --many:
tasks of the settings with 20 classes.

--pools: each file as one pool instead, with 1 and 5 labels of each class: the accuracy at the end, means over
--draws choices of the labelled rows, and the largest fall of it between two iterations, in plain torch.

--time, without files: how long chosen steps take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import tim_ext
from benchmarks.pools import made_task, settings
from tim_ext import reference, tasks
from tim_ext.evaluation.statistics import mean_and_ci95

Hyper = dict[str, dict[str, Any]]
CHOSEN: Hyper = {f"auto {n}": {"relaxation": "auto", "iterations": n} for n in (40, 50, 60)}
HYPER: Hyper = {"150": {}, "50": {"iterations": 50}, "half 150": {"relaxation": 0.5}, **CHOSEN}
ROBUST_HYPER: Hyper = {"as it is": {}, **CHOSEN}


def accuracies(pool: Any, sampler: Any, count: int, method: str, hyper: Hyper) -> dict[str, Any]:
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


def compare(pools: dict[str, Any], counts: dict[int, int], seed: int, method: str, hyper: Hyper) -> None:
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


def percent_right(task: Any, features: Any, **hyper: Any) -> float:
    found = tim_ext.adm(
        features, task.labels, index=task.index, outputs=("predictions",), **hyper
    ).predictions
    query = task.labels < 0
    return 100 * float((found[query] == task.truth[query]).double().mean())


def whole_pools(pools: dict[str, Any], draws: int) -> None:
    """Means over draws of the labelled rows; falls are those of the first draw."""
    choices = {"150 half": {"relaxation": 0.5}, "150": {}, **CHOSEN}
    chosen = [name for name in CHOSEN if name != "auto 40"]
    gaps = [f"{name} - 150 half, each draw" for name in chosen]
    print(f"| pool | classes | rows | {' | '.join(choices)} | {' | '.join(gaps)} | largest fall, auto 50 |")
    print("|---" * (4 + len(choices) + len(gaps)) + "|")
    for file, pool in pools.items():
        for shots in (1, 5):
            drawn = [tasks.whole_pool(pool.labels, shots=shots, seed=seed)[0:1] for seed in range(draws)]
            found = {
                name: np.array([percent_right(task, pool.features, **hyper) for task in drawn])
                for name, hyper in choices.items()
            }
            cells = [f"{of.mean():.2f}" for of in found.values()]
            cells += [" ".join(f"{gap:+.2f}" for gap in found[name] - found["150 half"]) for name in chosen]
            first = drawn[0]
            features = torch.as_tensor(pool.features)[first.index[0]]
            path = path_of(features, first.labels[0], first.truth[0], **CHOSEN["auto 50"])
            rows, classes = len(features), int(first.labels.max()) + 1
            print(
                f"| {file} {shots}-shot | {classes} | {rows} | {' | '.join(cells)} "
                f"| {float((path[:-1] - path[1:]).max()):.2f} |",
                flush=True,
            )


def time_steps(turns: int = 15) -> None:
    """On 200 tasks (5-way 5-shot, 75 queries, d = 640) and on one of them, taking turns."""
    small = [made_task(100, 640, 5, seed) for seed in range(200)]
    batch = torch.stack([z for z, _ in small]), torch.stack([y for _, y in small])
    for name, task, count in (("200 tasks", batch, turns), ("one task", small[0], 20 * turns)):
        seconds: dict[str, list[float]] = {"150": [], **{name: [] for name in CHOSEN}}
        for _ in range(count):
            for choice, taken in seconds.items():
                start = time.perf_counter()
                tim_ext.adm(*task, **HYPER[choice])
                taken.append(time.perf_counter() - start)
        whole = float(np.median(seconds["150"]))
        shares = ", ".join(f"{choice} {np.median(taken) / whole:.2f}" for choice, taken in seconds.items())
        print(f"{name}: {1e3 * whole:.3f} ms; of that {shares}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--many", type=int, default=50, help="tasks of 20 classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pools", action="store_true")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    if options.time:
        return time_steps()
    if not options.files:
        parser.error("expected files of features, or --time")
    pools = {path.stem.split("_")[0]: tim_ext.load_features(path) for path in options.files}
    if options.pools:
        return whole_pools(pools, options.draws)
    counts = {5: options.tasks, 10: options.tasks, 20: options.many}
    compare(pools, counts, options.seed, "tim-adm", HYPER)
    compare(pools, counts, options.seed, "robust", ROBUST_HYPER)


if __name__ == "__main__":
    main()
