"""The tables of docs/label.md: pools labelled from text embeddings of class names, alone and beside labels.

    python -m benchmarks.class_names NAME=FILE ... [--draws 5]

FILE is an .npz with features [M, d], labels [M] and text [K, d], from one encoder of images and texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

import tim_ext
from tim_ext.reference import unit_length

SOLVERS = {"adm": tim_ext.adm, "gd": tim_ext.gd, "robust": tim_ext.robust}
SHOTS = (1, 2, 4, 8)
IMAGES = (1, 2, 3, 4, 6)  # of each class, on the mean, in small pools


def load(path: str) -> tuple[Tensor, Tensor, Tensor]:
    """Images [M, d], texts [K, d], classes of the images [M]."""
    with np.load(path, allow_pickle=False) as file:
        features, texts = (torch.from_numpy(file[key].astype(np.float32)) for key in ("features", "text"))
        return features, texts, torch.from_numpy(file["labels"].astype(np.int64))


def pools(truth: Tensor, draws: int) -> Iterator[tuple[str, Tensor]]:
    """Rows of pools as they may be: the share of one class, half of the classes, few images."""
    generator = torch.Generator().manual_seed(0)
    classes = int(truth.max()) + 1
    yield "all", torch.arange(len(truth))
    for share in (0.5, 0.8):
        for k in range(classes):
            own, others = (truth == k).nonzero()[:, 0], (truth != k).nonzero()[:, 0]
            count = round(len(own) * (1 - share) / share)
            chosen = others[torch.randperm(len(others), generator=generator)[:count]]
            yield f"one class {share:.0%}", torch.cat([own, chosen])
    for _ in range(4 * draws):
        present = torch.randperm(classes, generator=generator)[: classes // 2]
        yield "half missing", torch.isin(truth, present).nonzero()[:, 0]
    for per_class in IMAGES:
        for _ in range(4 * draws):
            yield (
                f"{per_class} per class",
                torch.randperm(len(truth), generator=generator)[: per_class * classes],
            )


def right(predictions: Tensor, truth: Tensor) -> float:
    return 100 * float((predictions == truth).double().mean())


def names_alone(features: Tensor, texts: Tensor) -> dict[str, Tensor]:
    """Predictions [N] by method."""
    nobody = torch.full((len(features),), -1)
    z, t = unit_length(features), unit_length(texts)
    found = {"zero-shot": (z @ t.T).argmax(dim=1)}
    found["nearest from the centres"] = tim_ext.adm(
        features, nobody, class_vectors=texts, iterations=0
    ).predictions
    found |= {
        name: solve(features, nobody, class_vectors=texts).predictions for name, solve in SOLVERS.items()
    }
    centred = torch.cat([unit_length(x - x.mean(dim=0)) for x in (z, t)])
    labels = torch.cat([nobody, torch.arange(len(t))])
    found["robust, mean of all images"] = tim_ext.robust(centred, labels).predictions[: len(z)]
    return found


def beside_labels(
    features: Tensor, texts: Tensor, truth: Tensor, draws: int, solve: Callable[..., tim_ext.Result]
) -> str:
    cells = []
    for shots in SHOTS:
        found: dict[bool, list[float]] = {False: [], True: []}
        for seed in range(draws):
            generator = torch.Generator().manual_seed(seed)
            labels = torch.full_like(truth, -1)
            for k in range(len(texts)):
                rows = (truth == k).nonzero()[:, 0]
                labels[rows[torch.randperm(len(rows), generator=generator)[:shots]]] = k
            query = labels == -1
            for named in found:
                more = {"class_vectors": texts} if named else {}
                found[named].append(right(solve(features, labels, **more).predictions[query], truth[query]))
        cells.append(f"{np.mean(found[False]):.1f} / {np.mean(found[True]):.1f}")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--draws", type=int, default=5, metavar="N", help="of labelled rows and of pools (5)")
    options = parser.parse_args()
    for name, _, path in (item.partition("=") for item in options.files):
        features, texts, truth = load(path)
        table: dict[str, dict[str, list[float]]] = {}
        for pool, rows in pools(truth, options.draws):
            for method, predictions in names_alone(features[rows], texts).items():
                table.setdefault(method, {}).setdefault(pool, []).append(right(predictions, truth[rows]))
        print(f"\n{name}, names alone\n| method | {' | '.join(next(iter(table.values())))} |")
        for method, cells in table.items():
            print(f"| {method} | {' | '.join(f'{np.mean(values):.1f}' for values in cells.values())} |")
        print(f"{name}, without / with names, shots {SHOTS}")
        for method in ("adm", "robust"):
            print(f"| {method} | {beside_labels(features, texts, truth, options.draws, SOLVERS[method])} |")


if __name__ == "__main__":
    main()
