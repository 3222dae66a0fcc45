"""Options that several commands have: each is added, and read, in one place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..evaluation.methods import Method, named_methods
from ..files.features import load_features, mean_of_rows
from ..files.formats import check_path, open_file, read_entry
from ..files.label_files import read_proportions, to_proportions
from ..solver.params import check_count
from ..solver.presets import PRESETS
from .parsing import memory_size, split_assignment

# Running ------------------------------------------------------------------------------------------


def add_threads(add: Any) -> None:
    add.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: those of torch)")


def use_threads(options: argparse.Namespace) -> None:
    if options.threads is not None:
        torch.set_num_threads(check_count("--threads", options.threads, at_least=1))


def add_memory(add: Any, default: int, what: str) -> None:
    add.add_argument("--memory", type=memory_size, default=default, metavar="SIZE", help=what)


def add_seed(add: Any) -> None:
    add.add_argument("--seed", type=int, default=0, help="of the tasks (default: 0)")


def add_spreadsheet_safe(add: Any) -> None:
    what = "an apostrophe before text in .csv that a spreadsheet would run as a formula (= + - @)"
    add.add_argument("--spreadsheet-safe", action="store_true", help=what)


# Features -----------------------------------------------------------------------------------------


def add_features_key(add: Any) -> None:
    add.add_argument("--features-key", metavar="KEY", help="the entry of the file that holds the features")


def load_mean(path: Path) -> Tensor:
    """[d] of --base-mean, from a vector or from features of which it is the mean."""
    if path.suffix.lower() != ".npy":
        return mean_of_rows(load_features(path).features)
    with open_file(check_path("--base-mean", path)) as entries:
        value = read_entry(path, entries, "")
    if value.dtype.kind not in "iuf" or value.dtype.itemsize > 8:
        raise ValueError(f"--base-mean: expected numbers in {path}, got {value.dtype}")
    array = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
    return mean_of_rows(array) if array.dim() == 2 else array


# Methods and their hyper-parameters ---------------------------------------------------------------


def add_method(add: Any) -> None:
    choices = list(PRESETS)
    names = ", ".join(preset.title for preset in PRESETS.values())
    add.add_argument("--method", choices=choices, default=choices[0], help=f"{names} (default: {choices[0]})")


def add_set(add: Any, what: str, *, method: bool = False) -> None:
    """`method`: there are several, and an assignment names its own."""
    metavar = "METHOD.NAME=VALUE" if method else "NAME=VALUE"
    add.add_argument("--set", nargs="+", action="extend", default=[], metavar=metavar, help=what)


def read_set(options: argparse.Namespace, method: Method) -> dict[str, Any]:
    """The hyper-parameters of --set NAME=VALUE, without those that have an option of their own."""
    known = [name for name in method.parameters if not hasattr(options, name)]
    hyper = {}
    for text in options.set:
        name, value = split_assignment("--set", text)
        if name in method.parameters and name not in known:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"--set: expected {option} instead of {name}, got {text!r}")
        if name in method.former_names:
            new = method.former_names[name]
            raise UserError(f"--set: expected {new}, the new name of {name}, got {name!r}")
        if name not in known:
            raise UserError(f"--set: expected a hyper-parameter out of {', '.join(known)}, got {name!r}")
        hyper[name] = method.parse(name, value)
    return hyper


def read_set_by_method(options: argparse.Namespace, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same for --set METHOD.NAME=VALUE, with METHOD as in `methods`."""
    chosen: Mapping[str, Method] = named_methods(methods)
    hyper: dict[str, dict[str, Any]] = {}
    for text in options.set:
        whole, value = split_assignment("--set", text, "METHOD.NAME=VALUE")
        label, _, name = whole.partition(".")
        if not label or not name or "." in name:
            raise ValueError(f"--set: expected METHOD.NAME=VALUE, got {text!r}")
        if label not in chosen:
            raise ValueError(f"--set: expected a method out of {', '.join(chosen)}, got {label!r}")
        hyper.setdefault(label, {})[name] = chosen[label].parse(name, value, label)
    return hyper


# Proportions of the classes -----------------------------------------------------------------------


def add_class_prior(add: Any, where: str) -> None:
    add.add_argument(
        "--class-prior",
        nargs="+",
        metavar=("FILE|NAME=SHARE", "NAME=SHARE"),
        help=f"proportions of the classes {where}, if known, or counts: a CSV file label,proportion, or "
        "NAME=SHARE of every class (default: not known; adm and gd then take them to be equal)",
    )


def read_class_prior(options: argparse.Namespace, class_names: Sequence[str]) -> list[float] | None:
    """Shares of sum 1 in the order of the classes."""
    given, option = options.class_prior, "--class-prior"
    if given is None:
        return None
    if len(given) == 1 and (Path(given[0]).is_file() or "=" not in given[0]):
        if not Path(given[0]).is_file():
            raise UserError(f"{option}: expected a CSV file or NAME=SHARE of every class, got {given[0]!r}")
        return read_proportions(Path(given[0]), class_names)
    pairs = [split_assignment(option, text, "NAME=SHARE", at_last=True) for text in given]
    return to_proportions(option, [(option, name, share) for name, share in pairs], class_names)
