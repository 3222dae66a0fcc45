"""`tim-ext paper`: from options and files to `tim_ext.evaluation.paper`, and the tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..evaluation.paper import Source, describe, extend, measure, render
from ..evaluation.paper_tables import DATASETS, META_DATASETS, METHODS, RANDOM_TASKS, RESNET, TABLES, TASKS
from ..files.atomic import write_atomically
from ..files.features import load_features
from ..files.outputs import output_file
from ..solver.params import check_count
from .options import add_seed, add_set, add_threads, load_mean, read_set_by_method, use_threads
from .parsing import INTERRUPTED, load_groups, split_assignment

EXAMPLES = """
FEATURES is a file, or DATASET=FILE, or DATASET:BACKBONE=FILE. A DATASET of the paper fills its columns, with
BACKBONE ResNet-18 unless you say WRN28-10; any other one gets columns of its own in all tables.

datasets of the paper:
  mini, tiered, cub        standard benchmarks, ways (mini), ablation, run-times (mini:WRN28-10)
  mini-cub                 domain shift: CUB features of an encoder trained on mini-ImageNet
  {meta}
                           Meta-Dataset

examples:
  tim-ext paper
  tim-ext paper mini=mini.npz mini:WRN28-10=mini_wrn.npz --tables standard run-times
  tim-ext paper my_features.npz --tasks 500 --out paper.json
"""


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "paper",
        help="the tables of the TIM paper, with numbers measured on your features beside its own",
        description="Runs the protocol of the TIM paper on features and prints its tables, published\n"
        "numbers beside measured ones; without features, the published ones. Ctrl-C prints what is done.",
        epilog=EXAMPLES.format(meta=", ".join(META_DATASETS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.set_defaults(run=run)
    add.add_argument("features", nargs="*", metavar="FEATURES", help="see below")
    names = [table.name for table in TABLES]
    add.add_argument(
        "--tables",
        nargs="+",
        choices=names,
        default=names,
        metavar="TABLE",
        help=f"out of {', '.join(names)}",
    )
    add.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help=f"of each setting (default: as in the paper, {TASKS}, and {RANDOM_TASKS} of Meta-Dataset)",
    )
    add_seed(add)
    methods = ", ".join(dict.fromkeys(METHODS.values()))
    add_set(add, f"a hyper-parameter, for all tables; methods: {methods}", method=True)
    for option, what in (
        ("base-mean", "mean feature of the base classes, for SimpleShot (CL2N): .npy, or their features"),
        (
            "hierarchy",
            "Meta-Dataset tasks by a hierarchy of classes, as for ILSVRC: JSON {node: [class or node]}",
        ),
        (
            "superclasses",
            "Meta-Dataset tasks by superclass, as for Omniglot: JSON {superclass: [class, ...]}",
        ),
    ):
        add.add_argument(
            f"--{option}", nargs="+", action="extend", default=[], metavar="DATASET=FILE", help=what
        )
    add.add_argument(
        "--out", type=Path, metavar="FILE", help="write all numbers, and how to repeat them, as JSON"
    )
    add_threads(add)


def run(options: argparse.Namespace) -> int:
    use_threads(options)
    if options.tasks is not None:
        check_count("--tasks", options.tasks, at_least=1)
    hyper = read_set_by_method(options, list(dict.fromkeys(METHODS.values())))
    check_output(options)
    sources = load_sources(options)
    tables = [extend(table, sources) for table in TABLES if table.name in options.tables]
    results = measure(
        tables,
        sources,
        tasks=options.tasks,
        seed=options.seed,
        hyper=hyper,
        progress=find_spec("tqdm") is not None,
    )
    if options.out is not None:
        report = {"command": options.command, **describe(tables, results)}
        write_atomically(options.out, json.dumps(report, indent=2, allow_nan=False) + "\n")
    print("\n\n".join(render(table, results) for table in tables))
    for note in results.notes:
        print(note)
    if options.set and sources:
        print(f"not with the hyper-parameters of the paper: {', '.join(options.set)}")
    if results.interrupted:
        print("tim-ext paper: interrupted, the tables hold what was done", file=sys.stderr)
        return INTERRUPTED
    return 0


def check_output(options: argparse.Namespace) -> None:
    if options.out is None:
        return
    inputs = {"FEATURES": [_split(text)[2] for text in options.features]}
    for name in ("base_mean", "hierarchy", "superclasses"):
        files = [text.partition("=")[2] for text in getattr(options, name)]
        inputs[f"--{name.replace('_', '-')}"] = files
    output_file("--out", options.out, inputs)


def load_sources(options: argparse.Namespace) -> list[Source]:
    named = [_split(text) for text in options.features]
    datasets = {dataset for dataset, _, _ in named}
    files = {
        option: _by_dataset(f"--{option.replace('_', '-')}", getattr(options, option), datasets)
        for option in ("base_mean", "hierarchy", "superclasses")
    }
    sources: dict[tuple[str, str], Source] = {}
    for dataset, backbone, path in named:
        key = dataset, backbone if dataset in DATASETS else ""
        if key in sources:
            twice = f"{dataset}:{backbone}" if dataset in DATASETS else dataset
            raise ValueError(f"FEATURES: expected each dataset and backbone once, got {twice} twice")
        mean = files["base_mean"].get(dataset)
        groups = {
            option: load_groups(files[option].get(dataset), f"--{option}")
            for option in ("hierarchy", "superclasses")
        }
        data = load_features(path)
        sources[key] = Source(dataset, backbone, data, None if mean is None else load_mean(mean), groups)
    return list(sources.values())


def _split(text: str) -> tuple[str, str, str]:
    """Dataset, backbone and path of FILE, DATASET=FILE or DATASET:BACKBONE=FILE."""
    name, _, path = text.rpartition("=")
    dataset, _, backbone = (name or Path(path).stem).partition(":")
    return dataset, backbone or (RESNET if dataset in DATASETS else "own"), path


def _by_dataset(option: str, assignments: Sequence[str], datasets: Iterable[str]) -> dict[str, Path]:
    files = {}
    for text in assignments:
        dataset, path = split_assignment(option, text, "DATASET=FILE")
        if dataset not in datasets:
            known = ", ".join(sorted(datasets)) or "none, as there are no FEATURES"
            raise ValueError(f"{option}: expected a dataset of FEATURES ({known}), got {dataset!r}")
        files[dataset] = Path(path)
    return files
