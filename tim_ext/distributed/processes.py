"""Several processes as one command: who they are, how far they are, and how all end when one of them does.

`torchrun` starts them; without it there is one. They talk through torch.distributed: its store holds what any
process may ask at any time (steps done, whether another one has failed), gloo moves the results.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch.distributed

from .ranks import PATIENCE, LostRankError, Notices

dist: Any = torch.distributed  # what it declares to export differs between versions

POLL = 0.1  # seconds between two looks at the others
LINGER = 2.0  # seconds for the others to hear of a failure


@dataclass(frozen=True)
class World:
    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, count: int) -> slice:
        """The samples of this process, out of `count`."""
        ends = self._ends(count)
        return slice(ends[self.rank], ends[self.rank + 1])

    def counts(self, count: int) -> list[int]:
        """How many samples each process has."""
        return [end - start for start, end in pairwise(self._ends(count))]

    def _ends(self, count: int) -> list[int]:
        return [count * rank // self.size for rank in range(self.size + 1)]


class SaidElsewhereError(Exception):
    """The work has ended, and another process says why."""

    def __init__(self, interrupted: bool) -> None:
        super().__init__("interrupted" if interrupted else "failed")
        self.interrupted = interrupted  # by Ctrl-C


@dataclass(frozen=True)
class Processes(World):
    """One command in several processes. All of them call `gather` the same number of times."""

    store: Any = None  # a torch.distributed.Store if there are several
    state: dict[str, int] = field(default_factory=lambda: {"work": 0, "steps": 0})

    def count(self, steps: int) -> int:
        """Adds steps of this process; returns those of all processes since the last `gather`."""
        if self.store is None:
            self.state["steps"] += steps
            return self.state["steps"]
        with self._talking():
            return int(self.store.add(self._key("steps"), steps))

    def stop(self) -> None:
        """Asks all processes to end their part and to go on to `gather`."""
        if self.store is not None:
            with self._talking():
                self.store.add(self._key("stop"), 1)

    def stopped(self) -> bool:
        """Whether a process has called `stop`; raises if one has failed."""
        if self.store is None:
            return False
        with self._talking():
            self._listen()
            return bool(self.store.add(self._key("stop"), 0))

    def gather(self, mine: Any, watch: Callable[[], object] = lambda: None) -> list[Any]:
        """What every process passes, on every process; calls `watch` now and then while it waits."""
        self.state["steps"] = 0
        if self.store is None:
            return [mine]
        all_: list[Any] = [None] * self.size
        with self._talking():
            self.store.add(self._key(f"there {self.rank}"), 1)
            ready = dist.barrier(async_op=True)
            notices = Notices()
            with _noting_interrupts() as interrupts:
                while not ready.is_completed():
                    watch()
                    self.stopped()
                    if notices.due():
                        self._say_who_is_awaited(notices)
                    if interrupts:
                        self.stop()
                    time.sleep(POLL)
                ready.wait()
                watch()
                dist.all_gather_object(all_, mine)
        self.state["work"] += 1
        return all_

    def fail(self, error: BaseException) -> bool:
        """Tells the others that this process ends; whether it is the first to, so that it says why."""
        if self.store is None:
            return True
        if isinstance(error, KeyboardInterrupt):
            self.store.add("interrupted", 1)
        return int(self.store.add("failed", 1)) == 1

    def _listen(self) -> None:
        """Raises if another process has failed."""
        if self.store.add("failed", 0):
            raise SaidElsewhereError(bool(self.store.add("interrupted", 0)))

    def _key(self, name: str) -> str:
        return f"{name} {self.state['work']}"

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """A connection that breaks belongs to a process that has gone, maybe after a failure."""
        try:
            yield
        except RuntimeError as error:  # gloo's; dist.DistError is one
            if isinstance(error, LostRankError):
                raise
            raise LostRankError(self._who_is_lost()) from error

    def _absent(self) -> list[int]:
        """Who has not come to this `gather` yet."""
        return [rank for rank in range(self.size) if not self.store.add(self._key(f"there {rank}"), 0)]

    def _say_who_is_awaited(self, notices: Notices) -> None:
        absent = self._absent()
        if absent and self.rank == min(set(range(self.size)) - set(absent)):
            notices.say(", ".join(f"rank {rank}" for rank in absent), self.size)

    def _who_is_lost(self) -> str:
        lost = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._listen()
            lost = [rank for rank in self._absent() if rank != self.rank] or lost
        except RuntimeError:  # the store went with its process
            lost = [0]
        which = f"rank {lost[0]}" if len(lost) == 1 else f"one of the ranks {', '.join(map(str, lost))}"
        return (
            f"{which} of {self.size} is lost before it had finished: its process has ended or cannot be "
            "reached; start all ranks again"
        )


@contextmanager
def start(timeout: timedelta = PATIENCE) -> Iterator[Processes]:
    """The processes of torchrun, or this one alone. An exception on one of them ends all: where it came first
    it goes on, everywhere else it becomes SaidElsewhereError."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield Processes(0, 1)
        return
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=timeout
        )
    except dist.DistError as error:
        raise ConnectionError(f"process {rank} of {size}: {str(error).splitlines()[0]}") from error
    processes = Processes(rank, size, dist.PrefixStore("tim_ext", store))
    try:
        yield processes
    except BaseException as error:
        first = not isinstance(error, SaidElsewhereError) and _first_to_fail(processes, error)
        _linger(processes)
        if first or isinstance(error, SaidElsewhereError):
            raise
        raise SaidElsewhereError(isinstance(error, KeyboardInterrupt)) from error
    finally:
        dist.destroy_process_group()


def _first_to_fail(processes: Processes, error: BaseException) -> bool:
    try:
        return processes.fail(error)
    except RuntimeError:  # the store is gone, and who could have said something with it
        return True


def _linger(processes: Processes) -> None:
    """After a failure, the process that holds the store stays until the others have heard of it."""
    if (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    ):  # torchrun itself holds it, and ends the others
        return
    with suppress(RuntimeError):
        ended, start = processes.store.add("ended", 1), time.monotonic()
        while processes.is_first and ended < processes.size and time.monotonic() - start < LINGER:
            time.sleep(POLL)
            ended = processes.store.add("ended", 0)


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Ctrl-C adds to the list and does nothing else: what is under way ends soon, or for all processes."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
