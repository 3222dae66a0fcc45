"""The processes that share one task: exchange between them, and what they say when one of them is lost.

Everything runs on torch.distributed. While a task is solved, every rank keeps a counter going in the process
group's store; a collective that fails is explained by the counter that stopped. All ranks end with the same
sentence, and within seconds, also those that torch would let wait until its timeout.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

torch_distributed: Any = dist  # its types leave some of it out

BEAT = 0.5  # seconds between two signs of life
SILENCE = 3.0  # seconds without one after which a rank is lost, once a collective has failed
PATIENCE = 60.0  # the same where none has failed: a rank may only be held up
LINGER = 10.0  # seconds that the holder of the store waits for others to read why

T = TypeVar("T")
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ValueError, TypeError, ImportError, MemoryError)
}


class LostRankError(RuntimeError):
    """Another rank has ended or does not answer."""


@contextlib.contextmanager
def open_ranks(group: Any) -> Iterator[Ranks]:
    """The ranks of `group`; of the default group if there is one; or this process alone."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        yield Ranks(0, 1)
        return
    group = dist.group.WORLD if group is None else group
    rank = dist.get_rank(group) if isinstance(group, dist.ProcessGroup) else -1
    if rank < 0:
        raise ValueError("group: expected a process group that this process belongs to")
    size = dist.get_world_size(group)
    if size == 1:
        yield Ranks(0, 1)
        return
    ranks = GroupRanks(rank, size, group)
    with ranks.signs_of_life():
        yield ranks


class Ranks:
    """One process: nothing to exchange."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.stage = "before the first iteration"

    def name(self, rank: int) -> str:
        return f"rank {rank}"

    def agree(self, local: Callable[[], tuple[T, dict[str, Any]]]) -> tuple[T, list[dict[str, Any]]]:
        """local() -> (anything, facts), on all ranks or on none; returns the facts of every rank."""
        mine, facts = local()
        return mine, [facts]

    def gather(self, local: Callable[[], Tensor], size: int) -> Tensor:
        """local() [size] of every rank: [ranks, size], float64, on the CPU."""
        return local().to("cpu", torch.float64)[None]

    def sum(self, local: Callable[[], Tensor], size: int) -> Tensor:
        """The sum over the ranks of local() [size], float64, on the CPU."""
        return local().to("cpu", torch.float64)

    def do(self, local: Callable[[], object]) -> None:
        """local() on every rank; what it raises on one ends all of them at the next exchange."""
        local()


class GroupRanks(Ranks):
    def __init__(self, rank: int, size: int, group: Any) -> None:
        super().__init__(rank, size)
        self.group = group
        # NCCL alone has no collectives for tensors on the CPU
        backend = str(dist.get_backend(group))
        self.device = torch.device("cuda" if backend == "nccl" else "cpu")
        store = dist.distributed_c10d._get_default_store()
        self.store = torch_distributed.PrefixStore(f"tim_ext/{group.group_name}", store)
        self.pending: BaseException | None = None  # what this rank must tell the others
        self.seen: dict[int, tuple[str, float]] = {}  # the last sign of life of each rank, and when

    def name(self, rank: int) -> str:
        return f"rank {dist.get_global_rank(self.group, rank)}"

    # Exchange -------------------------------------------------------------------------------------

    def agree(self, local: Callable[[], tuple[T, dict[str, Any]]]) -> tuple[T, list[dict[str, Any]]]:
        mine: Any = None
        facts: dict[str, Any] = {}
        problem: BaseException | None = None
        try:
            mine, facts = local()
        except BaseException as error:
            problem = error
        everyone = self._exchange({"problem": describe(problem), "facts": facts})
        self._raise_first(everyone, problem)
        return mine, [one["facts"] for one in everyone]

    def gather(self, local: Callable[[], Tensor], size: int) -> Tensor:
        mine = self._try(local, size)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self._run(lambda: dist.all_gather(rows, mine, group=self.group, async_op=True))
        return self._checked(torch.stack(rows).cpu())

    def sum(self, local: Callable[[], Tensor], size: int) -> Tensor:
        total = self._try(local, size)
        self._run(lambda: dist.all_reduce(total, group=self.group, async_op=True))
        return self._checked(total.cpu()[None])[0]

    def do(self, local: Callable[[], object]) -> None:
        try:
            local()
        except BaseException as error:
            self.pending = error

    def _try(self, local: Callable[[], Tensor], size: int) -> Tensor:
        """local() with a number in front: whether it failed."""
        message = torch.zeros(size + 1, dtype=torch.float64)
        try:
            if self.pending is None:
                message[1:] = local()
        except BaseException as error:
            self.pending = error
        message[0] = self.pending is not None
        return message.to(self.device)

    def _checked(self, messages: Tensor) -> Tensor:
        """messages [.., 1 + size] without the number in front; raises if some rank has failed."""
        if messages[:, 0].any():
            everyone = self._exchange({"problem": describe(self.pending)})
            self._raise_first(everyone, self.pending)
        return messages[:, 1:]

    def _raise_first(self, everyone: list[dict[str, Any]], mine: BaseException | None) -> None:
        for rank, one in enumerate(everyone):
            if one["problem"] is None:
                continue
            if mine is not None and not isinstance(mine, Exception):
                raise mine  # KeyboardInterrupt and the like stay what they are
            kind, text = one["problem"]
            raise ERRORS.get(kind, RuntimeError)(f"{self.name(rank)}: {text}") from mine

    def _exchange(self, value: Any) -> list[Any]:
        """A small value of every rank, on every rank."""
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        length = torch.tensor([len(data)], device=self.device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        self._run(lambda: dist.all_gather(lengths, length, group=self.group, async_op=True))
        padded = data.new_zeros(max(int(one) for one in lengths))
        padded[: len(data)] = data
        texts = [torch.empty_like(padded) for _ in range(self.size)]
        self._run(lambda: dist.all_gather(texts, padded, group=self.group, async_op=True))
        return [
            json.loads(bytes(text[: int(count)].tolist())) for text, count in zip(texts, lengths, strict=True)
        ]

    # Failure --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def signs_of_life(self) -> Iterator[None]:
        ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone: the main thread says so
                while True:
                    self.store.set(f"beat/{self.rank}", repr(time.time()))
                    if ended.wait(BEAT):
                        return

        thread = threading.Thread(target=beat, name="tim_ext signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(BEAT)

    def _run(self, start: Callable[[], Any]) -> None:
        """Starts a collective and waits for it."""
        self.seen.clear()
        try:
            work = start()
        except RuntimeError as error:
            self._explain(error)
        while True:
            try:
                if self.device.type == "cpu":
                    work.wait(timedelta(seconds=2 * BEAT))
                    return
                if wait_on_device(work, 2 * BEAT):
                    return
            except RuntimeError as error:
                if work.is_completed():
                    self._explain(error)
            self._look(PATIENCE)

    def _explain(self, error: Exception) -> NoReturn:
        """A collective has failed: raises the reason."""
        end = time.monotonic() + 2 * SILENCE
        while time.monotonic() < end:
            self._look(SILENCE)
            time.sleep(BEAT / 2)
        text = str(error).splitlines()[0]
        raise RuntimeError(f"an exchange failed {self.stage} though every rank is alive: {text}") from error

    def _look(self, silence: float) -> None:
        """Raises LostRankError if a rank is lost: others say so, or there was no sign of it for so long."""
        try:
            lost = self._known_loss() or self._silent(silence)
            if lost:
                lost = self._publish(lost)
        except RuntimeError as error:
            raise LostRankError(
                f"{self.name(0)} is lost {self.stage}: the store of the process group, which it or its "
                "launcher holds, does not answer; start all ranks again"
            ) from error
        if lost:
            raise LostRankError(lost)

    def _known_loss(self) -> str:
        return str(self.store.get("lost").decode()) if self.store.check(["lost"]) else ""

    def _silent(self, silence: float) -> str:
        now, lost = time.monotonic(), []
        for rank in range(self.size):
            key = f"beat/{rank}"
            value = self.store.get(key).decode() if self.store.check([key]) else ""
            if rank not in self.seen or self.seen[rank][0] != value:
                self.seen[rank] = value, now
            elif rank != self.rank and now - self.seen[rank][1] > silence:
                lost.append(rank)
        if not lost:
            return ""
        names = ", ".join(map(self.name, lost))
        verb, whose = ("are", "their processes have") if len(lost) > 1 else ("is", "its process has")
        return (
            f"{names} of {self.size} {verb} lost {self.stage}: {whose} ended or cannot be reached; "
            "start all ranks again"
        )

    def _publish(self, lost: str) -> str:
        """The first sentence counts for all. Rank 0 may hold the store, so it lets the others read it."""
        lost = self.store.compare_set("lost", "", lost).decode()
        self.store.set(f"read/{self.rank}", "1")
        end = time.monotonic() + (LINGER if self.rank == 0 else 0)
        while time.monotonic() < end:
            silent = {rank for rank, (_, at) in self.seen.items() if time.monotonic() - at > SILENCE}
            left = [
                rank
                for rank in range(1, self.size)
                if rank not in silent and not self.store.check([f"read/{rank}"])
            ]
            if not left:
                break
            self._silent(SILENCE)
            time.sleep(BEAT / 2)
        return lost


def wait_on_device(work: Any, seconds: float) -> bool:
    """Whether a collective on a GPU ends within this time."""
    end = time.monotonic() + seconds
    pause = 1e-5
    while not work.is_completed():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    work.wait()
    return True


def describe(problem: BaseException | None) -> tuple[str, str] | None:
    """(type, one line)"""
    if problem is None:
        return None
    kind = type(problem).__name__
    text = " ".join(str(problem).split())
    return kind, text if kind in ERRORS and text else f"{kind}: {text}" if text else kind
