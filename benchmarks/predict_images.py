"""How well `tim-ext predict` labels folders of images whose classes are known.

    python -m benchmarks.predict_images images.npz

The file has images [M, H, W, 3] uint8 and labels [M]. Some of each class are written as PNG files and encoded
as `tim-ext predict` does it; then, many times, some classes are drawn, a few images of each are labelled, and
nearest prototype, TIM-ADM, TIM-GD and robust label others. Prints accuracies, and what a confidence is worth.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tim_ext.images.extraction import open_extractor
from tim_ext.images.labelling import solve
from tim_ext.images.networks import LITE

METHODS = {  # --method of `tim-ext predict`, and hyper-parameters
    "nearest prototype": ("adm", {"iterations": 0}),
    "TIM-ADM": ("adm", {}),
    "TIM-GD": ("gd", {}),
    "robust": ("robust", {}),
}
BANDS = (0.0, 0.5, 0.9, 0.99, 1.01)  # of confidence


def encode(images, name, workers):
    """[M, d], by way of files."""
    extract = open_extractor(name, device="cpu", workers=workers)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as spool:
        paths = [Path(folder, f"{row}.png") for row in range(len(images))]
        for path, image in zip(paths, images, strict=True):
            Image.fromarray(image).save(path)
        encoded, skipped = extract(paths, spool)
        assert not skipped
        return encoded.features


def draw(rng, labels, ways, shots, queries):
    """Rows of the labelled images and of the others, and their classes 0 .. ways - 1."""
    rows, classes = ([], []), ([], [])
    for k, label in enumerate(rng.choice(np.unique(labels), ways, replace=False)):
        chosen = rng.permutation(np.flatnonzero(labels == label))[: shots + queries]
        for part, some in enumerate((chosen[:shots], chosen[shots:])):
            rows[part].extend(some)
            classes[part].extend([k] * len(some))
    return *map(np.array, rows), *map(torch.tensor, classes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path, help=".npz with images, labels")
    parser.add_argument("--encoder", default=LITE)
    parser.add_argument(
        "--per-class", type=int, default=70, help="images of each class that are encoded (70)"
    )
    parser.add_argument("--ways", type=int, default=10)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--queries", type=int, default=60, help="of each class (60)")
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    with np.load(options.images, allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    rows = [
        row
        for label in np.unique(labels)
        for row in rng.permutation(np.flatnonzero(labels == label))[: options.per_class]
    ]
    labels = labels[rows]
    features = encode(images[rows], options.encoder, workers=2)

    right, confidence = {}, {}
    for shots in options.shots:
        for _ in range(options.draws):
            known, found, classes, truth = draw(rng, labels, options.ways, shots, options.queries)
            for name, (method, hyper) in METHODS.items():
                probs, sure = solve(method, features[known], classes, features[found], hyper)
                right.setdefault((shots, name), []).append(probs.argmax(axis=1) == truth.numpy())
                confidence.setdefault((shots, name), []).append(sure)
    print(f"{options.ways} classes, {options.queries} images of each to label, {options.draws} draws")
    for (shots, name), hits in right.items():
        percent = [100 * part.mean() for part in hits]
        print(
            f"{shots} labelled, {name:<18} {np.mean(percent):.1f} % right "
            f"(from {min(percent):.1f} to {max(percent):.1f})"
        )
    for key, parts in confidence.items():
        values, hits = np.concatenate(parts), np.concatenate(right[key])
        bands = [(values >= low) & (values < high) for low, high in pairwise(BANDS)]
        print(f"{key[0]} labelled, {key[1]}: mean confidence {100 * values.mean():.1f} %")
        for low, band in zip(BANDS, bands, strict=False):
            if band.any():
                size, worth = 100 * band.mean(), 100 * hits[band].mean()
                print(f"  confidence from {low:.2f}: {size:4.1f} % of the images, {worth:.1f} % right")


if __name__ == "__main__":
    main()
