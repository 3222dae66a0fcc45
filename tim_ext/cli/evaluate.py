"""`tim-ext evaluate`: from options and files to `tim_ext.evaluation.run`, and the report."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import tasks
from ..distributed.processes import Processes, start
from ..errors import require
from ..evaluation.methods import METHODS, named_methods
from ..evaluation.run import MEMORY, Setting, check_base_mean, check_pool, make_runs, name_settings, run
from ..evaluation.tuning import VALIDATION_TASKS, Tuning, split_classes, tune
from ..files.features import Features, load_features, mean_of_rows
from ..solver.params import check_count
from ..tasks.samplers import Sampler

INTERRUPTED = 130  # exit code: 128 + SIGINT
VALIDATION_SHARE = 0.5  # of the classes

EXAMPLES = """
examples:
  tim-ext evaluate features.npz --methods simpleshot tim-adm --shots 1 5 --tasks 10000
  tim-ext evaluate features.npz --dirichlet --methods tim-adm best=tim-adm --set best.class_prior=oracle
  tim-ext evaluate features.npz --methods tim-adm --tune --validation other_classes.npz --out results
"""


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "evaluate",
        help="compare methods on few-shot tasks drawn from a file of features",
        description="Draws few-shot tasks from features, runs all methods on the same tasks, and prints\n"
        "accuracies with 95 % confidence intervals. Ctrl-C reports what is done.\n"
        "Several processes share the tasks: torchrun --nproc-per-node N -m tim_ext evaluate ...",
        epilog=f"methods:\n  {', '.join(METHODS)}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.set_defaults(run=evaluate)

    data = add.add_argument_group("features")
    data.add_argument("features", metavar="FEATURES", help=".npz, .npy, .safetensors, .pt or .parquet")
    data.add_argument("--features-key", metavar="KEY", help="the entry of the file that holds the features")
    data.add_argument("--labels-key", metavar="KEY", help="the entry of the file that holds the labels")
    data.add_argument("--labels-path", metavar="FILE", help="labels in a file of their own")
    data.add_argument(
        "--base-mean",
        type=Path,
        metavar="FILE",
        help="mean feature of the base classes, for simpleshot (CL2N): a vector in .npy, or a file of the "
        "features of the base classes",
    )

    methods = add.add_argument_group("methods")
    methods.add_argument(
        "--methods",
        nargs="+",
        default=["prototype", "tim-adm"],
        metavar="METHOD",
        help="differences are to the first; NAME=METHOD for a name of your own (default: prototype tim-adm)",
    )
    methods.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="METHOD.NAME=VALUE",
        help="a hyper-parameter, for example tim-adm.temperature=10; class_prior=oracle takes the true "
        "proportions of each task",
    )
    methods.add_argument("--tune", action="store_true", help="choose hyper-parameters on validation classes")
    methods.add_argument("--validation", metavar="FILE", help="features of the validation classes")
    methods.add_argument(
        "--validation-share",
        type=float,
        metavar="SHARE",
        help="without --validation: tune on this share of the classes of FEATURES, test on the others "
        f"(default: {VALIDATION_SHARE})",
    )
    methods.add_argument(
        "--validation-tasks", type=int, metavar="N", help=f"tasks to tune on (default: {VALIDATION_TASKS})"
    )

    which = add.add_argument_group("tasks")
    which.add_argument("--tasks", type=int, default=1000, metavar="N", help="of each setting (default: 1000)")
    which.add_argument("--ways", type=int, metavar="K", help="classes of a task (default: 5)")
    which.add_argument(
        "--shots",
        type=int,
        nargs="+",
        metavar="N",
        help="support samples per class; each number makes a setting (default: 1 5)",
    )
    which.add_argument(
        "--queries",
        type=int,
        metavar="N",
        help="per class (default: 15); with --dirichlet or --present, of the task (default: 75)",
    )
    which.add_argument("--seed", type=int, default=0, help="of the tasks (default: 0)")
    kind = which.add_mutually_exclusive_group()
    kind.add_argument(
        "--dirichlet",
        type=float,
        nargs="?",
        const=2.0,
        metavar="CONCENTRATION",
        help="random proportions of the classes among the queries (default: 2)",
    )
    kind.add_argument("--present", type=int, metavar="K", help="queries of only K of the classes")
    kind.add_argument(
        "--meta-dataset", action="store_true", help="ways, shots and balance at random, as in Meta-Dataset"
    )
    which.add_argument(
        "--hierarchy", type=Path, metavar="FILE", help="JSON {node: [class or node, ...]}, as for ILSVRC"
    )
    which.add_argument(
        "--superclasses", type=Path, metavar="FILE", help="JSON {superclass: [class, ...]}, as for Omniglot"
    )

    how = add.add_argument_group("running and results")
    how.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.csv and evaluation.json")
    how.add_argument("--plots", type=Path, metavar="DIR", help="write pictures")
    how.add_argument(
        "--memory",
        type=memory_size,
        default=MEMORY,
        metavar="SIZE",
        help="for the tasks in work (default: 512MB)",
    )
    how.add_argument(
        "--no-times",
        action="store_true",
        help="leave times out of the table and the CSV: two runs of the same tasks then agree byte by byte",
    )
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: those of torch)")


def evaluate(options: argparse.Namespace) -> int:
    with start() as processes:
        return evaluate_together(options, processes)


def evaluate_together(options: argparse.Namespace, processes: Processes) -> int:
    """All processes of torchrun read the files and share the tasks; the first one reports."""
    check_options(options)
    hyper = parse_hyper(options.methods, options.set)
    if options.threads is not None:
        torch.set_num_threads(check_count("--threads", options.threads, at_least=1))
    if options.plots is not None:
        require("matplotlib", "evaluate")
    for directory in filter(None, (options.out, options.plots)):
        directory.mkdir(parents=True, exist_ok=True)  # a bad path fails now and not after the run

    data, validation = load(options)
    for rank, other in enumerate(processes.gather(data.sha256)):
        if other != data.sha256:
            raise ValueError(
                f"{data.path}: expected the same data in all processes, got other in rank {rank}"
            )
    pool, labels = check_pool(data.features, data.labels)
    base_mean = None if options.base_mean is None else check_base_mean(load_mean(options.base_mean), pool)
    samplers = make_samplers(options, data, "test classes: " if options.tune else "")
    to_tune = {} if validation is None else make_samplers(options, validation, "validation classes: ")
    common = {
        "base_mean": base_mean,
        "memory": options.memory,
        "progress": find_spec("tqdm") is not None,
        "processes": processes,
    }

    settings = []
    for name, sampler in samplers.items():
        chosen, report = hyper, None
        if validation is not None:
            tuning = tune(
                validation.features,
                validation.labels,
                to_tune[name],
                methods=options.methods,
                tasks=options.validation_tasks,
                hyper=hyper,
                **common,
            )
            chosen, report = (
                tuning.hyper,
                describe_tuning(tuning, options, validation, to_tune[name]),
            )
        runs = make_runs(options.methods, chosen, base_mean=base_mean is not None)
        settings.append(Setting(name, sampler, runs, report))

    described = {"path": data.path, "sha256": data.sha256, "classes": len(classes_of(data))}
    evaluation = run(pool, settings, tasks=options.tasks, data=described, command=options.command, **common)
    if not processes.is_first:
        return INTERRUPTED if evaluation.interrupted else 0
    if options.out is not None:  # first of all: a terminal may fail
        evaluation.save(
            options.out / "evaluation.csv", options.out / "evaluation.json", times=not options.no_times
        )
    size = f"{int((labels >= 0).sum())} samples of {described['classes']} classes, d = {pool.shape[1]}"
    print(f"{Path(data.path).name}: {size}\n\n{evaluation.table(times=not options.no_times)}")
    for note in notes(settings, options):
        print(f"\n{note}")
    if options.out is not None:
        print(f"\nwritten: {options.out / 'evaluation.csv'}, {options.out / 'evaluation.json'}")
    if evaluation.interrupted:
        print("tim-ext evaluate: interrupted, the table holds what was done", file=sys.stderr)
        return INTERRUPTED
    if options.plots is not None:
        from ..evaluation.plots import save_all

        files = save_all(evaluation, options.plots, features=pool, sampler=samplers)
        print(f"\npictures: {', '.join(map(str, files))}")
    return 0


# The options --------------------------------------------------------------------------------------


def memory_size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.replace(" ", ""), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"expected a size such as 512MB or 2GB, got {text!r}")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def check_options(options: argparse.Namespace) -> None:
    """Refuses what would be ignored, and fills in defaults that depend on other options."""
    if options.meta_dataset:
        for name in ("ways", "shots", "queries"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"--{name}: expected no such option with --meta-dataset, which draws them itself"
                )
    for name, condition in (
        ("hierarchy", "meta_dataset"),
        ("superclasses", "meta_dataset"),
        ("validation", "tune"),
        ("validation_share", "tune"),
        ("validation_tasks", "tune"),
    ):
        if getattr(options, name) is not None and not getattr(options, condition):
            option, needed = (word.replace("_", "-") for word in (name, condition))
            raise ValueError(f"--{option}: expected --{needed} with it")
    if options.validation is not None and options.validation_share is not None:
        raise ValueError("--validation-share: expected no such option with --validation")
    if options.validation_share is None:
        options.validation_share = VALIDATION_SHARE
    if not 0 < options.validation_share < 1:
        raise ValueError(
            f"--validation-share: expected a number between 0 and 1, got {options.validation_share}"
        )
    if options.validation_tasks is None:
        options.validation_tasks = VALIDATION_TASKS


def parse_hyper(methods: Sequence[str], assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """From METHOD.NAME=VALUE, with METHOD as in `methods`."""
    chosen = named_methods(methods)
    hyper: dict[str, dict[str, Any]] = {}
    for text in assignments:
        match = re.fullmatch(r"([^.=]+)\.([^.=]+)=(.+)", text)
        if not match:
            raise ValueError(f"--set: expected METHOD.NAME=VALUE, got {text!r}")
        label, name, value = match.groups()
        if label not in chosen:
            raise ValueError(f"--set: expected a method out of {', '.join(chosen)}, got {label!r}")
        hyper.setdefault(label, {})[name] = chosen[label].parse(name, value, label)
    return hyper


# The files ----------------------------------------------------------------------------------------


def load(options: argparse.Namespace) -> tuple[Features, Features | None]:
    """What to test on, and what to tune on if at all."""
    keys = {"features_key": options.features_key, "labels_key": options.labels_key}
    data = load_features(options.features, labels_path=options.labels_path, **keys)
    if not options.tune:
        return data, None
    if options.validation is None:
        first, second = split_classes(data.labels, options.validation_share, options.seed)
        return replace(data, labels=second), replace(data, labels=first)
    validation = load_features(options.validation, **keys)
    shared = set(data.class_names or ()) & set(validation.class_names or ())
    if shared or data.sha256 == validation.sha256:
        same = f"{min(shared)!r} in both" if shared else "the same file"
        raise ValueError(f"--validation: expected other classes than in {data.path}, got {same}")
    return data, validation


def load_mean(path: Path) -> Tensor:
    """[d], from a vector or from features of which it is the mean."""
    if path.suffix.lower() != ".npy":
        return mean_of_rows(load_features(path).features)
    try:
        array = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"--base-mean: expected an array in {path}, got something else ({error})") from None
    return mean_of_rows(array) if array.dim() == 2 else array


def load_groups(path: Path | None, option: str) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not text
        raise ValueError(f"{option}: expected JSON in {path}, got something else ({error})") from None


# The tasks ----------------------------------------------------------------------------------------


def make_samplers(options: argparse.Namespace, data: Features, where: str = "") -> dict[str, Sampler]:
    try:
        return name_settings(_make_samplers(options, data))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}{error}") from None


def _make_samplers(options: argparse.Namespace, data: Features) -> Iterator[Sampler]:
    if options.meta_dataset:
        yield tasks.meta_dataset(
            data.labels,
            hierarchy=load_groups(options.hierarchy, "--hierarchy"),
            superclasses=load_groups(options.superclasses, "--superclasses"),
            class_names=data.class_names,
            seed=options.seed,
        )
        return
    given = {
        name: getattr(options, name) for name in ("ways", "queries") if getattr(options, name) is not None
    }
    for shots in (1, 5) if options.shots is None else options.shots:
        arguments = {"shots": shots, "seed": options.seed, **given}
        if options.dirichlet is not None:
            yield tasks.dirichlet(data.labels, concentration=options.dirichlet, **arguments)
        elif options.present is not None:
            yield tasks.few_classes(data.labels, present=options.present, **arguments)
        else:
            yield tasks.balanced(data.labels, **arguments)


# The report ---------------------------------------------------------------------------------------


def classes_of(data: Features) -> list[int]:
    return [label for label in sorted(set(data.labels.tolist())) if label >= 0]


def describe_tuning(
    tuning: Tuning, options: argparse.Namespace, validation: Features, sampler: Sampler
) -> dict[str, Any]:
    return {
        "path": validation.path,
        "sha256": validation.sha256,
        "share_of_classes": None if options.validation else options.validation_share,
        "classes": classes_of(validation),
        "sampler": sampler.describe(),
        "tasks": options.validation_tasks,
        "trials": tuning.trials,
    }


def notes(settings: Sequence[Setting], options: argparse.Namespace) -> Iterator[str]:
    """What the table does not say."""
    for label, item in settings[0].runs.items():
        if item.method.with_base_mean and options.base_mean is None:
            yield f"{label}: transform={item.hyper['transform']}, as there is no --base-mean"
    for setting in settings:
        if setting.tuning:
            lines = [f"{setting.name}, tuned on {len(setting.tuning['classes'])} other classes:"]
            for label, trials in setting.tuning["trials"].items():
                hyper = setting.runs[label].hyper
                lines.append(
                    f"{label}: " + ", ".join(f"{name}={hyper[name]}" for name in trials[0]["values"])
                )
            yield "\n  ".join(lines)
