"""The options that training and extraction share."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from .datasets import META_DATASET, SOURCES, Dataset, open_dataset
from .loading import default_workers
from .precision import PRECISIONS


def add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    names = ", ".join(f"{name}:SOURCE" if name == META_DATASET else name for name in SOURCES)
    group.add_argument("--dataset", required=True, metavar="NAME", help=names)
    group.add_argument("--data-root", type=Path, metavar="DIR", help="folder of the dataset")
    group.add_argument("--splits", type=Path, metavar="PATH", help="split files, if not below --data-root")
    group.add_argument(
        "--split-ratio", type=float, nargs=3, metavar="SHARE", help="of the classes of an imagefolder"
    )
    group.add_argument("--split-seed", type=count(0), default=0, metavar="N", help="of --split-ratio (0)")


def open_split(options: argparse.Namespace, split: str) -> Dataset:
    return open_dataset(
        options.dataset,
        options.data_root,
        split,
        splits=options.splits,
        ratio=options.split_ratio and tuple(options.split_ratio),
        seed=options.split_seed,
    )


def inputs_of(options: argparse.Namespace) -> dict[str, Path | None]:
    """What is read, by its option: no output may be one of them."""
    return {"--data-root": options.data_root, "--splits": options.splits}


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    group.add_argument("--workers", type=count(0), metavar="N", help="processes that read images")
    group.add_argument("--amp", choices=PRECISIONS, default="off", help="automatic mixed precision (off)")


def choose_workers(options: argparse.Namespace, dataset: Dataset) -> int:
    """The cores of the machine, shared by the processes that torchrun started on it."""
    if options.workers is not None:
        return int(options.workers)
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return default_workers(dataset, max(cores, 1))


class count:  # noqa: N801
    """An argparse type: integers from `least` on."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, text: str) -> int:
        if not text.isdecimal() or int(text) < self.least:
            raise argparse.ArgumentTypeError(f"expected an integer >= {self.least}, got {text!r}")
        return int(text)


class number:  # noqa: N801
    """An argparse type: numbers in `interval`, written as in [0, 1) or (0, inf)."""

    def __init__(self, interval: str) -> None:
        self.interval = interval
        self.low, self.high = (float(end) for end in interval[1:-1].split(","))

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        closed = {"[": self.low, "]": self.high}
        if self.low < value < self.high or value in (closed.get(end) for end in self.interval):
            return value
        raise argparse.ArgumentTypeError(f"expected a number in {self.interval}, got {text!r}")
