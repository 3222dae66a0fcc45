"""The processes that share one task: exchange between them, and what they say when one of them is lost.

Everything runs on torch.distributed. From the moment a rank comes to a solve it gives signs of life in the
process group's store. A rank that gave some and gives no more is gone; one that gave none in this solve has
not come yet, from a slow disk maybe, and is waited for. A collective that fails is explained by the signs
that stopped. All ranks end with the same sentence, and within seconds, also those that torch would let wait
until its timeout.
"""

from __future__ import annotations

import contextlib
import json
import sys
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
HELD_UP = 60.0  # the same where none has failed: a rank may only be held up
PATIENCE = timedelta(hours=2)  # for a rank that has not come yet: it may read a large file
NOTICE = 30.0  # seconds after which a rank says whom it waits for; then after twice as many, and so on
LINGER = 10.0  # seconds that the holder of the store waits for others to read why

T = TypeVar("T")
ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ValueError, TypeError, ImportError, MemoryError)
}


class LostRankError(RuntimeError):
    """Another rank has ended or does not answer."""


class Notices:
    """Lines on stderr about those who are waited for, ever more rarely."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.next = NOTICE

    def due(self) -> bool:
        """Whether it is time for a line; if so, the next one has twice as long."""
        if time.monotonic() - self.start < self.next:
            return False
        self.next *= 2
        return True

    def say(self, names: str, size: int) -> None:
        waited = timedelta(seconds=round(time.monotonic() - self.start))
        print(
            f"tim_ext: waiting for {names} of {size}, {waited} so far, at most {PATIENCE}",
            file=sys.stderr,
            flush=True,
        )


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
        ranks.wait_for_all()
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

    def broadcast(
        self, source: int, local: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor:
        """local() of the rank `source`, which alone calls it, on every rank."""
        return local()

    def swap(
        self, local: Callable[[], list[Tensor]], sent: list[int], received: list[int], dtype: torch.dtype
    ) -> list[Tensor]:
        """local()[s] [sent[s]] goes to rank s; returns what each rank sent here, flat: [received[s]]."""
        return [part.flatten() for part in local()]

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
        self.turn = 0  # the number of this solve among those of the group, from 1
        self.seen: dict[int, tuple[str, float]] = {}  # the last sign of life of each rank, and when
        self.awaited: list[int] = []  # ranks without a sign of life in this solve
        self.notices = Notices()

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

    def broadcast(
        self, source: int, local: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor:
        message = torch.zeros(shape, dtype=dtype, device=self.device)
        if self.rank == source:
            self.do(lambda: message.copy_(local()))
        root = dist.get_global_rank(self.group, source)
        self._run(lambda: dist.broadcast(message, root, group=self.group, async_op=True))
        self.sum(lambda: torch.zeros(0), 0)  # whether some rank has failed
        return message

    def swap(
        self, local: Callable[[], list[Tensor]], sent: list[int], received: list[int], dtype: torch.dtype
    ) -> list[Tensor]:
        there, back = (
            [size + 1 for size in sent],
            [size + 1 for size in received],
        )  # each with a flag in front
        message = torch.zeros(sum(there), dtype=dtype, device=self.device)
        got = torch.zeros(sum(back), dtype=dtype, device=self.device)

        def write() -> None:
            for place, part in zip(message.split_with_sizes(there), local(), strict=True):
                place[1:] = part.flatten()

        if self.pending is None:
            self.do(write)
        for place in message.split_with_sizes(there):
            place[0] = self.pending is not None
        self._run(lambda: dist.all_to_all_single(got, message, back, there, group=self.group, async_op=True))
        parts = got.split_with_sizes(back)
        self._checked(torch.stack([part[:1] for part in parts]).cpu())
        return [part[1:] for part in parts]

    def do(self, local: Callable[[], object]) -> None:
        if self.pending is not None:
            return  # all ranks end at the next exchange
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
        """`TURN TIME` in the store, again and again. A rank counts its turns, one for each solve; as all
        ranks take part in every solve, one with a lower count than mine has not come to this one yet."""
        ended = threading.Event()

        def give() -> None:
            self.store.set(f"beat/{self.rank}", f"{self.turn} {time.time()!r}")

        def beat() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone: the main thread says so
                while not ended.wait(BEAT):
                    give()

        with self._asking_the_store():
            self.turn = int(self.store.add(f"turn/{self.rank}", 1))
            give()
        thread = threading.Thread(target=beat, name="tim_ext signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(BEAT)

    def wait_for_all(self) -> None:
        """Until every rank has come to this solve, whatever the timeout of the group for a collective."""
        if self.device.type == "cpu":
            self._wait_at_a_barrier()
        else:  # NCCL ends the process if a collective takes too long: none is started
            self._wait_at_the_store()

    def _wait_at_a_barrier(self) -> None:
        """gloo's fails at once if a process ends before it comes."""
        options = torch_distributed.BarrierOptions()
        options.timeout = PATIENCE
        self._run(lambda: self.group.barrier(options))

    def _wait_at_the_store(self) -> None:
        self._look(HELD_UP)
        while self.awaited:
            time.sleep(BEAT)
            self._look(HELD_UP)

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
            self._look(HELD_UP)

    def _explain(self, error: Exception) -> NoReturn:
        """A collective has failed: raises the reason."""
        end = time.monotonic() + 2 * SILENCE
        while time.monotonic() < end:
            self._look(SILENCE)
            time.sleep(BEAT / 2)
        if self.awaited:  # nobody who came is gone
            self._end(self._sentence(self.awaited))
        text = str(error).splitlines()[0]
        raise RuntimeError(f"an exchange failed {self.stage} though every rank is alive: {text}") from error

    def _look(self, silence: float) -> None:
        """Raises LostRankError if a rank is lost: others say so, or it is gone, or it does not come."""
        with self._asking_the_store():
            lost = self._known_loss() or self._gone(silence)
        if not lost and self.awaited:
            lost = self._not_come()
        if lost:
            self._end(lost)

    @contextlib.contextmanager
    def _asking_the_store(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRankError(
                f"{self.name(0)} is lost {self.stage}: the store of the process group, which it or its "
                "launcher holds, does not answer; start all ranks again"
            ) from error

    def _end(self, lost: str) -> NoReturn:
        with self._asking_the_store():
            lost = self._publish(lost)
        raise LostRankError(lost)

    def _known_loss(self) -> str:
        return str(self.store.get("lost").decode()) if self.store.check(["lost"]) else ""

    def _gone(self, silence: float) -> str:
        """About the ranks that came to this solve and gave no sign of life for so long."""
        now, gone = time.monotonic(), []
        self.awaited = []
        for rank in range(self.size):
            key = f"beat/{rank}"
            value = self.store.get(key).decode() if self.store.check([key]) else "0"
            if int(value.split()[0]) < self.turn:
                self.awaited.append(rank)
            elif rank not in self.seen or self.seen[rank][0] != value:
                self.seen[rank] = value, now
            elif rank != self.rank and now - self.seen[rank][1] > silence:
                gone.append(rank)
        return self._sentence(gone) if gone else ""

    def _not_come(self) -> str:
        """About the ranks that have not come to this solve, once patience is over; until then, a line now and
        then from the first rank that is there."""
        names = self._names(self.awaited)
        if time.monotonic() - self.notices.start > PATIENCE.total_seconds():
            verb = "have" if len(self.awaited) > 1 else "has"
            return (
                f"{names} of {self.size} {verb} given no sign of life in {PATIENCE}, while "
                f"{self.name(self.rank)} waited; start all ranks again"
            )
        first = min(set(range(self.size)) - set(self.awaited))
        if self.notices.due() and first == self.rank:
            self.notices.say(names, self.size)
        return ""

    def _names(self, ranks: list[int]) -> str:
        return ", ".join(map(self.name, ranks))

    def _sentence(self, lost: list[int]) -> str:
        verb, whose = ("are", "their processes have") if len(lost) > 1 else ("is", "its process has")
        return (
            f"{self._names(lost)} of {self.size} {verb} lost {self.stage}: {whose} ended or cannot be "
            "reached; start all ranks again"
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
            self._gone(SILENCE)
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
