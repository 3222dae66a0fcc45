"""How many rows `tim-ext label` gets right, beside the nearest prototype: the numbers of docs/label.md.

    python -m benchmarks.label features.npz --shots 5 --draws 5

Draw s labels the rows that numpy.random.default_rng(s) chooses, so many of each class.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np

from tim_ext.cli.main import main as tim_ext
from tim_ext.files.features import load_features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", help="features and labels, as for tim-ext evaluate")
    parser.add_argument("--shots", type=int, default=5, help="labelled rows of each class (5)")
    parser.add_argument("--draws", type=int, default=5, help="choices of the labelled rows (5)")
    options = parser.parse_args()
    data = load_features(options.features)
    truth = data.labels.numpy()
    methods = {
        "nearest prototype": ["--method", "adm", "--iterations", "0"],
        "robust": [],
        "adm": ["--method", "adm"],
    }
    right: dict[str, list[float]] = {name: [] for name in methods}
    with tempfile.TemporaryDirectory() as folder:
        pool, support, out = (Path(folder) / name for name in ("pool.npy", "support.csv", "out.npz"))
        np.save(pool, data.features.numpy())
        for draw in range(options.draws):
            rng = np.random.default_rng(draw)
            rows = np.concatenate(
                [
                    rng.choice(np.flatnonzero(truth == k), options.shots, replace=False)
                    for k in np.unique(truth)
                ]
            )
            support.write_text("".join(f"{row},{truth[row]}\n" for row in rows))
            for name, more in methods.items():
                files = [str(pool), "--support", str(support), "--out", str(out)]
                with redirect_stdout(StringIO()):
                    code = tim_ext(["label", *files, *more])
                if code:
                    raise SystemExit(code)
                found = np.load(out)
                labels = found["class_names"][found["labels"]].astype(int)
                right[name].append(100 * np.mean(np.delete(labels == truth, rows)))
    for name, shares in right.items():
        print(f"{name:<18} {np.mean(shares):.1f} % right (from {min(shares):.1f} to {max(shares):.1f})")


if __name__ == "__main__":
    main()
