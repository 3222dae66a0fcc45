"""Accuracy on real features: `python -m benchmarks.real_features features.npz [--tasks 1000]`.

The file holds `features` [M, d] and `labels` [M], the class of each sample. Seeded 5-way tasks with 1 and 5
shots and 15 queries per class are drawn from it; prints the accuracy on the queries of the nearest prototype,
TIM-ADM and TIM-GD with 95 % confidence intervals. With `--reference N`, TIM-GD is compared with its reference
in plain torch on the first N of the same tasks; the exit code is 1 if they are more than 0.05 points apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import tim_ext
from tim_ext import reference
from tim_ext.evaluation.statistics import mean_and_ci95

WAYS, QUERIES = 5, 15
LARGEST_DIFFERENCE = 0.05  # points


def load(path: Path) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise SystemExit(f"{path} is not there: give the path of an .npz file with `features` and `labels`")
    with np.load(path, allow_pickle=False) as file:
        missing = [key for key in ("features", "labels") if key not in file]
        if missing:
            raise SystemExit(f"{path}: expected the keys features and labels, got {', '.join(file)}")
        features, labels = (torch.from_numpy(file[key]) for key in ("features", "labels"))
        return features.float(), labels.long()


def draw_tasks(classes: Tensor, tasks: int, shots: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [T, N] of the features, labels [T, N] with -1 for queries, and the true classes [T, N]; N is
    ways * (shots + queries), support samples first."""
    generator = torch.Generator().manual_seed(seed)
    members = [(classes == k).nonzero()[:, 0] for k in classes.unique()]
    members = [rows for rows in members if len(rows) >= shots + QUERIES]
    if len(members) < WAYS:
        raise SystemExit(f"expected {WAYS} classes of {shots + QUERIES} samples or more, got {len(members)}")
    truth = torch.arange(WAYS).repeat(shots + QUERIES)
    index = torch.empty(tasks, shots + QUERIES, WAYS, dtype=torch.int64)
    for t in range(tasks):
        for way, k in enumerate(torch.randperm(len(members), generator=generator)[:WAYS].tolist()):
            chosen = torch.randperm(len(members[k]), generator=generator)[: shots + QUERIES]
            index[t, :, way] = members[k][chosen]
    labels = torch.where(torch.arange(len(truth)) < WAYS * shots, truth, -1)
    return index.flatten(1), labels.repeat(tasks, 1), truth.repeat(tasks, 1)


def accuracies(predictions: Tensor, labels: Tensor, truth: Tensor) -> Tensor:
    """Percent of the queries of each task, [T]."""
    query = labels == -1
    return 100 * (query & (predictions == truth)).sum(dim=1) / query.sum(dim=1)


def report(name: str, solve: Callable[[], tim_ext.Result], labels: Tensor, truth: Tensor) -> Tensor:
    start = time.perf_counter()
    right = accuracies(solve().predictions, labels, truth)
    seconds = time.perf_counter() - start
    mean, ci95 = mean_and_ci95(right.double())
    speed = 1000 * seconds / len(right)
    print(f"  {name:20s} {mean:6.2f} % +- {ci95 or 0.0:.2f}  {speed:9.2f} ms per task", flush=True)
    return right


def compare(features: Tensor, classes: Tensor, shots: int, options: argparse.Namespace) -> float:
    """Prints a table; returns how many points TIM-GD and its reference are apart."""
    index, labels, truth = draw_tasks(classes, options.tasks, shots, options.seed)
    print(f"{WAYS}-way {shots}-shot, {QUERIES} queries per class, {options.tasks} tasks", flush=True)
    only = {"outputs": ("predictions",)}
    tasks = {"index": index, **only}
    report("nearest prototype", lambda: tim_ext.adm(features, labels, iterations=0, **tasks), labels, truth)
    report("TIM-ADM", lambda: tim_ext.adm(features, labels, **tasks), labels, truth)
    steps = {"iterations": options.iterations}
    right = report("TIM-GD", lambda: tim_ext.gd(features, labels, **steps, **tasks), labels, truth)
    n = min(options.reference, options.tasks)
    if n == 0:
        return 0.0
    some = {"index": index[:n], **steps, **only}
    expected = report(
        f"reference, {n} tasks", lambda: reference.gd(features, labels[:n], **some), labels[:n], truth[:n]
    )
    apart = abs(right[:n].mean().item() - expected.mean().item())
    print(
        f"  TIM-GD on these {n}: {right[:n].mean():.2f} %, {apart:.3f} points from the reference", flush=True
    )
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path, help=".npz file with features and labels")
    parser.add_argument("--tasks", type=int, default=1000, metavar="N")
    parser.add_argument("--iterations", type=int, default=1000, metavar="N", help="steps of TIM-GD")
    parser.add_argument("--reference", type=int, default=0, metavar="N", help="tasks for the comparison")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    features, classes = load(options.features)
    samples, d = features.shape
    print(f"{options.features.name}: {samples} samples, {len(classes.unique())} classes, d = {d}")
    apart = max(compare(features, classes, shots, options) for shots in (1, 5))
    if apart > LARGEST_DIFFERENCE:
        raise SystemExit(
            f"TIM-GD and its reference are {apart:.3f} points apart, more than {LARGEST_DIFFERENCE}"
        )


if __name__ == "__main__":
    main()
