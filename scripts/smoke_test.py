"""The main jobs of the installed tim_ext, on one small task, against the reference.

Needs torch and numpy only, as the package itself; scikit-learn is used where it is installed.
"""

from __future__ import annotations

import csv
import importlib.util
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import tim_ext

CLASSES, SHOTS, QUERIES, D = 5, 5, 15, 64


def make_task() -> tuple[Tensor, Tensor, Tensor]:
    """features [N, d], labels [N] with -1 for queries, and the true classes [N]."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, D, generator=generator, dtype=torch.float64)
    classes = torch.arange(CLASSES).repeat(SHOTS + QUERIES)
    noise = torch.randn(len(classes), D, generator=generator, dtype=torch.float64)
    labels = classes.clone()
    labels[CLASSES * SHOTS :] = -1
    return centres[classes] + 0.7 * noise, labels, classes


def check(what: str, result: tim_ext.Result, truth: tim_ext.Result, tolerance: float) -> None:
    error = float((result.probs.double() - truth.probs).abs().max())
    assert error <= tolerance, f"{what}: probabilities differ by {error:.1e}"
    assert torch.equal(result.predictions, truth.predictions), f"{what}: predictions differ"


def solvers(features: Tensor, labels: Tensor) -> None:
    adm, gd = tim_ext.reference.adm(features, labels), tim_ext.reference.gd(features, labels, iterations=50)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        given = features.to(dtype)
        for form in ("dual", "primal"):
            check(f"adm {form} {dtype}", tim_ext.adm(given, labels, form=form), adm, tolerance)
        check(f"gd {dtype}", tim_ext.gd(given, labels, iterations=50), gd, tolerance)
        check(f"distributed.adm {dtype}", tim_ext.distributed.adm(given, labels), adm, tolerance)
    alone = tim_ext.adm(features, labels)
    batch = tim_ext.adm(torch.stack([features, features.flip(0)]), torch.stack([labels, labels.flip(0)]))
    assert torch.equal(batch.probs[0], alone.probs), "adm: a task alone differs from the same in a batch"
    ragged = tim_ext.adm([features, features[:60]], [labels, labels[:60]])
    assert torch.equal(ragged.probs[0], alone.probs), "adm: a task alone differs from the same in a list"


def estimator(features: Tensor, labels: Tensor, classes: Tensor) -> None:
    if importlib.util.find_spec("sklearn"):
        predicted = tim_ext.TIMClassifier().fit(features.numpy(), labels.numpy()).predict(features.numpy())
        assert (predicted == classes.numpy()).mean() > 0.9, "TIMClassifier: less than 90 % right"
        return
    try:
        tim_ext.TIMClassifier  # noqa: B018
    except ImportError as error:
        refusal = str(error)
    else:
        refusal = "none"
    assert "sklearn" in refusal, f"TIMClassifier without scikit-learn is refused with: {refusal}"


def run_command(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("tim-ext")), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)} ends with {done.returncode}:\n{done.stdout}"
    return done.stdout


def commands(features: Tensor, labels: Tensor, classes: Tensor) -> None:
    assert tim_ext.__version__ in run_command("info"), "tim-ext info: the version is not named"
    with tempfile.TemporaryDirectory() as folder:
        pool, support, out = (str(Path(folder, name)) for name in ("pool.npz", "support.csv", "out.csv"))
        np.savez(pool, features=features.float().numpy())
        with open(support, "w", newline="") as file:
            rows = [(row, f"class {label}") for row, label in enumerate(labels.tolist()) if label >= 0]
            csv.writer(file).writerows([("row", "label"), *rows])
        run_command("label", pool, "--support", support, "--out", out)
        with open(out, newline="") as file:
            written = [row["label"] for row in csv.DictReader(file)]
    right = [name == f"class {label}" for name, label in zip(written, classes.tolist(), strict=True)]
    assert sum(right) > 0.9 * len(right), f"tim-ext label: {sum(right)} of {len(right)} right"


def main() -> None:
    features, labels, classes = make_task()
    solvers(features, labels)
    estimator(features, labels, classes)
    commands(features, labels, classes)
    print(
        f"smoke test passed: tim_ext {tim_ext.__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.ops.tim_ext.cpu_capability()}, {tim_ext.__file__}"
    )


if __name__ == "__main__":
    main()
