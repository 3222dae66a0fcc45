"""The approximate neighbours of large pools against exact ones, on a pool that is small enough for both.

    python -m benchmarks.neighbours clinc150_features.npz

The numbers of docs/scale.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from tim_ext import distributed, load_features
from tim_ext.distributed import approximate_neighbours, smoothing
from tim_ext.distributed.ranks import Ranks
from tim_ext.reference import unit_length

EXACT = 0  # in the place of the number of cells that are probed


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parse.add_argument("pool", type=Path, help="features and labels: .npz")
    parse.add_argument("--probed", type=int, nargs="+", default=[8, 16, 32], help="cells")
    parse.add_argument("--draws", type=int, default=5, help="choices of the labelled rows")
    parse.add_argument("--shots", type=int, default=5, help="labelled rows of each class")
    options = parse.parse_args()
    data = load_features(options.pool)
    features, truth = data.features.float(), data.labels.long()
    z = unit_length(features)
    c = z - z.mean(dim=0)
    start = time.process_time()
    exact = smoothing.exact_neighbours(Ranks(0, 1), c, [len(c)], 10, lambda: None).row
    print(f"{len(c)} x {c.shape[1]}: exact, {time.process_time() - start:.1f} s of processor time")
    for probed in options.probed:
        approximate_neighbours.PROBED = probed
        start = time.process_time()
        _, found = approximate_neighbours.approximate_neighbours(c, 10, lambda: None)
        spent = time.process_time() - start
        share = (found[:, :, None] == exact[:, None, :]).any(dim=2).double().mean()
        print(f"{probed} cells: {share:.2%} of the ten nearest found, {spent:.1f} s")
    for probed in (EXACT, *options.probed):
        right = [accuracy(features, truth, draw, options.shots, probed) for draw in range(options.draws)]
        print(f"{probed or 'all'} cells: {sum(right) / len(right):.2%} right")


def accuracy(features: Tensor, truth: Tensor, draw: int, shots: int, probed: int) -> float:
    """Of the rows without a label, with `shots` labelled rows of each class."""
    generator = torch.Generator().manual_seed(draw)
    labels = torch.full_like(truth, -1)
    for k in range(int(truth.max()) + 1):
        rows = (truth == k).nonzero()[:, 0]
        labels[rows[torch.randperm(len(rows), generator=generator)[:shots]]] = k
    smoothing.MOST_COMPARED = len(truth) if probed == EXACT else 0
    approximate_neighbours.PROBED = probed
    found = distributed.robust(features, labels).predictions
    return float((found == truth)[labels < 0].double().mean())


if __name__ == "__main__":
    main()
