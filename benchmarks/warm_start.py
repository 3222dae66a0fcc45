"""Ten more labels for a pool that is solved: from nothing, and from the weights at hand (docs/robust.md).

    python -m benchmarks.warm_start features.npz --shots 5 --more 10 --draws 3

Draw s labels the rows that numpy.random.default_rng(s) chooses, so many of each class, then `more` of the
others. Seconds are those of the processor, on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tim_ext
from tim_ext.files.features import load_features

Solve = Callable[..., tim_ext.Result]


def draw_labels(truth: Tensor, shots: int, more: int, draw: int) -> tuple[Tensor, Tensor]:
    """Labels [N] before and after, -1 for rows without one."""
    rng = np.random.default_rng(draw)
    classes = truth.numpy()
    rows = [rng.choice(np.flatnonzero(classes == k), shots, replace=False) for k in range(classes.max() + 1)]
    before = torch.full_like(truth, -1)
    before[np.concatenate(rows)] = truth[np.concatenate(rows)]
    added = torch.from_numpy(rng.choice(np.flatnonzero(before.numpy() == -1), more, replace=False))
    return before, before.index_put((added,), truth[added])


def runs(features: Tensor, before: Tensor, after: Tensor, tol: float) -> dict[str, Callable[[], Any]]:
    """Each solve by name; those that go on have solved the labels before."""
    half = {"relaxation": 0.5}
    adm = tim_ext.adm(features, before, **half)
    robust = tim_ext.robust(features, before)
    assert robust.marginal_weight is not None
    going_on = {"weights": robust.weights, "marginal_weight": float(robust.marginal_weight)}
    return {
        "adm, all iterations": lambda: tim_ext.adm(features, after, **half),
        "adm, tol": lambda: tim_ext.adm(features, after, tol=tol, **half),
        "adm, tol, weights": lambda: tim_ext.adm(features, after, tol=tol, weights=adm.weights, **half),
        "robust, all iterations": lambda: tim_ext.robust(features, after),
        "robust, tol": lambda: tim_ext.robust(features, after, tol=tol),
        "robust, tol, weights": lambda: tim_ext.robust(features, after, tol=tol, weights=robust.weights),
        "robust, tol, weights and m": lambda: tim_ext.robust(features, after, tol=tol, **going_on),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", help="features and labels, as for tim-ext evaluate")
    parser.add_argument("--shots", type=int, default=5, help="labelled rows of each class (5)")
    parser.add_argument("--more", type=int, default=10, help="rows that are labelled then (10)")
    parser.add_argument("--draws", type=int, default=3, help="choices of the labelled rows (3)")
    parser.add_argument("--tol", type=float, default=1e-2, help="of the solves that stop early (1e-2)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_features(options.features)
    features, truth = data.features.float(), data.labels
    found: dict[str, list[tuple[float, float, float]]] = {}
    for draw in range(options.draws):
        before, after = draw_labels(truth, options.shots, options.more, draw)
        for name, solve in runs(features, before, after, options.tol).items():
            start = time.process_time()
            result = solve()
            seconds = time.process_time() - start
            right = (result.predictions == truth)[after == -1].double().mean()
            found.setdefault(name, []).append((int(result.iterations), seconds, 100 * float(right)))
    print(f"{'':<28} iterations  seconds  % right")
    for name, values in found.items():
        iterations, seconds, right = np.mean(values, axis=0)
        print(f"{name:<28} {iterations:10.0f} {seconds:8.1f} {right:8.2f}")


if __name__ == "__main__":
    main()
