"""One pool, a few labelled rows: labels for all rows, by all processes of torchrun together.

Each process has a contiguous part of the rows. It solves the task with the others, labels its rows with the
weights that all of them got (those of robust, which smooths, with the probabilities it got), a block at a
time, and leaves them and their largest probabilities in a draft next to the output. The first process writes
the output from the drafts, in the order of the rows, with the confidences of calibration.py, and renames it
when it is complete. From start to end it holds the lock of the output: the drafts it finds then are of a run
that was killed.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .. import distributed, reference
from ..files.atomic import open_draft
from ..files.label_files import Support
from ..files.lock import only_run
from ..files.memory import available_memory, check_fits
from ..files.predictions import BLOCK, NONE_OF_THESE, RECORD, Predictions, Records, write_predictions
from ..solver.outliers import FOREIGN
from ..solver.params import ROBUST
from ..solver.presets import PRESETS, with_defaults
from ..solver.result import Result
from ..solver.solve import adm
from . import smoothing
from .approximate_neighbours import check_alone
from .calibration import Calibration, Sureness, calibrate, records_of, sureness
from .processes import Processes

SOLVERS: dict[str, Callable[..., Result]] = {
    "robust": distributed.robust,
    "adm": distributed.adm,
    "gd": distributed.gd,
    "alpha-tim": distributed.gd,
}
ROWS = 32768  # labelled in one go
LOOKED_AT = 5000  # rows of a pool whose outlier scores are found unasked


@dataclass(frozen=True, eq=False)
class Job:
    """What to label, how, and where to write it."""

    pool: Tensor  # [M, d]
    support: Support
    out: Path
    method: str  # of SOLVERS
    hyper: Mapping[str, Any]  # of the solver, class_prior among them
    memory: int  # bytes for probabilities kept within an iteration
    spreadsheet_safe: bool = False  # text in .csv
    class_vectors: Tensor | None = None  # [K, d]
    none_of_these: float | None = None  # outlier score from which a row is of class K, which has no name

    @property
    def classes(self) -> int:
        """Of the predictions."""
        return len(self.support.class_names) + (self.none_of_these is not None)


class Summary(NamedTuple):
    """What the first process can say about the predictions."""

    counts: list[int]  # rows of each class, the labelled ones too; then those of none, if they are apart
    nearest: list[int]  # the same by the nearest prototype
    confidence: float  # mean over the rows without label
    unsure: float  # share of them with a confidence below 1/2
    seconds: float
    iterations: int
    foreign: int  # rows that look as if they were of no class, if that was looked at


Show = Callable[[str, int], object]


def label_pool(job: Job, processes: Processes, show: Show) -> Summary:
    """Writes the predictions for all rows of the pool; the labelled rows keep their labels.

    `show(what, rows)` is called after work on so many rows, of all processes. A pass over all rows is an
    iteration, or the labelling, or the writing.
    """
    with only_run("--out", job.out) if processes.is_first else nullcontext():
        return _label_pool(job, processes, show)


def _label_pool(job: Job, processes: Processes, show: Show) -> Summary:
    start, total = time.perf_counter(), len(job.pool)
    whole = _is_whole(job, processes)
    if processes.is_first:
        _remove(job.out)  # of a run that was killed; before any process of this one makes a file
    name = _agree(job, processes)
    _try_to_write(job.out, _draft(job.out, name, f"try-{processes.rank}"))
    part = processes.part(total)
    rows, labels = job.pool[part], _labels_of_part(job.support, part)
    with _ending_in_order(at_once=whole) as check:

        def step(what: str, count: int) -> None:
            show(what, count)
            check()

        result = _solve(job, rows, labels, whole, processes, step)
        try:
            counts = _write_draft(job, name, labels, _found(job, rows, labels, result), processes, step)
            counts = torch.stack(processes.gather(counts)).sum(dim=0)
            sure = Sureness(0.0, 0.0)
            if processes.is_first:  # the others are free to go
                sure = _write_predictions(job, name, processes, step)
        except BaseException:
            _remove(job.out, name)
            raise
        if processes.is_first:
            _remove(job.out, name)
    classes, scores = job.classes, result.outlier
    return Summary(
        counts=counts[:classes].tolist(),
        nearest=counts[classes:].tolist(),
        confidence=sure.mean,
        unsure=sure.below_half,
        seconds=time.perf_counter() - start,
        iterations=int(result.iterations),
        foreign=int((scores >= FOREIGN).sum()) if isinstance(scores, Tensor) else 0,
    )


def _solve(job: Job, rows: Tensor, labels: Tensor, whole: bool, processes: Processes, step: Show) -> Result:
    """The weights [K, d] that all processes find together, or, of robust, p [n, K] of the rows."""
    total, classes = len(job.pool), len(job.support.class_names)
    hyper = with_defaults(job.method, job.hyper, support=len(job.support.rows), num_classes=classes)
    try:
        if whole:
            more: dict[str, Any] = {} if job.class_vectors is None else {"class_vectors": job.class_vectors}
            apart = job.none_of_these is not None
            looks = apart or (len(job.support.rows) > 0 and total <= LOOKED_AT and classes > 1)
            more["outputs"] = ("probs", "outlier") if looks else ("probs",)
            more |= {"sample_weight": "auto"} if apart else {}
            solve = PRESETS[job.method].solve
            result = solve(rows, labels.long(), num_classes=classes, **more, **hyper)
            step("iterations", total * int(result.iterations))
            return result
        return SOLVERS[job.method](
            rows,
            labels,
            num_classes=classes,
            cache_bytes=job.memory,
            callback=lambda done: step(f"iteration {done}", total) if done else step("neighbours", 0),
            outputs=("probs",) if job.method == "robust" else ("weights",),
            **hyper,
        )
    except RuntimeError as error:
        if "KeyboardInterrupt" in str(error):  # in another process
            raise KeyboardInterrupt from error
        raise
    except ValueError as error:
        raise ValueError(_in_rows(str(error), total, processes)) from error


def _is_whole(job: Job, processes: Processes) -> bool:
    """Whether one process solves the pool in one call, which holds it twice; robust does so if it can, and
    class vectors need it. Or else all processes together, each of which holds the rows of robust once, and
    those of the others not at all. Refuses what is too large."""
    (rows, columns), classes = job.pool.shape, len(job.support.class_names)
    width = 8 if job.pool.dtype == torch.float64 else 4
    for option, given, copies in (
        ("--none-of-these", job.none_of_these, 8),
        ("--class-vectors", job.class_vectors, 3),
    ):
        if given is None:
            continue
        if processes.size > 1:
            raise ValueError(f"{option}: expected one process, got {processes.size}")
        if option == "--none-of-these" and rows > smoothing.MOST_COMPARED:
            most = f"at most {smoothing.MOST_COMPARED:,} rows, each of which is compared with every other"
            raise ValueError(f"{option}: expected {most}, got {rows:,}")
        try:
            check_fits(rows * copies * (columns + classes) * width)
        except ValueError as error:
            raise ValueError(f"{option}: the pool is held in memory with it: {error}") from None
    if job.none_of_these is not None or job.class_vectors is not None:
        return True
    if job.method != "robust":
        return False
    smooths = job.hyper.get("smoothing", ROBUST.smoothing) != 0
    compared = rows <= smoothing.MOST_COMPARED or not smooths
    if not compared:
        check_alone(processes.size, rows, smoothing.MOST_COMPARED)
    elif processes.size == 1 and rows * 2 * (columns + classes) * width <= available_memory():
        return True
    local = int(os.environ.get("LOCAL_WORLD_SIZE", processes.size))  # processes on this machine
    here = rows * local // processes.size
    size = here * classes * width
    if smooths:
        size += here * columns * width + local * rows * smoothing.BYTES_PER_SAMPLE
    if not compared:
        size += rows * columns * 4  # in the index
    try:
        check_fits(size)
    except ValueError as error:
        raise ValueError(
            "--method: expected adm, gd or alpha-tim for this pool, got robust, "
            f"which holds it in memory: {error}"
        ) from None
    return False


def _agree(job: Job, processes: Processes) -> str:
    """A name for the drafts. All processes must see the same files, whatever machines they are on."""
    mine = {
        "pool": f"{job.pool.dtype} {list(job.pool.shape)}".removeprefix("torch."),
        "labelled rows": len(job.support.rows),
    }
    everyone = processes.gather((f"{os.getpid()}-{time.time_ns()}", mine))
    name_of_first, first = everyone[0]
    for rank, (_, other) in enumerate(everyone):
        for name, value in first.items():
            if other[name] != value:
                raise ValueError(
                    f"{name}: expected {value} as process 0 has it, got {other[name]} in process {rank}"
                )
    return str(name_of_first)


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


class Block(NamedTuple):
    """What was found of one block of rows after the other."""

    predictions: Tensor  # [n]
    confidences: Tensor  # [n]
    nearest: Tensor  # [n] the class of the nearest prototype


def _found(job: Job, rows: Tensor, labels: Tensor, result: Result) -> Iterator[Block]:
    how: dict[str, Any] = {key: job.hyper[key] for key in ("temperature", "normalize") if key in job.hyper}
    if job.class_vectors is None:
        prototypes = _prototypes(job)
    else:  # among samples and vectors from their centres
        given: dict[str, Any] = {
            "class_vectors": job.class_vectors,
            "iterations": 0,
            "outputs": ("predictions",),
        }
        all_nearest = adm(rows, labels.long(), num_classes=len(job.support.class_names), **given, **how)
    for start in range(0, len(rows), ROWS):
        block = slice(start, start + ROWS)
        if isinstance(result.probs, Tensor):
            confidences, predictions = result.probs[block].max(dim=1)
        else:
            predictions, confidences = _classify(rows[block], result.weights, how)
        if job.class_vectors is None:
            nearest, _ = _classify(rows[block], prototypes, how)
        else:
            assert isinstance(all_nearest.predictions, Tensor)
            nearest = all_nearest.predictions[block]
        if job.none_of_these is not None:
            assert isinstance(result.outlier, Tensor)
            scores = result.outlier[block]
            foreign, none = scores >= job.none_of_these, len(job.support.class_names)
            predictions, nearest = (one.masked_fill(foreign, none) for one in (predictions, nearest))
            confidences = torch.where(foreign, scores.to(confidences), confidences)
        yield Block(predictions, confidences, nearest)


def _classify(rows: Tensor, weights: Any, how: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    found = distributed.classify(rows, weights, **how)
    assert found.predictions is not None
    assert found.confidences is not None
    return found.predictions, found.confidences


def _prototypes(job: Job) -> Tensor:
    """[K, d] from the labelled rows, which every process can read."""
    z = job.pool[job.support.rows].double()
    if job.hyper.get("normalize", True):
        z = reference.unit_length(z)
    return reference.prototypes(z, one_hot(job.support.labels.long(), len(job.support.class_names)).to(z))


def _label_rows(labels: Tensor, found: Iterator[Block], classes: int) -> Iterator[tuple[Records, Tensor]]:
    """Records of one block of rows after the other, with the largest probabilities, and what to add up over
    them, [2K]: the rows of each class, and by the nearest prototype."""
    for start, (predictions, largest, nearest) in zip(range(0, len(labels), ROWS), found, strict=True):
        given = labels[start : start + ROWS]
        known = given >= 0
        chosen, nearest = (torch.where(known, given, one) for one in (predictions, nearest))
        block = np.empty(len(given), RECORD)
        block["label"], block["confidence"] = chosen.numpy(), largest.float().numpy()
        yield block, torch.cat([torch.bincount(one, minlength=classes) for one in (chosen, nearest)])


# Files --------------------------------------------------------------------------------------------


def _write_draft(
    job: Job,
    name: str,
    labels: Tensor,
    found: Iterator[Block],
    processes: Processes,
    step: Show,
) -> Tensor:
    """The records of this process; returns what `_label_rows` adds up over them, [2K]."""
    classes = job.classes
    sums = torch.zeros(2 * classes, dtype=torch.int64)
    with _draft(job.out, name, processes.rank).open("wb") as draft:
        for records, counted in _label_rows(labels, found, classes):
            draft.write(records.tobytes())
            sums += counted
            step("labels", len(records) * processes.size)
    return sums


def _write_predictions(job: Job, name: str, processes: Processes, step: Show) -> Sureness:
    """The output, from the drafts of all processes."""
    drafts = [_draft(job.out, name, rank) for rank in range(processes.size)]
    total, counts = len(job.pool), processes.counts(len(job.pool))
    _check_drafts(drafts, counts)
    calibration = calibrate(
        job.pool,
        job.support,
        partial(records_of, drafts, counts),
        class_prior=job.hyper.get("class_prior"),
        class_vectors=job.class_vectors,
    )
    sure = sureness(_blocks(drafts, calibration), total, len(job.support.rows))
    with open_draft(job.out) as file:
        blocks = partial(_blocks, drafts, calibration, partial(step, "writing"))
        names = [*job.support.class_names, *[NONE_OF_THESE] * (job.none_of_these is not None)]
        predictions = Predictions(names, total, blocks, job.spreadsheet_safe)
        write_predictions(job.out.suffix, file, predictions)
    return sure


def _draft(out: Path, job: str, what: object) -> Path:
    return out.with_name(f".{out.name}.{job}.{what}.tmp")


def _try_to_write(out: Path, draft: Path) -> None:
    """Now rather than after hours of work."""
    try:
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from error


def _remove(out: Path, job: str | None = None) -> None:
    """The drafts of a job; or of all jobs, with those of the output itself. Drafts of an output whose name
    goes on where this one's ends (out.csv, out.csv.npz) stay."""
    drafts = r"(\d+-\d+\.)?[^.]+" if job is None else rf"{re.escape(job)}\.[^.]+"
    pattern = re.compile(rf"\.{re.escape(out.name)}\.{drafts}\.tmp")
    for path in out.parent.iterdir():
        if pattern.fullmatch(path.name):
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


def _blocks(
    drafts: list[Path], calibration: Calibration, after: Callable[[int], object] = lambda rows: None
) -> Iterator[Records]:
    start = 0
    for draft in drafts:
        with draft.open("rb") as file:
            while content := file.read(BLOCK * RECORD.itemsize):
                block = np.frombuffer(content, RECORD)
                yield calibration(start, block)
                start += len(block)
                after(len(block))


# Signals ------------------------------------------------------------------------------------------


@contextmanager
def _ending_in_order(at_once: bool) -> Iterator[Callable[[], None]]:
    """Ctrl-C or SIGTERM is noted, and raised as KeyboardInterrupt by the function that this yields: between
    two steps, where all processes can end together and clean up. A second one is raised at once, and so is
    the first where a process is alone."""
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if at_once or len(noted) > 1:
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
