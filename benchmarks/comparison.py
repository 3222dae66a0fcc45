"""Candidates that do the same job on the same tensors, checked for agreement and then timed in turns.

A busy machine slows all candidates of a turn alike, so that ratios within a turn mean something where times
do not. Every candidate keeps one time per turn; turn i of one belongs to turn i of the others.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

TURN = 0.25  # seconds: a turn of every candidate lasts as long as one call of the slowest one, up to this
SHORTEST_TURN = 0.02
LEAST_TURNS, MOST_TURNS = 5, 200
SLOW = 3.0  # a turn of more seconds than this is made only LEAST_SLOW_TURNS times
LEAST_SLOW_TURNS = 3
PEAK_SECONDS = 0.01

Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Candidate:
    """`call(data)` does the job. The counts are those of one call, for the share of the machine's peak."""

    call: Call
    multiply_adds: float = 0
    bytes: float = 0  # that it must move between memory and the processor, once each
    tasks: int | None = None  # that one call solves, if not as many as the comparison says
    threads: int | None = None  # if not those of the comparison
    rate: bool = False  # the call returns its multiply-adds per second, which replace the clock
    note: str = ""  # for the report: what is compared with what
    double: bool = False  # whether its multiply-adds are in float64
    missing: str = ""  # what it needs and is not installed: then it is skipped
    cpu_only: bool = False
    x: Mapping[str, float] = field(default_factory=dict)  # its place in a sweep


@dataclass(frozen=True)
class Comparison:
    """`check(name, result, data)` raises AssertionError unless a candidate returned what it should."""

    name: str
    make: Callable[[torch.device], Any]  # the tensors, the same for all candidates
    candidates: Mapping[str, Candidate]
    check: Callable[[str, Any, Any], None]
    reference: str = ""  # the candidate whose time is 1, for ratios; else the first
    tasks: int = 1
    threads: int = 1
    quick: bool = False  # part of the quick profile
    seconds: float = 6.0  # of measurement in the quick profile; twice as long in the full one
    note: str = ""
    headline: bool = False  # its ratios are claims
    devices: Sequence[str] = ("cpu",)

    def __post_init__(self) -> None:
        if not self.reference:
            object.__setattr__(self, "reference", next(iter(self.candidates)))

    def on(self, device: str) -> dict[str, Candidate]:
        """The candidates of this device."""
        return {name: item for name, item in self.candidates.items() if device == "cpu" or not item.cpu_only}

    def present(self, device: str) -> dict[str, Candidate]:
        """Of those, the ones for which nothing is missing."""
        return {name: candidate for name, candidate in self.on(device).items() if not candidate.missing}


@dataclass(frozen=True)
class Measured:
    """Turn by turn: seconds of one call, and the machine's multiply-adds per second right after it (or 0)."""

    times: dict[str, list[float]]
    peaks: dict[str, list[float]]
    tasks: dict[str, int]
    reference: str

    def ratios(self, name: str) -> list[float]:
        """How often the candidate's time per task fits into that of the reference, turn by turn."""
        each = self.tasks[name] / self.tasks[self.reference]
        return [each * r / t for r, t in zip(self.times[self.reference], self.times[name], strict=True)]

    def share(self, name: str, multiply_adds: float) -> float | None:
        """Of the peak, that so many multiply-adds in a call make: the best turn by the best peak."""
        peak = max(self.peaks[name])
        return multiply_adds / min(self.times[name]) / peak if peak else None


def devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(candidate: Candidate, data: Any, device: str, calls: int) -> float:
    """The mean of the calls of a turn; on a GPU from an idle device to an idle device.

    Not their median: while others use the machine, short calls would slip through where long ones cannot.
    """
    total = 0.0
    for _ in range(calls):
        synchronize(device)
        begin = time.perf_counter()
        result = candidate.call(data)
        synchronize(device)
        took = time.perf_counter() - begin
        total += candidate.multiply_adds / result if candidate.rate else took
    return total / calls


def peak_of(candidate: Candidate, device: str) -> float:
    if not candidate.multiply_adds or candidate.rate or device != "cpu":
        return 0.0
    return float(torch.ops.tim_ext.cpu_peak(PEAK_SECONDS, candidate.double))


def agree(
    comparison: Comparison, device: str = "cpu", data: Any = None, threads: int | None = None
) -> dict[str, float]:
    """Runs every candidate once and checks what it returns. Returns how long they took, compilers and all."""
    data = comparison.make(torch.device(device)) if data is None else data
    took = {}
    with _threads(comparison.threads):
        for name, candidate in comparison.present(device).items():
            torch.set_num_threads(threads or candidate.threads or comparison.threads)
            begin = time.perf_counter()
            result = candidate.call(data)
            took[name] = time.perf_counter() - begin
            try:
                comparison.check(name, result, data)
            except AssertionError as error:
                message = f"{comparison.name}: {name} is not timed, it disagrees: {error}"
                raise AssertionError(message) from error
    return took


def measure(comparison: Comparison, seconds: float, device: str = "cpu") -> Measured:
    """Checks all candidates, then lets them take turns for about `seconds`."""
    data = comparison.make(torch.device(device))
    took = agree(comparison, device, data)
    candidates = comparison.present(device)
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, list[float]] = {name: [] for name in names}

    def turn(name: str, calls: int) -> float:
        torch.set_num_threads(candidates[name].threads or comparison.threads)
        return seconds_of(candidates[name], data, device, calls)

    gc.collect()
    gc.disable()
    try:
        with _threads(comparison.threads):
            for name in names:
                if not 1 < took[name] < 3:  # short, or perhaps with a compiler in it
                    took[name] = turn(name, 1)
            length = max(SHORTEST_TURN, min(TURN, max(took.values())))
            calls = {name: max(1, round(length / max(took[name], 1e-9))) for name in names}
            least = LEAST_TURNS if sum(took.values()) < SLOW else LEAST_SLOW_TURNS
            end = time.perf_counter() + seconds
            done = 0
            while done < least or (time.perf_counter() < end and done < MOST_TURNS):
                first = done % len(names)  # nobody always comes after the same one
                for name in names[first:] + names[:first]:
                    times[name].append(turn(name, calls[name]))
                    peaks[name].append(peak_of(candidates[name], device))
                done += 1
    finally:
        gc.enable()
    tasks = {name: candidates[name].tasks or comparison.tasks for name in names}
    return Measured(times, peaks, tasks, comparison.reference)


class _threads:  # noqa: N801
    """torch's threads, given back afterwards."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self.before)
