"""`tim-ext evaluate`: from options and files to `tim_ext.evaluation.compare`, and the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..distributed.processes import Processes, start
from ..errors import require
from ..evaluation.compare import Validation, compare
from ..evaluation.methods import METHODS
from ..evaluation.run import MEMORY
from ..evaluation.table import Evaluation
from ..evaluation.tuning import VALIDATION_TASKS, split_classes
from ..files.features import Features, load_features
from ..files.outputs import output_folder
from .options import (
    add_features_key,
    add_memory,
    add_set,
    add_spreadsheet_safe,
    add_threads,
    load_mean,
    read_set_by_method,
    use_threads,
)
from .parsing import INTERRUPTED
from .sampling import add_tasks, check_tasks, make_samplers

FILES = "evaluation.csv", "evaluation.json"  # of --out
VALIDATION_SHARE = 0.5  # of the classes

EXAMPLES = """
examples:
  tim-ext evaluate features.npz --methods simpleshot tim-adm --shots 1 5 --tasks 10000
  tim-ext evaluate features.npz --dirichlet --methods tim-adm best=tim-adm --set best.class_prior=oracle
  tim-ext evaluate features.npz --sampler zipf dominant:0.7 whole-pool --shots 5 --tasks 20
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
    add.set_defaults(run=run)
    _add_features(add.add_argument_group("features"))
    _add_methods(add.add_argument_group("methods"))
    add_tasks(add.add_argument_group("tasks"))
    _add_running(add.add_argument_group("running and results"))


def _add_features(group: Any) -> None:
    group.add_argument("features", metavar="FEATURES", help=".npz, .npy, .safetensors, .pt or .parquet")
    add_features_key(group)
    group.add_argument("--labels-key", metavar="KEY", help="the entry of the file that holds the labels")
    group.add_argument("--labels-path", metavar="FILE", help="labels in a file of their own")
    group.add_argument(
        "--base-mean",
        type=Path,
        metavar="FILE",
        help="mean feature of the base classes, for simpleshot (CL2N): a vector in .npy, or a file of the "
        "features of the base classes",
    )


def _add_methods(group: Any) -> None:
    group.add_argument(
        "--methods",
        nargs="+",
        default=["prototype", "tim-adm"],
        metavar="METHOD",
        help="differences are to the first; NAME=METHOD for a name of your own (default: prototype tim-adm)",
    )
    add_set(
        group,
        "a hyper-parameter, for example tim-adm.temperature=10; class_prior=oracle takes the true "
        "proportions of each task",
        method=True,
    )
    group.add_argument("--tune", action="store_true", help="choose hyper-parameters on validation classes")
    group.add_argument("--validation", metavar="FILE", help="features of the validation classes")
    group.add_argument(
        "--validation-share",
        type=float,
        metavar="SHARE",
        help="without --validation: tune on this share of the classes of FEATURES, test on the others "
        f"(default: {VALIDATION_SHARE})",
    )
    group.add_argument(
        "--validation-tasks", type=int, metavar="N", help=f"tasks to tune on (default: {VALIDATION_TASKS})"
    )


def _add_running(group: Any) -> None:
    group.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.csv and evaluation.json")
    add_spreadsheet_safe(group)
    group.add_argument("--plots", type=Path, metavar="DIR", help="write pictures")
    add_memory(group, MEMORY, "for the tasks in work (default: 512MB)")
    group.add_argument(
        "--no-times",
        action="store_true",
        help="leave times out of the table and the CSV: two runs of the same tasks then agree byte by byte",
    )
    add_threads(group)


def run(options: argparse.Namespace) -> int:
    with start() as processes:
        return _run(options, processes)


def _run(options: argparse.Namespace, processes: Processes) -> int:
    """All processes of torchrun read the files and share the tasks; the first one reports."""
    check_options(options)
    hyper = read_set_by_method(options, options.methods)
    use_threads(options)
    if options.plots is not None:
        require("matplotlib", "evaluate")
    check_outputs(options)
    data, validation = load(options)
    _check_same(data, processes)
    pool, labels = data.features, data.labels  # load_features has checked them
    samplers = make_samplers(options, data, "test classes: " if options.tune else "")
    evaluation = compare(
        pool,
        samplers,
        methods=options.methods,
        hyper=hyper,
        tasks=options.tasks,
        data={"path": data.path, "sha256": data.sha256, "classes": len(classes_of(data))},
        base_mean=None if options.base_mean is None else load_mean(options.base_mean),
        validation=None if validation is None else make_validation(options, validation),
        command=options.command,
        memory=options.memory,
        progress=find_spec("tqdm") is not None,
        processes=processes,
    )
    if processes.is_first:
        report(options, evaluation, data, int((labels >= 0).sum()))
    if evaluation.interrupted:
        return INTERRUPTED
    if processes.is_first and options.plots is not None:
        from ..evaluation.plots import save_all

        files = save_all(evaluation, options.plots, features=pool, sampler=samplers)
        print(f"\npictures: {', '.join(map(str, files))}")
    return 0


# The options --------------------------------------------------------------------------------------


def check_options(options: argparse.Namespace) -> None:
    """Refuses what would be ignored, and fills in defaults that depend on other options."""
    check_tasks(options)
    for name in ("validation", "validation_share", "validation_tasks"):
        if getattr(options, name) is not None and not options.tune:
            raise ValueError(f"--{name.replace('_', '-')}: expected --tune with it")
    if options.spreadsheet_safe and options.out is None:
        raise ValueError("--spreadsheet-safe: expected --out with it")
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


# The files ----------------------------------------------------------------------------------------


def check_outputs(options: argparse.Namespace) -> None:
    read = ("labels_path", "base_mean", "validation", "hierarchy", "superclasses")
    inputs = {f"--{name.replace('_', '-')}": getattr(options, name) for name in read}
    inputs["FEATURES"] = options.features
    for option, folder, names in (("--out", options.out, FILES), ("--plots", options.plots, ["*.png"])):
        if folder is not None:
            output_folder(option, folder, names, inputs)


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


def _check_same(data: Features, processes: Processes) -> None:
    for rank, other in enumerate(processes.gather(data.sha256)):
        if other != data.sha256:
            raise ValueError(
                f"{data.path}: expected the same data in all processes, got other in rank {rank}"
            )


def classes_of(data: Features) -> list[int]:
    return [label for label in sorted(set(data.labels.tolist())) if label >= 0]


def make_validation(options: argparse.Namespace, data: Features) -> Validation:
    return Validation(
        data.features,
        data.labels,
        make_samplers(options, data, "validation classes: "),
        options.validation_tasks,
        description={
            "path": data.path,
            "sha256": data.sha256,
            "share_of_classes": None if options.validation else options.validation_share,
            "classes": classes_of(data),
        },
    )


# The report ---------------------------------------------------------------------------------------


def report(options: argparse.Namespace, evaluation: Evaluation, data: Features, samples: int) -> None:
    """The files, first of all, as a terminal may fail; then the table and what it does not say."""
    times = not options.no_times
    files = [] if options.out is None else [options.out / name for name in FILES]
    if files:
        evaluation.save(*files, times=times, spreadsheet_safe=options.spreadsheet_safe)
    size = f"{samples} samples of {len(classes_of(data))} classes, d = {data.features.shape[1]}"
    print(f"{Path(data.path).name}: {size}\n\n{evaluation.table(times=times)}")
    for note in notes(evaluation):
        print(f"\n{note}")
    if files:
        print(f"\nwritten: {', '.join(map(str, files))}")
    if evaluation.interrupted:
        print("tim-ext evaluate: interrupted, the table holds what was done", file=sys.stderr)


def notes(evaluation: Evaluation) -> Iterator[str]:
    """What the table does not say."""
    settings = evaluation.description["settings"]
    for label, item in settings[0]["methods"].items():
        if METHODS[item["method"]].with_base_mean and evaluation.description["base_mean"] is None:
            yield f"{label}: transform={item['hyper_parameters']['transform']}, as there is no --base-mean"
    for setting in settings:
        if setting["tuning"]:
            lines = [f"{setting['name']}, tuned on {len(setting['tuning']['classes'])} other classes:"]
            for label, trials in setting["tuning"]["trials"].items():
                hyper = setting["methods"][label]["hyper_parameters"]
                lines.append(
                    f"{label}: " + ", ".join(f"{name}={hyper[name]}" for name in trials[0]["values"])
                )
            yield "\n  ".join(lines)
