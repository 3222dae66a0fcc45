"""Which tasks `tim-ext evaluate` draws: `--sampler`, its older spellings, and what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .. import tasks
from ..evaluation.settings import name_settings
from ..files.features import Features
from ..tasks import Sampler
from .options import add_seed
from .parsing import load_groups


class Kind(NamedTuple):
    """A sampler as it is written: NAME, or NAME:NUMBER where the function has a number of its own."""

    function: Callable[..., Sampler]
    number: str | None = None  # the argument
    read: Callable[[str], float] = float
    needed: bool = False
    refuses: tuple[str, ...] = ()  # options that it has no use for


KINDS = {
    "balanced": Kind(tasks.balanced),
    "dirichlet": Kind(tasks.dirichlet, "concentration"),
    "zipf": Kind(tasks.zipf, "exponent"),
    "dominant": Kind(tasks.dominant, "share"),
    "few-classes": Kind(tasks.few_classes, "present", int, needed=True),
    "whole-pool": Kind(tasks.whole_pool, refuses=("ways", "queries")),
    "meta-dataset": Kind(tasks.meta_dataset, refuses=("ways", "shots", "queries")),
}
META_DATASET = "meta-dataset"


def add_tasks(group: Any) -> None:
    group.add_argument("--tasks", type=int, default=1000, metavar="N", help="of each setting (default: 1000)")
    group.add_argument("--ways", type=int, metavar="K", help="classes of a task (default: 5)")
    group.add_argument(
        "--shots",
        type=int,
        nargs="+",
        metavar="N",
        help="support samples per class; each number makes a setting (default: 1 5)",
    )
    group.add_argument(
        "--queries",
        type=int,
        metavar="N",
        help="per class if balanced (default: 15), otherwise of the task (default: 75)",
    )
    add_seed(group)
    kind = group.add_mutually_exclusive_group()
    kind.add_argument(
        "--sampler",
        nargs="+",
        metavar="KIND",
        help="what the classes have of the queries; each kind makes a setting: balanced (the default); "
        "dirichlet[:CONCENTRATION] (2), random proportions; zipf[:EXPONENT] (1), as the words of a language; "
        "dominant[:SHARE] (0.5), one class has that share; few-classes:K, only K of the classes; whole-pool, "
        "all classes of FEATURES and all rows that are not support; meta-dataset, ways, shots and balance at "
        "random",
    )
    kind.add_argument(
        "--dirichlet",
        type=float,
        nargs="?",
        const=2.0,
        metavar="CONCENTRATION",
        help="the same as --sampler dirichlet:CONCENTRATION",
    )
    kind.add_argument("--present", type=int, metavar="K", help="the same as --sampler few-classes:K")
    kind.add_argument("--meta-dataset", action="store_true", help="the same as --sampler meta-dataset")
    for name, example in (
        ("hierarchy", "{node: [class or node, ...]}, as for ILSVRC"),
        ("superclasses", "{superclass: [class, ...]}, as for Omniglot"),
    ):
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"for meta-dataset: JSON {example}")


def check_tasks(options: argparse.Namespace) -> None:
    """Refuses what would be ignored, and writes the older spellings as --sampler."""
    spelling = "--sampler {}"
    if options.dirichlet is not None:
        options.sampler = [f"dirichlet:{options.dirichlet!r}"]
    elif options.present is not None:
        options.sampler = [f"few-classes:{options.present}"]
    elif options.meta_dataset:
        options.sampler, spelling = [META_DATASET], "--{}"
    elif options.sampler is None:
        options.sampler = ["balanced"]
    for text in options.sampler:
        name, _ = read_kind(text)
        for option in KINDS[name].refuses:
            if getattr(options, option) is not None:
                raise ValueError(
                    f"--{option}: expected no such option with {spelling.format(name)}, which sets it itself"
                )
    for option in ("hierarchy", "superclasses"):
        if getattr(options, option) is not None and META_DATASET not in options.sampler:
            raise ValueError(f"--{option}: expected --{META_DATASET} with it")


def read_kind(text: str) -> tuple[str, dict[str, float]]:
    """The name of a kind, and the argument that it was given."""
    name, colon, number = text.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"--sampler: expected kinds out of {', '.join(KINDS)}, got {text!r}")
    if kind.number is None and colon:
        raise ValueError(f"--sampler: expected {name} without a number, got {text!r}")
    if not colon and not kind.needed:
        return name, {}
    assert kind.number is not None
    try:
        return name, {kind.number: kind.read(number)}
    except ValueError:
        what = "an integer" if kind.read is int else "a number"
        raise ValueError(f"--sampler: expected {name}:{kind.number.upper()}, {what}, got {text!r}") from None


def make_samplers(options: argparse.Namespace, data: Features, where: str = "") -> dict[str, Sampler]:
    """By the name of the setting."""
    try:
        return name_settings(_make_samplers(options, data))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}{error}") from None


def _make_samplers(options: argparse.Namespace, data: Features) -> Iterator[Sampler]:
    for text in options.sampler:
        name, arguments = read_kind(text)
        kind = KINDS[name]
        arguments["seed"] = options.seed
        if name == META_DATASET:
            yield tasks.meta_dataset(
                data.labels,
                hierarchy=load_groups(options.hierarchy, "--hierarchy"),
                superclasses=load_groups(options.superclasses, "--superclasses"),
                class_names=data.class_names,
                seed=options.seed,
            )
            continue
        for option in ("ways", "queries"):
            if getattr(options, option) is not None:
                arguments[option] = getattr(options, option)
        for shots in (1, 5) if options.shots is None else options.shots:
            yield kind.function(data.labels, shots=shots, **arguments)
