"""Labels scikit-learn's handwritten digits from a few labelled images per class.

The features are the 64 raw pixels. In each draw, a few images of each class keep their label and all others
are queries. Prints the accuracy on the queries of the nearest prototype (the mean of the labelled images of a
class) and of TIM-ADM, which also uses the unlabelled images.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

import tim_ext


def load() -> tuple[Tensor, Tensor]:
    """Pixels [1797, 64] and classes [1797]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("this example needs scikit-learn: pip install scikit-learn") from None
    pixels, classes = load_digits(return_X_y=True)
    return torch.as_tensor(pixels, dtype=torch.float32), torch.as_tensor(classes)


def hide_labels(classes: Tensor, per_class: int, generator: torch.Generator) -> Tensor:
    """Keeps `per_class` random labels of each class; the others become -1 (query)."""
    labels = torch.full_like(classes, -1)
    for k in range(int(classes.max()) + 1):
        rows = (classes == k).nonzero()[:, 0]
        kept = rows[torch.randperm(len(rows), generator=generator)[:per_class]]
        labels[kept] = k
    return labels


def report(name: str, result: tim_ext.Result, labels: Tensor, classes: Tensor) -> None:
    queries = labels == -1  # [T, N]
    right = 100 * (queries & (result.predictions == classes)).sum(1) / queries.sum(1)  # [T]
    print(f"{name:<18} {right.mean():.1f} % right (from {right.min():.1f} to {right.max():.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tim_ext.examples.digits", description=__doc__)
    few, many = range(1, 101), range(1, 1001)
    parser.add_argument("--labels-per-class", type=int, default=5, metavar="N", choices=few, help="1 to 100")
    parser.add_argument("--draws", type=int, default=10, metavar="N", choices=many, help="1 to 1000")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    pixels, classes = load()
    generator = torch.Generator().manual_seed(options.seed)
    draws = [hide_labels(classes, options.labels_per_class, generator) for _ in range(options.draws)]
    labels = torch.stack(draws)  # [T, N]
    index = torch.arange(len(pixels)).expand_as(labels)  # every draw uses the same images: one copy of them

    prototypes = tim_ext.adm(pixels, labels, index=index, iterations=0, outputs=("predictions",))
    start = time.perf_counter()
    tim = tim_ext.adm(pixels, labels, index=index, outputs=("predictions",))
    seconds = time.perf_counter() - start

    queries = int((labels[0] == -1).sum())
    print(f"{options.draws} draws, {options.labels_per_class} labels per class, {queries} unlabelled images")
    report("nearest prototype", prototypes, labels, classes)
    report("TIM-ADM", tim, labels, classes)
    print(f"TIM-ADM took {1000 * seconds / options.draws:.1f} ms per draw")


if __name__ == "__main__":
    main()
