"""Several methods on the same few-shot tasks: the way from features to the table, and `tim_ext.evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..distributed.processes import Processes
from ..files.features import hash_tensors
from ..tasks import Sampler, balanced
from .pools import check_base_mean, check_pool
from .run import MEMORY, run
from .settings import Setting, make_runs, name_settings
from .table import Evaluation
from .tuning import VALIDATION_TASKS, tune


def evaluate(
    features: Any,
    labels: Any,
    *,
    methods: Sequence[str] = ("prototype", "tim-adm"),
    sampler: Sampler | Mapping[str, Sampler] | None = None,
    ways: int = 5,
    shots: int | Sequence[int] = (1, 5),
    queries: int = 15,
    tasks: int = 1000,
    seed: int = 0,
    hyper: Mapping[str, Mapping[str, Any]] | None = None,
    base_mean: Any = None,
    memory: int = MEMORY,
    progress: bool = False,
) -> Evaluation:
    """Compares methods on the same seeded few-shot tasks.

    Args:
        features: the pool [M, d] that tasks are drawn from; it may be memory-mapped (np.load(.., mmap_mode)).
        labels: [M] integers, the class of each row; rows of a class < 0 are not used.
        methods: names out of `tim_ext.evaluation.methods.METHODS`. Differences are to the first.
            `name=method` gives a method a name of your own, so that it can be there twice.
        sampler: tasks of another kind (see `tim_ext.tasks`), or several under names of your own. `ways`,
            `shots`, `queries` and `seed` then are the sampler's, and not used here.
        ways, shots, queries: balanced tasks of so many classes, support samples and queries per class; one
            setting for each number of shots.
        tasks: how many of each setting.
        seed: of the tasks.
        hyper: hyper-parameters by method, {"tim-adm": {"temperature": 10.0}}; defaults for all others.
            `class_prior="oracle"` stands for the true proportions of the classes among the queries of each
            task, (n_k + 1) / (n + K): what a method could gain from knowing them.
        base_mean: [d], the mean feature of the base classes: simpleshot then centres by it.
        memory: bytes that the tasks in work may take, and again as many for transformed copies of the pool.
            A pool of which no copy fits is read where it lies, a task's rows at a time.
        progress: show a bar on the terminal (needs tqdm).

    Returns:
        Evaluation. After Ctrl-C, with the tasks that all methods have finished.

    Example:
        >>> import torch, tim_ext
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(2000) % 20
        >>> features = torch.randn(20, 64, generator=generator)[labels]
        >>> features += 3 * torch.randn(2000, 64, generator=generator)
        >>> evaluation = tim_ext.evaluate(features, labels, shots=5, tasks=100)
        >>> best = max(evaluation.rows, key=lambda row: row.accuracy)
        >>> best.method
        'tim-adm'
    """
    pool, labels = check_pool(features, labels)
    if sampler is None:
        counts = shots if isinstance(shots, Iterable) else [shots]
        sampler = name_settings(
            balanced(labels, ways=ways, shots=n, queries=queries, seed=seed) for n in counts
        )
    elif not isinstance(sampler, Mapping):
        sampler = name_settings([sampler])
    return compare(
        pool,
        sampler,
        methods=methods,
        hyper=hyper or {},
        tasks=tasks,
        data={"sha256": hash_tensors(pool, labels)},
        base_mean=base_mean,
        memory=memory,
        progress=progress,
    )


@dataclass(frozen=True, eq=False)
class Validation:
    """What to choose hyper-parameters on: other classes than those of the test, tasks of the same kinds."""

    features: Any  # [M, d]
    labels: Any  # [M]
    samplers: Mapping[str, Sampler]  # by setting, as for the test
    tasks: int = VALIDATION_TASKS
    description: Mapping[str, Any] | None = None  # for the report


def compare(
    pool: Tensor,
    samplers: Mapping[str, Sampler],
    *,
    methods: Sequence[str],
    hyper: Mapping[str, Mapping[str, Any]],
    tasks: int,
    data: Mapping[str, Any],
    base_mean: Any = None,
    validation: Validation | None = None,
    command: Sequence[str] | None = None,
    memory: int = MEMORY,
    progress: bool = False,
    processes: Processes | None = None,
) -> Evaluation:
    """The one way of an evaluation: tunes if there is a `validation`, completes the methods, runs them all.

    Args:
        pool: features [M, d] as `check_pool` returns them.
        samplers: tasks by the name of their setting.
        methods, hyper, tasks, base_mean, memory, progress: as in `evaluate`.
        data, command: where the features come from and what was typed, for the report.
        processes: those that share the work; by default this one does it all.
    """
    mean = None if base_mean is None else check_base_mean(base_mean, pool)
    how: dict[str, Any] = {"base_mean": mean, "memory": memory, "progress": progress, "processes": processes}
    settings = []
    for name, sampler in samplers.items():
        chosen, report = hyper, None
        if validation is not None:
            chosen, report = _tune(validation, name, methods, hyper, how)
        runs = make_runs(methods, chosen, base_mean=mean is not None)
        settings.append(Setting(name, sampler, runs, report))
    return run(pool, settings, tasks=tasks, data=data, command=command, **how)


def _tune(
    validation: Validation,
    name: str,
    methods: Sequence[str],
    hyper: Mapping[str, Mapping[str, Any]],
    how: Mapping[str, Any],
) -> tuple[Mapping[str, Mapping[str, Any]], dict[str, Any]]:
    """The hyper-parameters of a setting, and how they were chosen."""
    sampler = validation.samplers[name]
    tuning = tune(
        validation.features,
        validation.labels,
        sampler,
        methods=methods,
        tasks=validation.tasks,
        hyper=hyper,
        **how,
    )
    report = {
        **(validation.description or {}),
        "sampler": sampler.describe(),
        "tasks": validation.tasks,
        "trials": tuning.trials,
    }
    return tuning.hyper, report
