"""docs/results.md: all methods on real features, on balanced tasks and on pools as they are.

    python -m benchmarks.results NAME=FILE ... [--tasks 300] [--many 20] [--pools 60] [--whole 2] [--slow 8]

FILE is anything `tim-ext evaluate` reads. Tasks of each setting: --tasks with 5 classes, --many with 20,
--pools with 10 classes that are not equally frequent; --whole draws of the labelled rows of a whole pool (at
most 100 classes and 2,000 rows of it); 0 leaves the settings out. --slow: tasks of alpha-am, which takes
seconds for one; with 20 classes and on whole pools it is left out. Hyper-parameters are the defaults of every
method: nothing is tuned on these features.
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
from tim_ext.evaluation.methods import METHODS
from tim_ext.evaluation.table import Row
from tim_ext.files.features import Features, load_features

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
BEGIN, END = "<!-- tables made by benchmarks.results: begin -->", "<!-- end -->"
PROTOTYPE, ORACLE, SLOW = "prototype", "tim-adm, true proportions", "alpha-am"
MOST_CLASSES, MOST_ROWS = 100, 2000  # of a whole pool


class Group(NamedTuple):
    """Settings that share a table."""

    tasks: int
    with_slow: bool
    about: str
    samplers: Mapping[str, tasks.Sampler]


def groups(labels: Tensor, options: argparse.Namespace) -> Iterator[Group]:
    """Small classes (Omniglot: 20 samples) are not enough for many queries of one class."""
    large = int(labels[labels >= 0].unique(return_counts=True)[1].min()) >= 60
    both = (1, 5)
    if options.tasks:
        total = 75 if large else 25
        samplers = {f"5-way {n}-shot": tasks.balanced(labels, shots=n) for n in both}
        samplers |= {
            f"5-way {n}-shot, Dirichlet": tasks.dirichlet(labels, shots=n, queries=total) for n in both
        }
        yield Group(options.tasks, True, f"15 queries per class, {total} with Dirichlet shares", samplers)
    if options.many:
        samplers = {f"20-way {n}-shot": tasks.balanced(labels, ways=20, shots=n, queries=10) for n in both}
        yield Group(options.many, False, "10 queries per class", samplers)
    if options.pools:
        of_zipf, of_few, of_one = (100, 75, 75) if large else (40, 70, 28)
        samplers = {}
        for n in both:
            same = {"ways": 10, "shots": n}
            samplers |= {
                f"10-way {n}-shot, Zipf": tasks.zipf(labels, queries=of_zipf, **same),
                f"10-way {n}-shot, half missing": tasks.few_classes(
                    labels, present=5, queries=of_few, **same
                ),
                f"10-way {n}-shot, one has 50 %": tasks.dominant(labels, queries=of_one, **same),
            }
        about = f"queries: Zipf {of_zipf}, half of the classes missing {of_few}, one has 50 % {of_one}"
        yield Group(options.pools, True, about, samplers)
    if options.whole:
        chosen = part_of(labels)
        classes, rows = int(chosen[chosen >= 0].unique().numel()), int((chosen >= 0).sum())
        samplers = {f"whole pool {n}-shot": tasks.whole_pool(chosen, shots=n) for n in both}
        yield Group(options.whole, False, f"{classes} classes, {rows:,} rows", samplers)


def part_of(labels: Tensor) -> Tensor:
    """Labels [M] of the first classes and of the first rows of each, -1 for the others."""
    known = labels[labels >= 0].unique()[:MOST_CLASSES]
    chosen = torch.full_like(labels, -1)
    for k in known:
        rows = (labels == k).nonzero()[: MOST_ROWS // len(known), 0]
        chosen[rows] = k
    return chosen


def run(data: Features, group: Group, slow: int) -> dict[tuple[str, str], Row]:
    """By setting and method. The slow one gets the first of the tasks."""
    quick = [method for method in METHODS if method != SLOW] + [f"{ORACLE}=tim-adm"]
    hyper = {ORACLE: {"class_prior": "oracle"}}
    parts = [(quick, hyper, group.tasks)]
    if group.with_slow and slow:
        parts.append(([SLOW], {}, min(slow, group.tasks)))
    rows = []
    for methods, values, count in parts:
        rows += tim_ext.evaluate(
            data.features,
            data.labels,
            methods=methods,
            sampler=group.samplers,
            tasks=count,
            hyper=values,
            progress=True,
        ).rows
    return {(row.setting, row.method): row for row in rows}


# The page -----------------------------------------------------------------------------------------


def readable(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"


def table(found: Mapping[tuple[str, str], Row]) -> str:
    names = list(dict.fromkeys(setting for setting, _ in found))
    lines = ["| method | " + " | ".join(names) + " | ms per task |", "|---|" + "---|" * (len(names) + 1)]
    for method in dict.fromkeys(method for _, method in found):
        rows = [found[name, method] for name in names]
        cells = [f"{row.accuracy:.1f} ± {row.accuracy_ci95 or 0:.1f}" for row in rows]
        spread = sorted(row.seconds_per_task * 1e3 for row in rows)
        cells.append(f"{readable(spread[0])} to {readable(spread[-1])}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section(name: str, path: str, options: argparse.Namespace) -> tuple[str, dict[tuple[str, str], Row]]:
    data = load_features(path)
    parts = [f"### {name}\n\n{len(data.features):,} x {data.features.shape[1]}, sha256 `{data.sha256[:12]}`"]
    everything = {}
    for group in groups(data.labels, options):
        found = run(data, group, options.slow)
        count = f"{group.tasks} tasks of each setting"
        if (next(iter(group.samplers)), SLOW) in found:
            count += f" ({SLOW}: {min(options.slow, group.tasks)})"
        parts += [f"{count}, seed 0; {group.about}:", table(found)]
        everything |= found
    return "\n\n".join(parts), everything


def summary(files: Mapping[str, Mapping[tuple[str, str], Row]]) -> str:
    """Means over the files: who wins a setting, and who loses to the nearest prototype there."""
    names = dict.fromkeys(setting for found in files.values() for setting, _ in found)
    lines = [
        "| setting | prototype | best, not told | robust | tim-adm | tim-adm, told | below the prototype |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in names:
        of_files = [found for found in files.values() if (setting, PROTOTYPE) in found]
        methods = [method for name, method in of_files[0] if name == setting]
        mean = {
            method: float(np.mean([found[setting, method].accuracy for found in of_files]))
            for method in methods
        }
        told = mean.pop(ORACLE)
        rivals = {method: value for method, value in mean.items() if method != SLOW}  # of all the tasks
        best = max(rivals, key=lambda method: rivals[method])
        floor = mean[PROTOTYPE]
        losers = [
            f"{method} ({mean[method] - floor:+.1f})"
            for method in sorted(mean, key=lambda method: mean[method])
            if mean[method] < floor - 0.05
        ]
        cells = [
            f"{floor:.1f}",
            f"{best} {mean[best]:.1f}",
            f"{mean['robust']:.1f}",
            f"{mean['tim-adm']:.1f}",
        ]
        lines.append(f"| {setting} | {' | '.join(cells)} | {told:.1f} | {', '.join(losers) or 'none'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    for name, count in (("tasks", 300), ("many", 20), ("pools", 60), ("whole", 2), ("slow", 8)):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"({count})")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="to write (docs/results.md)")
    options = parser.parse_args()
    start = time.perf_counter()
    texts, files = [], {}
    for name, _, path in (item.partition("=") for item in options.files):
        text, files[name] = section(name, path, options)
        texts.append(text)
    names = " ".join(f"{name}=FILE" for name in files)
    counts = " ".join(
        f"--{name} {vars(options)[name]}" for name in ("tasks", "many", "pools", "whole", "slow")
    )
    about = f"Means over {', '.join(files)}:" if len(files) > 1 else "In short:"
    texts = [f"### Which wins, which loses\n\n{about}\n\n{summary(files)}", *texts]
    texts.append(
        f"Made by `python -m benchmarks.results {names} {counts}` in {time.perf_counter() - start:.0f} s: "
        f"tim_ext {tim_ext.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.machine()}."
    )
    before, rest = options.page.read_text().split(BEGIN)
    _, after = rest.split(END)
    options.page.write_text(f"{before}{BEGIN}\n" + "\n\n".join(texts) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
