"""One pool, a few labelled rows: labels for all rows, by all processes of torchrun together.

Each process has a contiguous part of the rows. It solves the task with the others, labels its rows with the
weights that all of them got, a block at a time, and leaves them in a draft next to the output. The first
process writes the output from the drafts, in the order of the rows, and renames it when it is complete.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import distributed
from ..files.label_files import Support
from ..files.predictions import BLOCK, RECORD, Predictions, Records, write_predictions
from ..solver.result import Result
from .processes import Processes

SOLVERS: dict[str, Callable[..., Result]] = {"adm": distributed.adm, "gd": distributed.gd}
ROWS = 32768  # labelled in one go


class Summary(NamedTuple):
    """What the first process can say about the predictions."""

    counts: list[int]  # rows of each class
    confidence: float  # mean over the rows without label
    unsure: float  # share of them with a confidence below 1/2
    seconds: float
    iterations: int


def label_pool(
    pool: Tensor,
    support: Support,
    out: Path,
    *,
    method: str,
    hyper: Mapping[str, Any],
    class_prior: list[float] | None,
    memory: int,
    processes: Processes,
    show: Callable[[str, int], object],
) -> Summary:
    """Writes the predictions for all rows of the pool to `out`; the labelled rows keep their labels.

    `show(what, rows)` is called after work on so many rows, of all processes. A pass over all rows is an
    iteration, or the labelling, or the writing.
    """
    start = time.perf_counter()
    if processes.is_first:
        _remove(out, "*")  # of a run that was killed; before any process of this one makes a file
    job = _agree(pool, support, processes)
    _try_to_write(out, _draft(out, job, f"try-{processes.rank}"))
    part = processes.part(len(pool))
    rows, labels = pool[part], _labels_of_part(support, part)
    with _ending_in_order() as check:

        def step(what: str, count: int) -> None:
            show(what, count)
            check()

        options = {
            "num_classes": len(support.class_names),
            "class_prior": class_prior,
            "cache_bytes": memory,
            "callback": lambda done: step(f"iteration {done}", len(pool)),
            **hyper,
        }
        result = _solve(SOLVERS[method], rows, labels, options, len(pool), processes)
        assert isinstance(result.weights, Tensor)
        how = {name: hyper[name] for name in ("temperature", "normalize") if name in hyper}
        try:
            with _draft(out, job, processes.rank).open("wb") as draft:
                sums = torch.zeros(len(result.weights) + 2, dtype=torch.float64)
                for records, counted in _label_rows(rows, labels, result.weights, how):
                    draft.write(records.tobytes())
                    sums += counted
                    step("labels", len(records) * processes.size)
            sums = torch.stack(processes.gather(sums)).sum(dim=0)
            if processes.is_first:  # the others are free to go
                drafts = [_draft(out, job, rank) for rank in range(processes.size)]
                _check_drafts(drafts, processes.counts(len(pool)))
                blocks = partial(_blocks, drafts, partial(step, "writing"))
                _write(out, _draft(out, job, "out"), Predictions(support.class_names, len(pool), blocks))
        except BaseException:
            _remove(out, job)
            raise
        if processes.is_first:
            _remove(out, job)
    *counts, confidence, unsure = sums.tolist()
    queries = max(len(pool) - len(support.rows), 1)
    seconds = time.perf_counter() - start
    return Summary(
        [int(n) for n in counts], confidence / queries, unsure / queries, seconds, int(result.iterations)
    )


def _solve(
    solver: Callable[..., Result],
    rows: Tensor,
    labels: Tensor,
    options: Mapping[str, Any],
    total: int,
    processes: Processes,
) -> Result:
    try:
        return solver(rows, labels, outputs=("weights",), **options)
    except RuntimeError as error:
        if "KeyboardInterrupt" in str(error):  # in another process
            raise KeyboardInterrupt from error
        raise
    except ValueError as error:
        raise ValueError(_in_rows(str(error), total, processes)) from error


def _agree(pool: Tensor, support: Support, processes: Processes) -> str:
    """A name for this job. All processes must see the same files, whatever machines they are on."""
    mine = {
        "pool": f"{pool.dtype} {list(pool.shape)}".removeprefix("torch."),
        "labelled rows": len(support.rows),
    }
    everyone = processes.gather((f"{os.getpid()}-{time.time_ns()}", mine))
    job, first = everyone[0]
    for rank, (_, other) in enumerate(everyone):
        for name, value in first.items():
            if other[name] != value:
                raise ValueError(
                    f"{name}: expected {value} as process 0 has it, got {other[name]} in process {rank}"
                )
    return str(job)


def _in_rows(message: str, total: int, processes: Processes) -> str:
    """From the sample of a process to the row of the pool."""
    found = re.fullmatch(r"(?:rank (\d+): )?(.*) at sample (\d+)", message)
    if not found:
        return message
    first = replace(processes, rank=int(found[1] or 0)).part(total).start
    return f"{found[2]} in row {first + int(found[3])}"


def _labels_of_part(support: Support, part: slice) -> Tensor:
    """Of each row of the part: its class, or -1."""
    dtype = torch.int16 if len(support.class_names) < 2**15 else torch.int32
    labels = torch.full((part.stop - part.start,), -1, dtype=dtype)
    inside = (support.rows >= part.start) & (support.rows < part.stop)
    labels[support.rows[inside] - part.start] = support.labels[inside].to(dtype)
    return labels


def _label_rows(
    rows: Tensor, labels: Tensor, weights: Tensor, how: Mapping[str, Any]
) -> Iterator[tuple[Records, Tensor]]:
    """Records of one block of rows after the other, and what to add up over them, [K + 2]: the rows of each
    class; of the rows without a label, the sum of the confidences and the number of those below 1/2."""
    for start in range(0, len(rows), ROWS):
        given = labels[start : start + ROWS]
        known = given >= 0
        found = distributed.classify(rows[start : start + ROWS], weights, **how)
        assert found.predictions is not None
        assert found.confidences is not None
        chosen = torch.where(known, given, found.predictions)
        confidences = torch.where(known, 1.0, found.confidences.float())
        block = np.empty(len(given), RECORD)
        block["label"], block["confidence"] = chosen.numpy(), confidences.numpy()
        of_queries = confidences[~known].double()
        unsure = (of_queries < 0.5).sum()
        counts = torch.bincount(chosen, minlength=len(weights))
        yield block, torch.cat([counts, torch.stack([of_queries.sum(), unsure])])


# Files --------------------------------------------------------------------------------------------


def _draft(out: Path, job: str, what: object) -> Path:
    return out.with_name(f".{out.name}.{job}.{what}.tmp")


def _try_to_write(out: Path, draft: Path) -> None:
    """Now rather than after hours of work."""
    try:
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from error


def _remove(out: Path, job: str) -> None:
    """The drafts of a job, or of all jobs."""
    pattern = glob.escape(f".{out.name}.") + (job if job == "*" else glob.escape(job)) + ".*.tmp"
    for path in out.parent.glob(pattern):
        path.unlink(missing_ok=True)


def _check_drafts(drafts: list[Path], counts: list[int]) -> None:
    """Processes on several machines must see the folder of the output."""
    for rank, (draft, count) in enumerate(zip(drafts, counts, strict=True)):
        size = draft.stat().st_size if draft.exists() else 0
        if size != count * RECORD.itemsize:
            raise ValueError(
                f"--out: expected a folder that all processes share, got {draft.parent} "
                f"without the {count} rows of process {rank}"
            )


def _blocks(drafts: list[Path], after: Callable[[int], None]) -> Iterator[Records]:
    for draft in drafts:
        with draft.open("rb") as file:
            while content := file.read(BLOCK * RECORD.itemsize):
                block = np.frombuffer(content, RECORD)
                yield block
                after(len(block))


def _write(out: Path, draft: Path, predictions: Predictions) -> None:
    with draft.open("wb") as file:
        write_predictions(out.suffix, file, predictions)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, out)


# Signals ------------------------------------------------------------------------------------------


@contextmanager
def _ending_in_order() -> Iterator[Callable[[], None]]:
    """Ctrl-C or SIGTERM is noted, and raised as KeyboardInterrupt by the function that this yields: between
    two steps, where all processes can end together and clean up. A second one is raised at once."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt

    def check() -> None:
        if noted:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield check
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
