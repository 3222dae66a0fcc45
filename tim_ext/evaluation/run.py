"""Several methods on the same few-shot tasks: accuracies, confidence intervals, paired differences, times."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import tasks as samplers
from ..distributed.processes import Processes
from ..errors import require
from ..files.features import hash_tensors, row_blocks
from ..solver import native
from ..solver.inputs import QUERY, to_features, to_integers
from ..solver.params import check_count
from ..tasks.samplers import Sampler, Tasks
from ..transforms import Transform, make_transform
from ..version import __version__
from .methods import ORACLE, Method, named_methods

MEMORY = 2**29  # bytes for the tasks in work
CHUNK = 256  # tasks at most: a bar that moves, and little work lost to Ctrl-C
COPIES = 4  # of the features of a task that a method may hold at once
NORMAL_QUANTILE = 1.959963984540054  # of 95 % in the middle


@dataclass(frozen=True)
class Run:
    """A method with all its hyper-parameters: one line of the table."""

    method: Method
    hyper: Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """Tasks of one kind, and what runs on them."""

    name: str
    sampler: Sampler
    runs: Mapping[str, Run]  # by the name in the table
    tuning: Any = None  # how the hyper-parameters were chosen, for the report


@dataclass(frozen=True)
class Row:
    """One line of the table. Accuracies are percent of the queries of a task, averaged over the tasks."""

    setting: str
    method: str
    accuracy: float
    accuracy_ci95: float | None  # half the width of the interval; None for a single task
    difference: float | None  # to the first method on the same tasks, in points; None for the first itself
    difference_ci95: float | None
    seconds_per_task: float
    tasks: int
    tasks_asked: int  # more than were done if Ctrl-C came first


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `tim_ext.evaluate` returns."""

    accuracies: dict[str, dict[str, Tensor]]  # setting -> method -> [tasks], percent, float64
    seconds: dict[str, dict[str, float]]  # setting -> method -> time in the method, all tasks together
    interrupted: bool  # by Ctrl-C: fewer tasks than asked for, the same ones for all methods of a setting
    description: dict[str, Any] = field(repr=False)  # see describe()

    @cached_property
    def rows(self) -> list[Row]:
        return [
            self._row(setting, method) for setting in self.accuracies for method in self.accuracies[setting]
        ]

    def _row(self, setting: str, method: str) -> Row:
        values, first = self.accuracies[setting][method], next(iter(self.accuracies[setting].values()))
        accuracy, accuracy_ci95 = mean_and_ci95(values)
        difference, difference_ci95 = (None, None) if values is first else mean_and_ci95(values - first)
        return Row(
            setting=setting,
            method=method,
            accuracy=accuracy,
            accuracy_ci95=accuracy_ci95,
            difference=difference,
            difference_ci95=difference_ci95,
            seconds_per_task=self.seconds[setting][method] / len(values),
            tasks=len(values),
            tasks_asked=self.description["tasks"],
        )

    def describe(self) -> dict[str, Any]:
        """Results and everything needed to repeat them, ready for JSON."""
        return {
            **self.description,
            "interrupted": self.interrupted,
            "rows": [asdict(row) for row in self.rows],
        }

    def table(self, *, times: bool = True) -> str:
        return "\n\n".join(
            "\n".join(_table(setting, [row for row in self.rows if row.setting == setting], times))
            for setting in self.accuracies
        )

    def save(
        self, csv_path: str | os.PathLike[str], json_path: str | os.PathLike[str], *, times: bool = True
    ) -> None:
        """Writes the rows, and `describe()`. Each file is complete or not there at all. Without `times`, the
        CSV depends on nothing but data, tasks and methods."""
        text = io.StringIO()
        columns = [column.name for column in fields(Row) if times or column.name != "seconds_per_task"]
        writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.rows)  # None becomes an empty cell
        _write(Path(csv_path), text.getvalue())
        _write(Path(json_path), json.dumps(self.describe(), indent=2, allow_nan=False) + "\n")


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
            samplers.balanced(labels, ways=ways, shots=n, queries=queries, seed=seed) for n in counts
        )
    elif not isinstance(sampler, Mapping):
        sampler = name_settings([sampler])
    mean = None if base_mean is None else check_base_mean(base_mean, pool)
    runs = make_runs(methods, hyper or {}, base_mean=mean is not None)
    settings = [Setting(name, item, runs) for name, item in sampler.items()]
    data = {"sha256": hash_tensors(pool, labels)}
    return run(pool, settings, tasks=tasks, base_mean=mean, memory=memory, progress=progress, data=data)


# Input --------------------------------------------------------------------------------------------


def check_pool(features: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Features [M, d], contiguous, finite in the rows that are used, and labels [M] int64 on the CPU."""
    pool = to_features("features", features)
    if pool.dim() != 2 or 0 in pool.shape:
        raise ValueError(f"features: expected shape [M, d], neither of them 0, got {list(pool.shape)}")
    classes = to_integers("labels", labels, None, pool.shape[:1], "features").cpu()
    # in blocks: no [M, d] of flags
    finite = torch.cat([pool[rows].isfinite().all(dim=1) for rows in row_blocks(pool)])
    wrong = (~finite.cpu() & (classes >= 0)).nonzero()
    if len(wrong):
        raise ValueError(f"features: expected finite values, got NaN or Inf in row {int(wrong[0])}")
    return pool.contiguous(), classes


def check_base_mean(value: Any, pool: Tensor) -> Tensor:
    mean = to_features("base_mean", value)
    if mean.shape != pool.shape[1:]:
        expected = f"[{pool.shape[1]}] to match features"
        raise ValueError(f"base_mean: expected shape {expected}, got {list(mean.shape)}")
    if not mean.isfinite().all():
        raise ValueError("base_mean: expected finite values, got NaN or Inf")
    return mean.to(pool.device)


def make_runs(
    methods: Sequence[str], hyper: Mapping[str, Mapping[str, Any]], *, base_mean: bool
) -> dict[str, Run]:
    """By the name in the table. `base_mean`: whether there is one."""
    chosen = named_methods(methods)
    for label in hyper:
        if label not in chosen:
            raise ValueError(f"hyper: expected names of methods out of {', '.join(chosen)}, got {label!r}")
    return {
        label: Run(method, method.complete(hyper.get(label, {}), label, base_mean=base_mean))
        for label, method in chosen.items()
    }


def name_settings(chosen: Iterable[Sampler]) -> dict[str, Sampler]:
    named: dict[str, Sampler] = {}
    for sampler in chosen:
        name = setting_name(sampler.describe())
        if name in named:
            raise ValueError(f"shots: expected different numbers, got {name} twice")
        named[name] = sampler
    if not named:
        raise ValueError("shots: expected one number or more, got none")
    return named


def setting_name(sampler: Mapping[str, Any]) -> str:
    """A short name from `Sampler.describe()`."""
    if sampler["kind"] == "meta_dataset":
        return "Meta-Dataset"
    name = f"{sampler['ways']}-way {sampler['shots']}-shot"
    if sampler["kind"] == "dirichlet":
        return f"{name}, Dirichlet {sampler['concentration']:g}"
    if sampler["kind"] == "few_classes":
        return f"{name}, {sampler['present']} of {sampler['ways']} classes present"
    return name


def check_memory(memory: Any) -> int:
    """Bytes: they may be more than `check_count` allows."""
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory: expected a number of bytes, got {type(memory).__name__} {memory!r}")
    if memory < 1:
        raise ValueError(f"memory: expected a number of bytes >= 1, got {memory}")
    return memory


# The loop -----------------------------------------------------------------------------------------


def run(
    pool: Tensor,
    settings: Sequence[Setting],
    *,
    tasks: int,
    base_mean: Tensor | None = None,
    memory: int = MEMORY,
    progress: bool = False,
    data: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
    processes: Processes | None = None,
) -> Evaluation:
    """All runs of all settings. Tasks come in chunks, and a chunk counts once all methods are through.

    Several processes share the work and all get the result: what one process would find, bit for bit.
    """
    processes = processes or Processes(0, 1)
    tasks, memory = check_count("tasks", tasks, at_least=1), check_memory(memory)
    pools = _Pools(pool, base_mean, memory)
    for setting in settings:  # refuses a bad hyper-parameter now and not after an hour; and warms up
        first = _move(setting.sampler[0:1], pool.device)
        for label, item in setting.runs.items():
            _solve(label, item, pools, first)

    start, environment = time.perf_counter(), _environment()
    mine: list[tuple[str, _Scores]] = []  # of every chunk: its setting, and what this process did of it
    total = tasks * sum(len(setting.runs) for setting in settings)
    with _bar(progress and processes.is_first, total) as bar:
        show = _Progress(bar, processes)
        try:
            for setting, chunk in _chunks(settings, tasks, pool, memory):
                mine.append((setting.name, {}))
                for label, item in _share(setting.runs, len(mine), processes):
                    if processes.stopped():
                        raise KeyboardInterrupt
                    bar.set_description(f"{setting.name}, {label}")
                    before = time.perf_counter()
                    predictions = _solve(label, item, pools, chunk)
                    seconds = time.perf_counter() - before
                    mine[-1][1][label] = accuracies(predictions, chunk), seconds
                    show(len(chunk))
        except KeyboardInterrupt:
            processes.stop()
        done = _merge(settings, processes.gather(mine, show))
    if not any(done.values()):
        raise KeyboardInterrupt

    scores = {
        name: {label: torch.cat([chunk[label][0] for chunk in chunks]) for label in chunks[0]}
        for name, chunks in done.items()
        if chunks
    }
    return Evaluation(
        accuracies=scores,
        seconds={
            name: {label: sum(chunk[label][1] for chunk in done[name]) for label in scores[name]}
            for name in scores
        },
        interrupted=sum(len(next(iter(item.values()))) for item in scores.values()) < tasks * len(settings),
        description={
            "command": None if command is None else list(command),
            **environment,
            "processes": processes.size,
            "seconds": time.perf_counter() - start,
            "data": {
                **(data or {}),
                "samples": pool.shape[0],
                "dimensions": pool.shape[1],
                "dtype": str(pool.dtype).removeprefix("torch."),
            },
            "base_mean": None if base_mean is None else hash_tensors(base_mean),
            "memory": memory,
            "tasks": tasks,
            "settings": [_describe(setting) for setting in settings],
        },
    )


_Scores = dict[str, tuple[Tensor, float]]  # method -> accuracy of each task of a chunk, seconds


def _chunks(
    settings: Sequence[Setting], tasks: int, pool: Tensor, memory: int
) -> Iterator[tuple[Setting, Tasks]]:
    """The tasks in order, in pieces of at most `CHUNK` tasks that fit into the memory. The limits depend on
    nothing but the arguments: a run repeated gives the same numbers to the last bit."""
    sample = COPIES * pool.shape[1] * max(pool.element_size(), 4)  # bytes
    for setting in settings:
        for start in range(0, tasks, CHUNK):
            block = setting.sampler[start : min(start + CHUNK, tasks)]
            first, used = 0, 0
            for t, index in enumerate(block.index):
                if used + len(index) * sample > memory and t > first:
                    yield setting, _move(block, pool.device, slice(first, t))
                    first, used = t, 0
                used += len(index) * sample
            yield setting, _move(block, pool.device, slice(first, None))


def _share(runs: Mapping[str, Run], chunk: int, processes: Processes) -> Iterator[tuple[str, Run]]:
    """What this process runs on a chunk. Methods differ in cost: each goes round the processes."""
    for number, (label, item) in enumerate(runs.items()):
        if (chunk + number) % processes.size == processes.rank:
            yield label, item


def _merge(
    settings: Sequence[Setting], parts: Sequence[Sequence[tuple[str, _Scores]]]
) -> dict[str, list[_Scores]]:
    """By setting, the first chunks that all methods are through with: after Ctrl-C, fewer than there are."""
    runs = {setting.name: setting.runs for setting in settings}
    done: dict[str, list[_Scores]] = {name: [] for name in runs}
    for chunk in zip_longest(*parts):
        known = [part for part in chunk if part is not None]
        name, scores = known[0][0], {label: score for _, part in known for label, score in part.items()}
        if len(scores) < len(runs[name]):
            break
        done[name].append({label: scores[label] for label in runs[name]})
    return done


def _move(tasks: Tasks, device: torch.device, part: slice = slice(None)) -> Tasks:
    """A part of the tasks, on a device."""
    return Tasks(
        **{
            column.name: value[part].to(device)
            if isinstance(value := getattr(tasks, column.name), Tensor)
            else [item.to(device) for item in value[part]]
            for column in fields(Tasks)
        }
    )


class _Pools:
    """The features as each method wants them: steps of a transform that look at one row at a time are done
    once for all tasks, and methods with the same steps share the copy. Copies that would take more than
    `memory` are not made: the methods then transform what their tasks need of the pool, again and again."""

    def __init__(self, pool: Tensor, base_mean: Tensor | None, memory: int) -> None:
        self.pool, self.base_mean, self.memory = pool, base_mean, memory
        self._copies: dict[tuple[str, ...], Tensor] = {(): pool}

    def prepare(self, item: Run) -> tuple[Tensor, dict[str, Any]]:
        """Features, and the hyper-parameters left for them."""
        hyper = dict(item.hyper)
        if not item.method.takes_base_mean:
            return self.pool, hyper
        change = make_transform(hyper["transform"], self.base_mean, self.pool)
        done, left = change.steps[: change.rows_only], change.steps[change.rows_only :]
        if done not in self._copies and not self._copy(change._replace(steps=done)):
            done, left = (), change.steps
        base_mean = self.base_mean if "center" in left else None
        return self._copies[done], {**hyper, "transform": "+".join(left) or "none", "base_mean": base_mean}

    def _copy(self, change: Transform) -> bool:
        """Whether there was room for it."""
        dtype = torch.float64 if self.pool.dtype == torch.float64 else torch.float32
        size = self.pool.numel() * dtype.itemsize
        if size > self.memory:
            return False
        self.memory -= size
        copy = torch.empty(self.pool.shape, dtype=dtype, device=self.pool.device)
        for rows in row_blocks(self.pool):
            copy[rows] = change(self.pool[rows])
        self._copies[change.steps] = copy
        return True


def _solve(label: str, item: Run, pools: _Pools, tasks: Tasks) -> Tensor | list[Tensor]:
    """The predictions for every sample."""
    try:
        pool, hyper = pools.prepare(item)
        if isinstance(hyper.get("class_prior"), str) and hyper["class_prior"] == ORACLE:
            hyper["class_prior"] = query_proportions(tasks)
        result = item.method.function(
            pool, tasks.labels, index=tasks.index, outputs=("predictions",), **hyper
        )
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{label}: {error}") from error
    if pool.is_cuda:
        torch.cuda.synchronize(pool.device)
    assert result.predictions is not None
    return result.predictions


# Scores -------------------------------------------------------------------------------------------


def accuracies(predictions: Tensor | list[Tensor], tasks: Tasks) -> Tensor:
    """Percent of the queries of each task that are right: [T], float64, on the CPU."""
    sizes = torch.tensor([len(item) for item in predictions])
    predicted, labels, truth = (_flat(item).cpu() for item in (predictions, tasks.labels, tasks.truth))
    query = labels == QUERY
    owner = torch.repeat_interleave(sizes)[query]  # the task of each query
    right = torch.eq(predicted, truth)[query]
    counts = torch.bincount(owner, minlength=len(sizes))
    return 100 * torch.bincount(owner, right.double(), minlength=len(sizes)) / counts


def _flat(batch: Tensor | list[Tensor]) -> Tensor:
    return batch.flatten() if isinstance(batch, Tensor) else torch.cat(batch)


def query_proportions(tasks: Tasks) -> Tensor | list[Tensor]:
    """(n_k + 1) / (n + K) of each task, with n_k of its n queries in class k: > 0 for every class."""
    shares = []
    for labels, truth, classes in zip(tasks.labels, tasks.truth, tasks.classes, strict=True):
        counts = torch.bincount(truth[labels == QUERY], minlength=len(classes)).double() + 1
        shares.append(counts / counts.sum())
    return torch.stack(shares) if isinstance(tasks.labels, Tensor) else shares


def mean_and_ci95(values: Tensor) -> tuple[float, float | None]:
    """The mean, and 1.96 s / sqrt(T) with s^2 = sum (x - mean)^2 / (T - 1)."""
    if len(values) < 2:
        return values.mean().item(), None
    return values.mean().item(), NORMAL_QUANTILE * values.std().item() / math.sqrt(len(values))


# The report ---------------------------------------------------------------------------------------


def _table(setting: str, rows: Sequence[Row], times: bool) -> Iterator[str]:
    done, asked = rows[0].tasks, rows[0].tasks_asked
    yield f"{setting}, {done}{f' of {asked}' if done < asked else ''} tasks"
    cells = [["method", "accuracy %", f"difference to {rows[0].method}", *["ms per task"] * times]]
    for row in rows:
        accuracy = _with_interval(f"{row.accuracy:.2f}", row.accuracy_ci95)
        paired = (
            "" if row.difference is None else _with_interval(f"{row.difference:+.2f}", row.difference_ci95)
        )
        cells.append([row.method, accuracy, paired, *[f"{1000 * row.seconds_per_task:.3g}"] * times])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for method, *numbers in cells:
        aligned = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join([method.ljust(widths[0]), *aligned])


def _with_interval(number: str, ci95: float | None) -> str:
    return number if ci95 is None else f"{number} +- {ci95:.2f}"


def _describe(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "sampler": setting.sampler.describe(),
        "methods": {
            label: {"method": item.method.name, "hyper_parameters": _plain(item.hyper)}
            for label, item in setting.runs.items()
        },
        "tuning": setting.tuning,
    }


def _plain(value: Any) -> Any:
    """Ready for JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    return value


def _environment() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "tim_ext": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "cpu_capability": native.torch_ops.tim_ext.cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _write(path: Path, text: str) -> None:
    """The whole file or none of it: a file next to it, then renamed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


class _Progress:
    """A bar over the steps of all processes."""

    def __init__(self, bar: Any, processes: Processes) -> None:
        self.bar, self.processes, self.shown = bar, processes, 0

    def __call__(self, steps: int = 0) -> None:
        total = self.processes.count(steps)
        self.bar.update(total - self.shown)
        self.shown = total


class _NoBar:
    """tqdm's interface, silent."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def set_description(self, text: str) -> None:
        pass

    def update(self, steps: int) -> None:
        pass


def _bar(progress: bool, total: int) -> Any:
    if not progress:
        return _NoBar()
    tqdm = require("tqdm", "evaluate").tqdm
    return tqdm(total=total, unit=" runs", leave=False, disable=None)  # None: not where there is no terminal
