"""`tim-ext demo`: the whole job on data that needs no download.

Images of characters that the shipped encoder has never seen, and real handwritten digits, become features;
thousands of few-shot tasks are drawn from them; nearest prototype, two other transductive methods and TIM
label the queries. Prints a table and writes a report to open in a browser.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .. import tasks
from ..evaluation import plots, theory
from ..evaluation.compare import evaluate
from ..evaluation.table import Evaluation, Row
from ..files.atomic import write_atomically
from ..files.outputs import output_folder
from ..images import encoder, glyphs
from ..images.glyphs import GlyphSet
from ..solver.params import ADM, GD, check_count
from ..solver.solve import adm, gd
from . import pages
from .options import add_seed
from .pages import Example

BEDS = {"novel": "unseen glyphs", "digits": "handwritten digits"}
FIRST, TIM, SLOW = "nearest prototype", "TIM-ADM", "TIM-GD"
METHODS = (f"{FIRST}=prototype", "BD-CSPN=bd-cspn", "LaplacianShot=laplacianshot", f"{TIM}=tim-adm")
SLOW_METHODS = (f"{FIRST}=prototype", f"{SLOW}=tim-gd")  # on fewer tasks
WAYS, SHOTS, QUERIES = 5, (1, 5), 15
TASKS, SLOW_TASKS = 10_000, 500
CURVES = 100  # tasks behind the curves of convergence
EXAMPLES = 3  # tasks of each bed shown in the report
FILES = "report.html", "results.json", "convergence-*.png"  # of --out
SHEET = 24, 6  # columns and rows of images in the report


@dataclass(frozen=True, eq=False)
class Bed:
    """Test images, and all that was found out about them."""

    title: str
    data: GlyphSet
    features: Tensor  # [M, d]
    evaluations: tuple[Evaluation, Evaluation]  # of METHODS, and of SLOW_METHODS on fewer tasks

    @property
    def rows(self) -> list[Row]:
        """By setting; TIM-GD last, compared with nearest prototype on its own tasks."""
        fast, slow = (evaluation.rows for evaluation in self.evaluations)
        settings = dict.fromkeys(row.setting for row in fast)
        return [
            row
            for setting in settings
            for row in (*fast, *(row for row in slow if row.method == SLOW))
            if row.setting == setting
        ]


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "demo",
        help="the whole job on embedded data: images, features, tasks, a table, a report",
        description=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.set_defaults(run=run)
    add.add_argument("--out", type=Path, default=Path("tim_ext_demo"), metavar="DIR", help="(tim_ext_demo)")
    add.add_argument("--tasks", type=int, default=TASKS, metavar="N", help=f"of each setting ({TASKS})")
    add.add_argument(
        "--gd-tasks", type=int, default=SLOW_TASKS, metavar="N", help=f"the same for TIM-GD ({SLOW_TASKS})"
    )
    add_seed(add)
    add.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder of the images (the user's cache folder)"
    )


def run(options: argparse.Namespace) -> int:
    counts = tuple(
        check_count(name, value, at_least=2)
        for name, value in (("--tasks", options.tasks), ("--gd-tasks", options.gd_tasks))
    )
    seed = check_count("--seed", options.seed, at_least=0)
    cached = [] if options.cache is None else sorted(options.cache.glob("*"))
    output_folder("--out", options.out, FILES, {"--cache": cached})
    beds = [_run(split, counts, seed, options.cache) for split in BEDS]
    print(f"\n{table(beds)}\n")
    with _step("report"):
        write_report(beds, options.out, seed=seed)
    print(f"open {options.out / 'report.html'} in a browser")
    return 0


def _run(split: str, counts: tuple[int, ...], seed: int, cache: Path | None) -> Bed:
    title = BEDS[split]
    with _step(f"{title}: images"):
        data = glyphs.load(split, root=cache)
    with _step(f"{title}: features of {len(data):,} images"):
        features = encoder.extract(encoder.glyph_encoder(), data.images)
    evaluations = []
    for methods, count in zip((METHODS, SLOW_METHODS), counts, strict=True):
        names = ", ".join(method.split("=")[0] for method in methods)
        with _step(f"{title}: {count:,} tasks, {len(SHOTS)} settings, {names}"):
            evaluation = evaluate(
                features,
                data.labels,
                methods=methods,
                ways=WAYS,
                shots=SHOTS,
                queries=QUERIES,
                tasks=count,
                seed=seed,
                progress=True,
            )
        if evaluation.interrupted:
            raise KeyboardInterrupt
        evaluations.append(evaluation)
    return Bed(title, data, features, (evaluations[0], evaluations[1]))


@contextmanager
def _step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", flush=True)


# The table ----------------------------------------------------------------------------------------


def table(beds: Sequence[Bed]) -> str:
    """For the terminal: a line for each method, a column for each setting of each bed."""
    columns = [(bed.title, setting, _by_method(bed, setting)) for bed in beds for setting in _settings(bed)]
    methods = list(columns[0][2])
    head = [["", *(title for title, _, _ in columns)], ["method", *(setting for _, setting, _ in columns)]]
    body = [[name, *(_accuracy(rows[name]) for _, _, rows in columns)] for name in methods]
    gains = [
        [f"{name} gains", *(_gain(rows[name]) for _, _, rows in columns)]
        for name in methods
        if name in (TIM, SLOW)
    ]
    widths = [max(map(len, column)) for column in zip(*head, *body, *gains, strict=True)]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in (*head, *body, *gains)
    ]
    rule = "-" * max(map(len, lines))
    lines[2:2] = [rule]
    lines[-len(gains) : -len(gains)] = [rule]
    counts = sorted({row.tasks for bed in beds for row in bed.rows}, reverse=True)
    note = f"percent of the queries, mean of {counts[0]:,} tasks and its 95 % confidence interval"
    if len(counts) > 1:
        note += f"; {SLOW}: of the first {counts[-1]:,} of them, gain over {FIRST} on the same"
    return "\n".join([*lines, note])


def _settings(bed: Bed) -> list[str]:
    return list(bed.evaluations[0].accuracies)


def _by_method(bed: Bed, setting: str) -> dict[str, Row]:
    return {row.method: row for row in bed.rows if row.setting == setting}


def _accuracy(row: Row) -> str:
    return f"{row.accuracy:.2f} ± {row.accuracy_ci95:.2f}"


def _gain(row: Row) -> str:
    return "" if row.difference is None else f"{row.difference:+.2f} ± {row.difference_ci95:.2f}"


# The report ---------------------------------------------------------------------------------------


def write_report(beds: Sequence[Bed], folder: Path, *, seed: int) -> None:
    """report.html, the numbers behind it as results.json, and its plots as PNG files."""
    gains = {bed.title: _by_method(bed, _settings(bed)[0])[TIM] for bed in beds}
    introduction = (
        f"In each task {SHOTS[0]} or {SHOTS[-1]} images of each of {WAYS} classes are labelled, {QUERIES} "
        "of each class are not. TIM labels these all at once: it maximises the mutual information between "
        "their features and their labels. With one labelled image per class, "
        f"{TIM} is better than the {FIRST} by "
        + " and by ".join(f"{row.difference:.1f} points on {title}" for title, row in gains.items())
        + "."
    )
    page = pages.page(
        "Few-shot classification with tim_ext",
        introduction,
        _results(beds),
        *(_convergence(bed, folder, seed) for bed in beds),
        *(_examples(bed, seed) for bed in beds),
        _data(beds),
        _how(beds),
    )
    write_atomically(folder / "report.html", page)
    results = {bed.title: [evaluation.describe() for evaluation in bed.evaluations] for bed in beds}
    write_atomically(folder / "results.json", json.dumps(results, indent=2) + "\n")


def _results(beds: Sequence[Bed]) -> str:
    header = ["method", "accuracy (%)", "gain", "tasks", "ms per task"]
    tables = []
    for bed in beds:
        for setting in _settings(bed):
            rows = list(_by_method(bed, setting).values())
            cells = [
                [
                    row.method,
                    _accuracy(row),
                    _gain(row),
                    f"{row.tasks:,}",
                    f"{1000 * row.seconds_per_task:.3g}",
                ]
                for row in rows
            ]
            best = max(range(len(rows)), key=lambda number: rows[number].accuracy)
            tables.append(
                pages.table(f"{bed.title[:1].upper()}{bed.title[1:]}, {setting}", header, cells, best)
            )
    note = (
        f"Means over the tasks, 95 % confidence intervals. The gain is over the {FIRST} on the same tasks, "
        f"in points. {SLOW}, {GD.iterations:,} steps of Adam, is evaluated on fewer tasks, the first ones."
    )
    return pages.section("Results", pages.side_by_side(*tables), pages.paragraph(note))


def _convergence(bed: Bed, folder: Path, seed: int) -> str:
    drawn = _sampler(bed, seed)[0 : min(CURVES, bed.rows[0].tasks)]
    curves = {
        TIM: theory.convergence(bed.features, drawn),
        SLOW: theory.convergence(bed.features, drawn, gd, iterations=GD.iterations),
    }
    setting = _settings(bed)[0]
    png = _png(plots.draw_convergence(curves, f"{bed.title}, {setting}, {len(drawn)} tasks"))
    write_atomically(folder / f"convergence-{bed.title.replace(' ', '-')}.png", png)
    caption = (
        "Accuracy on the queries and mutual information, against iterations and time; iteration 0 is the "
        f"{FIRST}. No query label is used: accuracy follows the mutual information."
    )
    return pages.section(f"Convergence on {bed.title}", pages.figure(png, caption))


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def _sampler(bed: Bed, seed: int) -> tasks.Sampler:
    return tasks.balanced(bed.data.labels, ways=WAYS, shots=SHOTS[0], queries=QUERIES, seed=seed)


def _examples(bed: Bed, seed: int) -> str:
    drawn = _sampler(bed, seed)[0:EXAMPLES]
    predictions = {}
    for name, iterations in ((FIRST, 0), (TIM, ADM.iterations)):
        result = adm(bed.features, drawn.labels, index=drawn.index, iterations=iterations)
        assert isinstance(result.predictions, Tensor)
        predictions[name] = result.predictions.numpy()
    parts = [pages.example_legend(FIRST, TIM)]
    for t in range(EXAMPLES):
        parts.append(
            pages.example(
                f"Task {t + 1}",
                Example(
                    images=bed.data.images[drawn.index[t].numpy()],
                    labels=drawn.labels[t].numpy(),
                    truth=drawn.truth[t].numpy(),
                    class_names=[bed.data.class_names[c] for c in drawn.classes[t]],
                    predictions={name: found[t] for name, found in predictions.items()},
                ),
            )
        )
    return pages.section(f"The first {EXAMPLES} tasks of {bed.title}, {_settings(bed)[0]}", *parts)


def _data(beds: Sequence[Bed]) -> str:
    columns, rows = SHEET
    parts = []
    for bed in beds:
        chosen = np.linspace(0, len(bed.data) - 1, columns * rows).astype(int)
        sheet = pages.gray_png(255 - pages.contact_sheet(bed.data.images[chosen], columns))
        classes = len(bed.data.class_names)
        parts.append(
            pages.figure(
                sheet, f"{bed.title}: {columns * rows} of {len(bed.data):,} images of {classes} classes"
            )
        )
    return pages.section("The images", *parts)


def _how(beds: Sequence[Bed]) -> str:
    described = beds[0].evaluations[0].describe()
    versions = ", ".join(f"{name} {version}" for name, version in described["versions"].items())
    seconds = sum(evaluation.description["seconds"] for bed in beds for evaluation in bed.evaluations)
    return pages.section(
        "How it was made",
        pages.paragraph(
            "Glyphs are characters of the fonts that ship inside matplotlib, in up to 22 faces, warped, "
            "blurred and noised; characters that look alike are one class. The encoder, a Conv-4 with "
            f"{beds[0].features.shape[1]} features, was trained on other classes of glyphs, none of them a "
            "digit. The handwritten digits are scikit-learn's, 8 x 8 pixels, enlarged."
        ),
        pages.paragraph(
            "Every method has the same hyper-parameters everywhere. The evaluation took "
            f"{seconds:.0f} s with {described['threads']} threads ({versions}; {described['platform']}). "
            "results.json beside this page has all numbers, settings and hyper-parameters."
        ),
    )
