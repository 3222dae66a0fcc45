"""Hyper-parameters by grid search on validation classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed.processes import Processes
from ..solver.inputs import to_integers
from ..tasks import Sampler
from .pools import check_base_mean, check_pool
from .run import MEMORY, run
from .settings import Run, Setting, make_runs

VALIDATION_TASKS = 200


@dataclass(frozen=True)
class Tuning:
    """The best hyper-parameters of each method, and all that were tried."""

    hyper: dict[str, dict[str, Any]]  # for `tim_ext.evaluate(hyper=)`
    trials: dict[str, list[dict[str, Any]]]  # by method: the values tried, and their accuracy in percent


def tune(
    features: Any,
    labels: Any,
    sampler: Sampler,
    *,
    methods: Sequence[str],
    tasks: int = VALIDATION_TASKS,
    hyper: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    base_mean: Any = None,
    memory: int = MEMORY,
    progress: bool = False,
    processes: Processes | None = None,
) -> Tuning:
    """Tries every combination of a grid on the same tasks, which must be of other classes than the test.

    Args:
        features, labels: the pool of the validation classes, and the class of each row.
        sampler: tasks from these labels, of the kind that the test will have.
        methods: names as for `tim_ext.evaluate`.
        tasks: the first so many of the sampler.
        hyper: values that are decided; the grid leaves them alone.
        grids: values to try, by method and hyper-parameter, in place of the method's own grid
            (`tim_ext.evaluation.methods.METHODS[name].grid`).
        base_mean, memory, progress: as in `tim_ext.evaluate`.
        processes: those that share the work; by default this one does it all.

    Returns:
        Tuning. Among equals, the first: a grid starts with the defaults.
    """
    pool, _ = check_pool(features, labels)
    mean = None if base_mean is None else check_base_mean(base_mean, pool)
    given = hyper or {}
    runs = make_runs(methods, given, base_mean=mean is not None)
    for label in grids or {}:
        if label not in runs:
            raise ValueError(f"grids: expected names of methods out of {', '.join(runs)}, got {label!r}")
    points = {
        label: _points(label, item, (grids or {}).get(label, item.method.grid), given.get(label, {}))
        for label, item in runs.items()
    }
    trials = {
        f"{label} #{number}": Run(runs[label].method, {**runs[label].hyper, **point})
        for label in runs
        for number, point in enumerate(points[label])
        if len(points[label]) > 1  # else there is nothing to choose
    }
    scores: dict[str, float] = {}
    if trials:
        setting = Setting("validation", sampler, trials)
        evaluation = run(
            pool,
            [setting],
            tasks=tasks,
            base_mean=mean,
            memory=memory,
            progress=progress,
            processes=processes,
        )
        if evaluation.interrupted:
            raise KeyboardInterrupt
        scores = {row.method: row.accuracy for row in evaluation.rows}

    best, tried = {}, {}
    for label in runs:
        accuracy = [scores.get(f"{label} #{number}", 0.0) for number in range(len(points[label]))]
        best[label] = {**given.get(label, {}), **points[label][accuracy.index(max(accuracy))]}
        if len(accuracy) > 1:
            tried[label] = [
                {"values": point, "accuracy": value}
                for point, value in zip(points[label], accuracy, strict=True)
            ]
    return Tuning(best, tried)


def _points(
    label: str, item: Run, grid: Mapping[str, Sequence[Any]], given: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Every combination of what is not decided; one without values if all is."""
    item.method.complete(dict.fromkeys(grid), label)
    free = {name: values for name, values in grid.items() if name not in given}
    for name, values in free.items():
        if isinstance(values, str) or not len(values):
            raise ValueError(f"grids: expected values of {label}.{name} to try, got {values!r}")
    return [dict(zip(free, values, strict=True)) for values in product(*free.values())]


def split_classes(labels: Any, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels [M] of the validation classes and of the test classes, each with -1 in the rows of the other: a
    random share of the classes, rounded, for the validation."""
    classes = to_integers("labels", labels, None)
    present = torch.unique(classes[classes >= 0]).numpy()
    count = round(share * len(present))
    chosen = torch.from_numpy(np.random.default_rng(seed).permutation(present)[:count])
    validation = torch.isin(classes, chosen)
    return classes.where(validation, -1), classes.where(~validation, -1)
