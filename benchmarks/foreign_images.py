"""A folder of photographs, some of none of the classes: the example of docs/predict.md.

    python -m benchmarks.foreign_images images.npz

The file has images [M, H, W, 3] uint8, labels [M] and class_names. Runs `tim-ext predict` on it, without
--none-of-these and with it, and counts what it got right.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from tim_ext.cli.main import main as tim_ext
from tim_ext.files.predictions import NONE_OF_THESE


def write(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """The true class of each file to label; those of the last classes have no labelled image."""
    with np.load(options.images, allow_pickle=False) as file:
        images, labels, names = (file[key] for key in ("images", "labels", "class_names"))
    rng = np.random.default_rng(0)
    truth = {}
    for k, label in enumerate(rng.choice(np.unique(labels), options.ways + options.foreign, replace=False)):
        shots = options.shots if k < options.ways else 0
        rows = rng.permutation(np.flatnonzero(labels == label))[: shots + options.queries]
        for i, row in enumerate(rows):
            path = folder / "photos" / f"{row}.png"
            if i < shots:
                path = folder / "labelled" / str(names[label]) / f"{row}.png"
            else:
                truth[path.name] = str(names[label]) if k < options.ways else NONE_OF_THESE
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[row]).save(path)
    return truth


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path, help=".npz with images, labels, class_names")
    parser.add_argument("--ways", type=int, default=5, help="classes (5)")
    parser.add_argument("--foreign", type=int, default=3, help="classes without labelled images (3)")
    parser.add_argument("--shots", type=int, default=5, help="labelled images of each class (5)")
    parser.add_argument("--queries", type=int, default=40, help="images to label of each (40)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = write(options, folder)
        for more in ([], ["--none-of-these"]):
            paths = [str(folder / part) for part in ("labelled", "photos", "out")]
            given = [
                word for pair in zip(("--support", "--query", "--out"), paths, strict=True) for word in pair
            ]
            if tim_ext(["predict", *given, *more]):
                raise SystemExit(1)
            with (folder / "out" / "predictions.csv").open(newline="", encoding="utf-8") as file:
                found = {row["path"]: row["class"] for row in csv.DictReader(file)}
            own = [path for path, label in truth.items() if label != NONE_OF_THESE]
            others = [path for path in truth if path not in own]
            right = sum(found[path] == truth[path] for path in own)
            lost, apart = (sum(found[path] == NONE_OF_THESE for path in some) for some in (own, others))
            print(
                f"{' '.join(more) or 'off'}: of {len(own)} images of the classes {right} are right and "
                f"{lost} {NONE_OF_THESE}; of {len(others)} others {apart} are {NONE_OF_THESE}\n"
            )


if __name__ == "__main__":
    main()
