"""The loop of an evaluation: all methods on the same tasks, by one process or by several."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed.processes import Processes
from ..errors import require
from ..files.features import hash_tensors
from ..files.mapped import check_mapped
from ..solver import native
from ..solver.params import check_count
from ..tasks import Tasks
from ..version import __version__
from .methods import ORACLE
from .pools import Pools
from .settings import Run, Setting, describe_setting
from .statistics import accuracies, query_proportions
from .table import Evaluation

MEMORY = 2**29  # bytes for the tasks in work
CHUNK = 256  # tasks at most: a bar that moves, and little work lost to Ctrl-C
DRAWN = 2**22  # samples of the tasks that are drawn at once: 100 MB
COPIES = 4  # of the features of a task that a method may hold at once


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
    pools = Pools(pool, base_mean, memory)
    for setting in settings:  # refuses a bad hyper-parameter now and not after an hour; and warms up
        first = _move(setting.sampler[0:1], pool.device)
        for label, item in setting.runs.items():
            _solve(label, item, pools, first)

    start, environment = time.perf_counter(), _environment()
    total = tasks * sum(len(setting.runs) for setting in settings)
    with _bar(progress and processes.is_first, total) as bar:
        show = _Progress(bar, processes)
        mine = _work(_chunks(settings, tasks, pool, memory), pools, processes, show)
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
            "data": {**(data or {}), **_describe_pool(pool)},
            "base_mean": None if base_mean is None else hash_tensors(base_mean),
            "memory": memory,
            "tasks": tasks,
            "settings": [describe_setting(setting) for setting in settings],
        },
    )


_Scores = dict[str, tuple[Tensor, float]]  # method -> accuracy of each task of a chunk, seconds


def _work(
    chunks: Iterator[tuple[Setting, Tasks]], pools: Pools, processes: Processes, show: _Progress
) -> list[tuple[str, _Scores]]:
    """Of every chunk: its setting, and what this process did of it. Ctrl-C in one process ends the work of
    all."""
    mine: list[tuple[str, _Scores]] = []
    try:
        for setting, chunk in chunks:
            mine.append((setting.name, {}))
            for label, item in _share(setting.runs, len(mine), processes):
                if processes.stopped():
                    raise KeyboardInterrupt
                show.bar.set_description(f"{setting.name}, {label}")
                before = time.perf_counter()
                predictions = _solve(label, item, pools, chunk)
                seconds = time.perf_counter() - before
                mine[-1][1][label] = accuracies(predictions, chunk), seconds
                show(len(chunk))
    except KeyboardInterrupt:
        processes.stop()
    return mine


def _chunks(
    settings: Sequence[Setting], tasks: int, pool: Tensor, memory: int
) -> Iterator[tuple[Setting, Tasks]]:
    """The tasks in order, in pieces of at most `CHUNK` tasks that fit into the memory. The limits depend on
    nothing but the arguments: a run repeated gives the same numbers to the last bit."""
    sample = COPIES * pool.shape[1] * max(pool.element_size(), 4)  # bytes
    for setting in settings:
        step = min(CHUNK, max(1, DRAWN // len(setting.sampler[0:1].index[0])))
        for start in range(0, tasks, step):
            block = setting.sampler[start : min(start + step, tasks)]
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


def _solve(label: str, item: Run, pools: Pools, tasks: Tasks) -> Tensor | list[Tensor]:
    """The predictions for every sample."""
    check_mapped(pools.pool)
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


def check_memory(memory: Any) -> int:
    """Bytes: they may be more than `check_count` allows."""
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory: expected a number of bytes, got {type(memory).__name__} {memory!r}")
    if memory < 1:
        raise ValueError(f"memory: expected a number of bytes >= 1, got {memory}")
    return memory


def _describe_pool(pool: Tensor) -> dict[str, Any]:
    return {
        "samples": pool.shape[0],
        "dimensions": pool.shape[1],
        "dtype": str(pool.dtype).removeprefix("torch."),
    }


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
