"""Rows that come after a smoothed fit, for docs/estimator.md: `python -m benchmarks.new_rows FILE ...`.

Each FILE holds `features` [M, d] and `labels` [M]. Of the unlabelled rows of a task one half is in the fit of
`TIMClassifier()`, the other half is new. Ways to label the new ones, percent right:

    prototype   means of the labelled rows
    means       class means of the rows of the fit by p: w_k = sum_i p_ik z_i / sum_i p_ik
    weights     W of the fit as it is, points among smoothed rows, on rows that are not smoothed
    predict     what TIMClassifier does: a new row is smoothed among those of the fit, then W of the fit
    again       a fit with the new rows in the pool

The first three take the class of the nearest point, z_i the (square roots of the) features at unit length.
The last two columns: how many unlabelled rows of the fit would get the class that the fit gave them, with W
as it is and with the means. --whole: draws of the labelled rows where all classes and rows of FILE are one
task.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tim_ext
from tim_ext import tasks
from tim_ext.estimator import TIMClassifier
from tim_ext.reference import one_hot_rows, prototypes, unit_length
from tim_ext.solver.roots import LEAST

COLUMNS = ("prototype", "means", "weights", "predict", "again", "same: weights", "same: means")


def nearest_point(z: Tensor, w: Tensor) -> Tensor:
    return torch.cdist(z, w).argmin(dim=1)


def one_task(features: Tensor, labels: Tensor, truth: Tensor, draw: torch.Generator) -> list[float]:
    """The columns of one task, 0 to 1."""
    query = (labels < 0).nonzero()[:, 0]
    query = query[torch.randperm(len(query), generator=draw)]
    new, old = query[: len(query) // 2], query[len(query) // 2 :]
    kept = torch.cat([(labels >= 0).nonzero()[:, 0], old])
    y = labels[kept]
    model = TIMClassifier().fit(features[kept].numpy(), y.numpy())
    again = TIMClassifier().fit(features.numpy(), labels.numpy())

    roots = bool((features[kept] >= 0).all())
    z = unit_length((features + LEAST).sqrt() if roots else features)
    w = torch.from_numpy(model.weights_)
    given = one_hot_rows(y, len(w)).to(z)
    by_p = prototypes(z[kept], torch.from_numpy(model.label_distributions_))
    found = [
        nearest_point(z[new], prototypes(z[kept], given)),
        nearest_point(z[new], by_p),
        nearest_point(z[new], w),
        torch.from_numpy(model.predict(features[new].numpy())),
        torch.from_numpy(again.transduction_)[new],
    ]
    got = torch.from_numpy(model.transduction_)[y < 0]
    same = [nearest_point(z[old], points) == got for points in (w, by_p)]
    return [float(right.double().mean()) for right in [*(one == truth[new] for one in found), *same]]


def settings(labels: Any, count: int, whole: int) -> Iterator[tuple[str, Any, int]]:
    """Name, sampler and number of tasks. Small classes (Omniglot: 20 rows) have fewer unlabelled ones."""
    large = int(np.unique(np.asarray(labels), return_counts=True)[1].min()) >= 60
    for ways in (5, 20):
        for shots in (1, 5):
            same = {"ways": ways, "shots": shots}
            name = f"{ways}-way {shots}-shot"
            yield name, tasks.balanced(labels, queries=30 if large else 14, **same), count
            total = ways * (30 if large else 8 if ways < 20 else 5)
            yield f"{name}, Dirichlet(2)", tasks.dirichlet(labels, queries=total, **same), count
    for shots in (1, 5):
        yield f"whole pool, {shots}-shot", tasks.whole_pool(labels, shots=shots), whole


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--tasks", type=int, default=150, help="of each setting (150)")
    parser.add_argument("--whole", type=int, default=0, help="draws of the whole pool (0)")
    options = parser.parse_args()
    print(f"| set | setting | {' | '.join(COLUMNS)} |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for path in options.files:
        data = tim_ext.load_features(path)
        features = data.features.float()
        for name, sampler, count in settings(data.labels, options.tasks, options.whole):
            if not count:
                continue
            draw = torch.Generator().manual_seed(0)
            drawn = sampler[0:count]
            of_tasks = zip(drawn.index, drawn.labels, drawn.truth, strict=True)
            rows = [one_task(features[index], labels, truth, draw) for index, labels, truth in of_tasks]
            cells = " | ".join(f"{100 * value:.1f}" for value in np.mean(rows, axis=0))
            print(f"| {path.stem.split('_')[0]} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
