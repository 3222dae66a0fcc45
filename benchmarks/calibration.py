"""docs/confidence.md: how often a prediction is right, against its confidence and against its largest p.

    python -m benchmarks.calibration NAME=FILE ... [--seen NAME ...] [--tasks 150] [--many 20] [--pools 60]
        [--whole 4]
    python -m benchmarks.calibration --fit NAME=FILE ...

FILE is anything `tim-ext evaluate` reads; the settings are those of benchmarks.results. The error is the
expected calibration error: queries of all tasks of a setting in 15 bins, the mean of |mean confidence - share
that is right| over the bins, by their size; bins of equal width, or of equally many queries. At best: the
error that the same confidences would show if each query were right with exactly the chance that they say,
independently of the others; where it is above half of the error of the largest p, no confidence halves that.

--fit prints the constants of tim_ext/solver/confidence.py, fitted on all files, and the errors on each file
with constants that were fitted on the others. Each file counts once as it is, and a third each with noise,
twice as much of it, and in 32 random directions: so that there is something to tell apart.
--seen: files that the constants were fitted on, which the page then says.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation.reliability import reliability
from tim_ext.files.features import Features, load_features
from tim_ext.solver import confidence
from tim_ext.solver.batch import make_batch
from tim_ext.solver.solve import judge

from .results import groups

PAGE = Path(__file__).parent.parent / "docs" / "confidence.md"
BEGIN, END = "<!-- table made by benchmarks.calibration: begin -->", "<!-- end -->"
METHODS = {"robust": tim_ext.robust, "adm": tim_ext.adm}
AT_ONCE = 8  # tasks
MOST = 300  # queries of a setting that the fit takes
SEVERAL = len(confidence.HELD_OUT)
RIDGE = 1e-4
# of the fit alone: classes, labelled samples and queries of each; queries of all tasks of a setting
OTHER_TASKS = (
    *((2, 1, 15), (2, 3, 15), (10, 2, 6), (8, 10, 8), (50, 1, 15), (50, 5, 12)),
    *((15, 1, 60), (15, 5, 60), (100, 2, 10), (30, 1, 30), (10, 1, 150)),
)
MOST_OF_THEM = 12_000
VARIANTS = {"": 1.0, "noise 1": 1 / 3, "noise 2": 1 / 3, "32 directions": 1 / 3}  # and what they count


class Found(NamedTuple):
    """Of the queries of all tasks of a setting."""

    right: Tensor  # [n]
    largest: Tensor  # [n] p of the prediction
    terms: Tensor  # [n, 12]
    held_out: Tensor  # [n]


# by variant, setting and method
Collected = dict[tuple[str, str, str], Found]


class Line(NamedTuple):
    """Of the table, in percent."""

    name: str
    setting: str
    method: str
    accuracy: float
    largest: float  # mean
    mine: float
    before: float  # error of the largest p
    after: float  # of the confidence
    best: float  # of confidences that are right on the average
    before_mass: float  # in bins of equally many queries
    after_mass: float

    def row(self) -> str:
        numbers = " | ".join(f"{value:.1f}" for value in self[3:9])
        return f"| {' | '.join(self[:3])} | {numbers} | {self.before_mass:.1f} | {self.after_mass:.1f} |"


HEAD = (
    "| features | setting | method | right | mean largest p | mean confidence | error of the largest p | "
    "of the confidence | at best | in bins of equal mass: of the largest p | of the confidence |\n"
    + "|---" * 11
    + "|"
)
WELL = 2.0  # percent: calibrated already
DRAWS = 20  # of what is right, for the error at best


def settings_of(
    labels: Tensor, options: argparse.Namespace, more: bool = False
) -> dict[str, tuple[tasks.Sampler, int]]:
    """Sampler and number of tasks: those of docs/results.md, and for the fit others."""
    enough = len(labels[labels >= 0].unique()) >= 20
    options = argparse.Namespace(**{**vars(options), "many": options.many if enough else 0})
    found = {
        name: (sampler, group.tasks)
        for group in groups(labels, options)
        for name, sampler in group.samplers.items()
    }
    if more:
        sizes = labels[labels >= 0].unique(return_counts=True)[1]
        for ways, shots, queries in OTHER_TASKS:
            if ways <= len(sizes) and shots + queries <= int(sizes.min()):
                sampler = tasks.balanced(labels, ways=ways, shots=shots, queries=queries)
                count = max(2, min(options.tasks // 2, MOST_OF_THEM // (ways * queries)))
                found[f"{ways}-way {shots}-shot, {queries} queries"] = sampler, count
    return found


def find(features: Tensor, sampler: tasks.Sampler, part: range, method: str) -> Found:
    """On the tasks of this part of the sampler."""
    parts = []
    for start in part[::AT_ONCE]:
        drawn = sampler[start : min(start + AT_ONCE, part.stop)]
        found = METHODS[method](features, drawn.labels, index=drawn.index, outputs=("probs", "predictions"))
        batch = make_batch(features, drawn.labels, drawn.index)
        predictions, truth = found.predictions.flatten(), drawn.truth.flatten()
        largest = found.probs.amax(dim=-1).flatten()
        for queries, terms, held_out in confidence.evidence(batch, predictions, judge):
            right = (predictions == truth)[queries]
            parts.append(Found(right, largest[queries], terms, terms.new_full((len(terms),), held_out)))
    return Found(*map(torch.cat, zip(*parts, strict=True)))


def error(sure: Tensor, right: Tensor, *, equal_mass: bool = False) -> float:
    return reliability(sure, right, equal_mass=equal_mass).error


def best_error(sure: Tensor) -> float:
    draw = torch.Generator().manual_seed(0)
    sure = sure.double()
    return float(np.mean([error(sure, torch.bernoulli(sure, generator=draw)) for _ in range(DRAWS)]))


def chances(found: Found, constants: Tensor) -> Tensor:
    """[n], with constants: HELD_OUT and ONE_SHOT."""
    return (design(found) @ constants).sigmoid()


# The fit ------------------------------------------------------------------------------------------


def variant(features: Tensor, name: str) -> Tensor:
    z = torch.nn.functional.normalize(features.float())
    draw = torch.Generator().manual_seed(0)
    if name.startswith("noise"):
        noise = torch.randn(z.shape, generator=draw) / z.shape[1] ** 0.5
        noisy = z + float(name.split()[1]) * noise
        return noisy.clamp(min=0) if bool((z >= 0).all()) else noisy
    if name:
        return (z - z.mean(dim=0)) @ torch.randn(z.shape[1], int(name.split()[0]), generator=draw)
    return features


def design(found: Found) -> Tensor:
    """[n, 24]: 1 and the terms, for each of the two kinds of constants, of which the first has fewer."""
    x = torch.cat([torch.ones(len(found.terms), 1, dtype=torch.float64), found.terms], dim=1)
    share = found.held_out[:, None]
    return torch.cat([share * x[:, :SEVERAL], (1 - share) * x], dim=1)


def fit(settings: list[tuple[float, Found]]) -> Tensor:
    """[24]: logistic regression, by Newton's method; settings count by their weight."""
    draw = torch.Generator().manual_seed(0)
    x, y, weight = [], [], []
    for share, found in settings:
        some = torch.randperm(len(found.right), generator=draw)[:MOST]
        x.append(design(found)[some])
        y.append(found.right[some].double())
        weight.append(torch.full((len(some),), share / len(some), dtype=torch.float64))
    of, right, w = torch.cat(x), torch.cat(y), torch.cat(weight)
    w /= w.sum()
    ridge = RIDGE * of.square().T @ w
    c = torch.zeros(of.shape[1], dtype=torch.float64)
    for _ in range(50):
        p = (of @ c).sigmoid()
        step = torch.linalg.solve(
            (of * (w * p * (1 - p))[:, None]).T @ of + torch.diag(ridge), of.T @ (w * (p - right)) + ridge * c
        )
        c -= step
        if float(step.abs().max()) < 1e-9:
            break
    return c


def collect(features: Tensor, labels: Tensor, options: argparse.Namespace) -> Collected:
    """On other tasks than those of the page: the ones that follow in the samplers."""
    found: Collected = {}
    for kind in VARIANTS:
        changed = variant(features, kind)
        for setting, (sampler, count) in settings_of(labels, options, more=True).items():
            for method in METHODS:
                part = range(count, count + (count if not kind else max(2, count // 3)))
                found[kind, setting, method] = find(changed, sampler, part, method)
    return found


def weighted(found: Collected) -> list[tuple[float, Found]]:
    return [(VARIANTS[kind], one) for (kind, _, _), one in found.items()]


def fit_all(options: argparse.Namespace) -> None:
    files: dict[str, Collected] = {}
    for name, data in load(options):
        files[name] = collect(data.features, data.labels, options)
        print(f"{name}: {sum(len(one.right) for one in files[name].values()):,} queries", flush=True)
    print_fit(files)


def print_fit(files: Mapping[str, Collected]) -> None:
    for name, found in files.items():
        others = fit([one for other, of in files.items() if other != name for one in weighted(of)])
        rows = [
            (method, error(one.largest, one.right), error(chances(one, others), one.right))
            for (kind, setting, method), one in found.items()
            if not kind and "queries" not in setting
        ]
        for method in METHODS:
            before, after = np.array([row[1:] for row in rows if row[0] == method]).T
            print(
                f"{name}, fitted on the others, {method}: {before.mean():.1f} -> {after.mean():.1f}, at most "
                f"{after.max():.1f}"
            )
    c = fit([one for of in files.values() for one in weighted(of)])
    for label, some in (("HELD_OUT", c[:SEVERAL]), ("ONE_SHOT", c[SEVERAL:])):
        print(f"{label} = ({', '.join(f'{value:.3f}' for value in some.tolist())})")


# The page -----------------------------------------------------------------------------------------


def load(options: argparse.Namespace) -> Iterator[tuple[str, Features]]:
    for item in options.files:
        name, _, path = item.partition("=")
        yield name, load_features(path)


def rows_of(name: str, data: Features, options: argparse.Namespace) -> list[Line]:
    """With the constants of the package."""
    constants = torch.tensor([*confidence.HELD_OUT, *confidence.ONE_SHOT], dtype=torch.float64)
    lines = []
    for setting, (sampler, count) in settings_of(data.labels, options).items():
        for method in METHODS:
            found = find(data.features, sampler, range(count), method)
            mine = chances(found, constants)
            right = found.right
            lines.append(
                Line(
                    name, setting, method,
                    100 * float(right.double().mean()), 100 * float(found.largest.mean()),
                    100 * float(mine.mean()),
                    error(found.largest, right), error(mine, right), best_error(mine),
                    error(found.largest, right, equal_mass=True), error(mine, right, equal_mass=True),
                )
            )  # fmt: skip
            print(lines[-1].row(), flush=True)
    return lines


def summary(lines: list[Line], seen: list[str]) -> str:
    """Means over the settings of each file."""
    rows = [
        "| features | method | error of the largest p | of the confidence | at best | the largest of the "
        "confidence | settings halved |",
        "|---" * 7 + "|",
    ]
    for name in dict.fromkeys(line.name for line in lines):
        for method in METHODS:
            some = [line for line in lines if (line.name, line.method) == (name, method)]
            before, after, best = (
                np.mean([getattr(line, key) for line in some]) for key in ("before", "after", "best")
            )
            most = max(line.after for line in some)
            mark = "" if name not in seen else " *"
            errors = f"{before:.1f} | {after:.1f} | {best:.1f} | {most:.1f}"
            rows.append(f"| {name}{mark} | {method} | {errors} | {halved(some)} |")
    return "\n".join(rows)


def halved(lines: list[Line]) -> str:
    """How many, and of the others: half is less than what right confidences show, or next to nothing."""
    open_ = [line for line in lines if line.after > line.before / 2]
    floor = [line for line in open_ if line.before / 2 < line.best]
    well = [line for line in open_ if line not in floor and line.before < WELL and line.after < WELL]
    counts = (
        (len(floor), "cannot be"),
        (len(well), f"below {WELL:.0f} % before and after"),
        (len(open_) - len(floor) - len(well), "missed"),
    )
    parts = [f"{len(lines) - len(open_)} of {len(lines)}", *(f"{n} {what}" for n, what in counts if n)]
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--seen", nargs="*", default=[], metavar="NAME")
    for name, count in (("tasks", 150), ("many", 20), ("pools", 60), ("whole", 4)):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"({count})")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="to write")
    options = parser.parse_args()
    if options.fit:
        return fit_all(options)
    start = time.perf_counter()
    lines = [line for name, data in load(options) for line in rows_of(name, data, options)]
    counts = " ".join(f"--{name} {vars(options)[name]}" for name in ("tasks", "many", "pools", "whole"))
    names = " ".join(item.partition("=")[0] + "=FILE" for item in options.files)
    made = (
        f"Made by `python -m benchmarks.calibration {names} --seen {' '.join(options.seen)} {counts}` in "
        f"{time.perf_counter() - start:.0f} s: tim_ext {tim_ext.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}."
    )
    text = "\n\n".join(
        [summary(lines, options.seen), "\n".join([HEAD, *(line.row() for line in lines)]), made]
    )
    before, rest = options.page.read_text().split(BEGIN)
    _, after = rest.split(END)
    options.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
