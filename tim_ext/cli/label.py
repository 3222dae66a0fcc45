"""`tim-ext label`: from options and files to `tim_ext.distributed.labelling.label_pool`, and the report."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..distributed.labelling import SOLVERS, Job, Summary, label_pool
from ..distributed.processes import Processes, start
from ..errors import UserError, require
from ..evaluation.methods import Method
from ..files.features import ClassVectors, load_class_vectors, open_pool
from ..files.label_files import Support, read_support
from ..files.outputs import output_file
from ..files.predictions import FORMATS, NONE_OF_THESE, check_format
from ..solver.params import check_count
from ..solver.presets import PRESETS
from .none_of_these import add_none_of_these, check_names, describe_foreign
from .options import (
    add_class_prior,
    add_features_key,
    add_memory,
    add_method,
    add_set,
    add_spreadsheet_safe,
    add_threads,
    read_class_prior,
    read_set,
    use_threads,
)
from .proportions import compare_with_nearest

MEMORY = 2**30
ITERATIONS = {name: preset.defaults.iterations for name, preset in PRESETS.items()}

EXAMPLES = """
examples:
  tim-ext label features.npy --support labels.csv --out predictions.csv
  tim-ext label features.safetensors --features-key embeddings --support labels.csv --out predictions.parquet
  tim-ext label images.npy --class-vectors names.npz --out predictions.csv
  torchrun --nproc-per-node 8 -m tim_ext label pool.npy --support labels.csv --out labels.npz
"""


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "label",
        help="label all rows of a file of features from a few labelled ones",
        description="Labels every row of a pool of features from a few labelled rows, with TIM over all.\n"
        "Several processes may share the rows. Except with --method robust, which holds the rows in memory,\n"
        "features in .npy and .safetensors stay in the file, which may be larger than the memory.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.set_defaults(run=run)
    add.add_argument(
        "pool", type=Path, metavar="POOL", help="features: .npy, .safetensors, .npz, .pt or .parquet"
    )
    add_features_key(add)
    add.add_argument(
        "--support",
        type=Path,
        metavar="FILE",
        help="CSV of the labelled rows: row,label, where the first row of the pool is row 0",
    )
    add.add_argument(
        "--class-vectors",
        type=Path,
        metavar="FILE",
        help="a vector of each class from the encoder of the pool, as the text embeddings of their names, "
        "beside labelled rows or without any: .npz or .pt with class_names, or any other file of features",
    )
    add.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=f"predictions: {', '.join(FORMATS)}"
    )
    add_spreadsheet_safe(add)
    add_method(add)
    defaults = ", ".join(f"{count} for {name}" for name, count in ITERATIONS.items())
    add.add_argument("--iterations", type=int, metavar="N", help=f"(default: {defaults})")
    add_set(add, "a hyper-parameter, for example temperature=10")
    add_class_prior(add, "in the pool")
    add_none_of_these(add)
    what = "for probabilities kept within an iteration (default: 1GB); with less, they are computed twice"
    add_memory(add, MEMORY, what)
    add_threads(add)


def run(options: argparse.Namespace) -> int:
    with start() as processes:
        return _run(options, processes)


def _run(options: argparse.Namespace, processes: Processes) -> int:
    """All processes of torchrun read the files and share the rows; the first one writes and reports."""
    hyper = read_set(options, Method(options.method, SOLVERS[options.method]))
    iterations = ITERATIONS[options.method] if options.iterations is None else options.iterations
    hyper["iterations"] = check_count("--iterations", iterations, at_least=0)
    use_threads(options)
    check_format(options.out)
    if options.spreadsheet_safe and options.out.suffix.lower() != ".csv":
        raise ValueError(f"--spreadsheet-safe: expected a .csv file as --out with it, got {options.out}")
    if options.support is None and options.class_vectors is None:
        raise UserError("--support: expected labelled rows, or --class-vectors, got neither")
    inputs = {
        "POOL": options.pool,
        "--support": options.support,
        "--class-vectors": options.class_vectors,
        "--class-prior": options.class_prior,
    }
    out = output_file("--out", options.out, inputs)
    pool = open_pool(options.pool, features_key=options.features_key)
    vectors = None if options.class_vectors is None else load_class_vectors(options.class_vectors)
    support = read_labels(options, len(pool), vectors)
    check_names(options, support.class_names)
    hyper["class_prior"] = read_class_prior(options, support.class_names)
    job = Job(
        pool,
        support,
        out,
        options.method,
        hyper,
        options.memory,
        options.spreadsheet_safe,
        None if vectors is None else vectors.vectors,
        options.none_of_these,
    )
    passes = hyper["iterations"] + 2  # then labels, then the file
    with bar_of(passes * len(pool), processes) as show:
        summary = label_pool(job, processes, show)
    if processes.is_first:
        report(options, pool.shape, support, summary)
    return 0


def read_labels(options: argparse.Namespace, total: int, vectors: ClassVectors | None) -> Support:
    """The labelled rows, none if there are class vectors alone; these name the classes then."""
    if vectors is None:
        return read_support(options.support, total)
    if options.support is None:
        nothing = torch.empty(0, dtype=torch.int64)
        return Support(nothing, nothing, vectors.class_names)
    return read_support(options.support, total, vectors.class_names)


@contextmanager
def bar_of(total: int, processes: Processes) -> Iterator[Any]:
    """A function (what, rows) that moves a bar, on the terminal of the first process."""
    if find_spec("tqdm") is None or not processes.is_first:
        yield lambda what, rows: None
        return
    tqdm = require("tqdm", "evaluate").tqdm
    with tqdm(total=total, unit=" rows", unit_scale=True, leave=False, disable=None) as bar:

        def show(what: str, rows: int) -> None:
            bar.set_description(what, refresh=False)
            bar.update(min(rows, total - bar.n))

        yield show


def report(options: argparse.Namespace, shape: Sequence[int], support: Support, summary: Summary) -> None:
    rows, d = shape
    classes = len(support.class_names)
    print(
        f"{options.pool.name}: {rows} rows, d = {d}; {len(support.rows)} of them labelled, {classes} classes"
    )
    if options.class_vectors is not None:
        where = options.class_vectors.name
        print(f"{where}: a vector of each class; rows and vectors are taken from their own centres")
    names = [*support.class_names, *[NONE_OF_THESE] * (options.none_of_these is not None)]
    largest = sorted(zip(summary.counts, names, strict=True), key=lambda item: -item[0])
    shares = [f"{name} {count} ({count / rows:.1%})" for count, name in largest[:5]]
    shown = ", ".join(shares) + (", .." if len(names) > 5 else "")
    print(f"predicted: {shown}")
    for line in compare_with_nearest(
        support.class_names,
        summary.counts[:classes],
        summary.nearest[:classes],
        what="rows",
        method=options.method,
        told=options.class_prior is not None,
    ):
        print(line)
    for line in describe_foreign(options, summary.foreign, rows - len(support.rows), "rows"):
        print(line)
    if rows > len(support.rows):
        print(
            f"confidence: {summary.confidence:.3f} on average, below 0.5 in {summary.unsure:.1%} of the rows"
        )
    print(f"{options.method}: {summary.iterations} iterations, {summary.seconds:.1f} s")
    print(f"written: {options.out}")
