"""docs/results.md: all methods on real features, balanced and Dirichlet tasks, 5-way and 20-way.

    python -m benchmarks.results NAME=FILE ... [--tasks 500] [--many 50]

FILE is anything `tim-ext evaluate` reads. 5-way settings get `--tasks` tasks, 20-way ones `--many`.
Hyper-parameters are the defaults of every method: nothing is tuned on these features.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation.methods import METHODS
from tim_ext.evaluation.table import Evaluation
from tim_ext.files.features import Features, load_features

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
BEGIN, END = "<!-- tables made by benchmarks.results: begin -->", "<!-- end -->"


def settings(labels: torch.Tensor, many: bool) -> dict[str, tasks.Sampler]:
    if many:
        return {f"20-way {n}-shot": tasks.balanced(labels, ways=20, shots=n, queries=10) for n in (1, 5)}
    # small classes (Omniglot: 20 samples) are not enough for 75 queries of which one class may have half
    queries = 75 if labels[labels >= 0].unique(return_counts=True)[1].min() >= 60 else 25
    kind = "Dirichlet" if queries == 75 else f"Dirichlet, {queries} queries"
    return {
        "5-way 1-shot": tasks.balanced(labels, shots=1),
        "5-way 5-shot": tasks.balanced(labels, shots=5),
        f"5-way 1-shot, {kind}": tasks.dirichlet(labels, shots=1, queries=queries),
        f"5-way 5-shot, {kind}": tasks.dirichlet(labels, shots=5, queries=queries),
    }


def run(data: Features, many: bool, count: int) -> Evaluation:
    samplers = settings(data.labels, many)
    methods = [*METHODS, "tim-adm, true proportions=tim-adm"]
    return tim_ext.evaluate(
        data.features,
        data.labels,
        methods=methods,
        sampler=samplers,
        tasks=count,
        hyper={"tim-adm, true proportions": {"class_prior": "oracle"}},
        progress=True,
    )


def readable(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"


def table(evaluation: Evaluation) -> str:
    names = list(evaluation.accuracies)
    lines = ["| method | " + " | ".join(names) + " | ms per task |", "|---|" + "---|" * (len(names) + 1)]
    by_place = {(row.setting, row.method): row for row in evaluation.rows}
    for method in dict.fromkeys(row.method for row in evaluation.rows):
        rows = [by_place[name, method] for name in names]
        cells = [f"{row.accuracy:.1f} ± {row.accuracy_ci95 or 0:.1f}" for row in rows]
        spread = sorted(row.seconds_per_task * 1e3 for row in rows)
        cells.append(f"{readable(spread[0])} to {readable(spread[-1])}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section(name: str, path: str, options: argparse.Namespace) -> str:
    data = load_features(path)
    parts = [f"### {name}\n\n{len(data.features):,} x {data.features.shape[1]}, sha256 `{data.sha256[:12]}`"]
    for many, count in ((False, options.tasks), (True, options.many)):
        if count:
            evaluation = run(data, many, count)
            queries = 10 if many else 15
            parts.append(f"{count} tasks of each setting, seed 0, {queries} queries per class:")
            parts.append(table(evaluation))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--many", type=int, default=50, help="20-way tasks; 0: none")
    options = parser.parse_args()
    start = time.perf_counter()
    texts = [section(*item.split("=", 1), options) for item in options.files]
    names = " ".join(item.split("=")[0] + "=FILE" for item in options.files)
    texts.append(
        f"Made by `python -m benchmarks.results {names} --tasks {options.tasks} --many {options.many}` in "
        f"{time.perf_counter() - start:.0f} s: tim_ext {tim_ext.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}."
    )
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n\n".join(texts) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
