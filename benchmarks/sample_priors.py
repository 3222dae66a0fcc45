"""What priors of single samples are worth: `python -m benchmarks.sample_priors NAME=FILE ... [--tasks 20]`.

FILE holds `features` [M, d] and `labels` [M]. Tasks of K classes (5, 20, and all of them up to 150), 15
queries each, with guesses of every sample's class that are wrong for 10 to 40 % of them: any other class
("random"), or always the same other one, the nearest ("alike"). A prior gives its guess 0.9 and shares the
rest. Percent of the queries right, means over tasks: the guesses alone; `robust` and `adm` without them, with
them (sample_prior_weight="auto"), and with lam_0 = 0.1 as it is; `gd` with --gd. The last column is paired,
with its 95 % interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation.statistics import mean_and_ci95
from tim_ext.reference import one_hot_rows, prototypes, unit_length

WAYS, ALL = (5, 20), 150  # classes of a task; all classes of the file, if there are no more
SURE = 0.9


def guesses(
    z: Tensor, truth: Tensor, classes: int, wrong: float, alike: bool, draw: torch.Generator
) -> Tensor:
    """[N]"""
    means = unit_length(prototypes(z, one_hot_rows(truth, classes).to(z)))
    nearest = (means @ means.T).fill_diagonal_(-2).argmax(dim=1)
    other = (
        nearest[truth]
        if alike
        else (truth + torch.randint(1, classes, truth.shape, generator=draw)) % classes
    )
    return torch.where(torch.rand(truth.shape, generator=draw) < wrong, other, truth)


def drawn(pool: Any, ways: int, shots: int, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Features, labels and truth of each task."""
    sampler = tasks.balanced(pool.labels, ways=ways, shots=shots, queries=15, seed=0)
    for task in (sampler[i : i + 1] for i in range(count)):
        features = unit_length(torch.as_tensor(pool.features)[task.index[0]].float())
        yield features, task.labels[0], task.truth[0]


def compare(pool: Any, ways: int, shots: int, count: int, wrong: float, alike: bool, gd: bool) -> str:
    draw = torch.Generator().manual_seed(1)
    solvers = {"robust": tim_ext.robust, "adm": tim_ext.adm, **({"gd": tim_ext.gd} if gd else {})}
    right: dict[str, list[float]] = {}
    for z, labels, truth in drawn(pool, ways, shots, count):
        query = labels < 0
        guess = guesses(z, truth, ways, wrong, alike, draw)
        prior = torch.where(one_hot(guess, ways) == 1, SURE, (1 - SURE) / (ways - 1))
        found = {"guesses": guess}
        for name, solve in solvers.items():
            only = {"outputs": ("predictions",)}
            found[name] = solve(z, labels, **only).predictions
            found[f"{name} auto"] = solve(z, labels, sample_prior=prior, **only).predictions
            found[f"{name} 0.1"] = solve(
                z, labels, sample_prior=prior, sample_prior_weight=0.1, **only
            ).predictions
        for name, predictions in found.items():
            share = 100 * float((predictions == truth)[query].double().mean())
            right.setdefault(name, []).append(share)
    cells = [f"{np.mean(shares):.1f}" for shares in right.values()]
    best = np.maximum(np.mean(right["robust"]), np.mean(right["guesses"]))
    better = "robust" if np.mean(right["robust"]) == best else "guesses"
    gain = mean_and_ci95(torch.tensor(right["robust auto"]) - torch.tensor(right[better]))
    return " | ".join([*cells, f"{gain[0]:+.1f} +- {gain[1]:.1f} to {better}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--gd", action="store_true")
    options = parser.parse_args()
    names = ["guesses"]
    for name in ("robust", "adm", *(["gd"] if options.gd else [])):
        names += [name, f"{name}, auto", f"{name}, 0.1"]
    print(
        f"| set | setting | wrong | {' | '.join(names)} | robust, auto, to the better of guesses and robust |"
    )
    print("|---" * (len(names) + 4) + "|")
    for item in options.files:
        name, _, path = item.partition("=")
        pool = tim_ext.load_features(path)
        whole = len(set(pool.labels.tolist()))
        for ways, shots in product((*WAYS, *([whole] if max(WAYS) < whole <= ALL else [])), (1, 5)):
            count = options.tasks if ways in WAYS else max(options.tasks // 10, 2)
            for alike, wrong in product((False, True), (0.1, 0.2, 0.3, 0.4)):
                cells = compare(pool, ways, shots, count, wrong, alike, options.gd)
                kind = "alike" if alike else "random"
                print(f"| {name} | {ways}-way {shots}-shot | {wrong:.0%} {kind} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
