"""A rank that is lost: the others name it and end. A rank that comes late: the others wait for it."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
import time
from contextlib import redirect_stderr
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import TASK, collect, halves, start_ranks

import tim_ext
from tim_ext import distributed
from tim_ext.distributed import ranks


def lose_a_rank(rank: int, results: Any, victim: int) -> None:
    ranks.BEAT, ranks.SILENCE = 0.1, 1.5  # sooner than users need it
    features, labels = torch.chunk(TASK.features, 4)[rank], torch.chunk(TASK.labels, 4)[rank]
    if dist.get_world_size() == 2:
        features, labels = halves(rank)

    def die(done: int) -> None:
        if done == 3 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        distributed.adm(features, labels, callback=die)
    except distributed.LostRankError as error:
        results.put((rank, str(error)))
        results.close()
        results.join_thread()
    os._exit(3)  # as after an error that nobody caught; the group is of no use any more


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (4, 2), (4, 0)])
def test_the_others_name_the_lost_rank(size, victim):
    results, processes = start_ranks(lose_a_rank, size, victim)
    said = dict(collect(results, processes, size - 1))
    assert said.keys() == set(range(size)) - {victim}
    for text in said.values():
        assert text.startswith(f"rank {victim} "), said
        assert "lost in iteration 4" in text
        assert "\n" not in text
    if victim:  # rank 0 holds the store that the ranks agree through
        assert len(set(said.values())) == 1
        assert f"rank {victim} of {size} is lost" in said[0]
    assert [process.exitcode for process in processes] == [-9 if r == victim else 3 for r in range(size)]


# Late, or never -----------------------------------------------------------------------------------


def hurry(barrier: bool, patience: float = 600.0) -> None:
    """Times of seconds, and waiting as gloo does or as NCCL has to."""
    ranks.BEAT, ranks.SILENCE, ranks.HELD_UP, ranks.NOTICE, ranks.LINGER = 0.1, 1.5, 3.0, 0.5, 0.5
    ranks.PATIENCE = timedelta(seconds=patience)
    if not barrier:
        ranks.GroupRanks._wait_at_a_barrier = ranks.GroupRanks._wait_at_the_store  # type: ignore[method-assign]


def come_late(rank: int, results: Any, barrier: bool) -> None:
    """Rank 1 comes later than a rank that is there may be silent, and than a collective may last."""
    hurry(barrier)
    group = dist.new_group(timeout=timedelta(seconds=2))
    said, predictions = io.StringIO(), []
    for late in (True, False, True):
        if rank == 1 and late:
            time.sleep(ranks.HELD_UP + 1)
        try:
            with redirect_stderr(said):
                predictions.append(distributed.adm(*halves(rank), group=group).predictions.tolist())
        except RuntimeError as error:  # shown as soon as it happens
            predictions = [str(error)]
            break
    results.put((rank, (predictions, said.getvalue())))


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [True, False])
def test_a_rank_that_comes_late_is_waited_for(barrier):
    got = dict(collect(*start_ranks(come_late, 2, barrier), 2))
    whole = tim_ext.adm(TASK.features, TASK.labels).predictions.tolist()
    assert [first + second for first, second in zip(got[0][0], got[1][0], strict=True)] == [whole] * 3
    lines = got[0][1].splitlines()
    assert len(lines) >= 2
    for line in lines:
        assert re.fullmatch(r"tim_ext: waiting for rank 1 of 2, 0:00:\d\d so far, at most 0:10:00", line)
    assert got[1][1] == ""


def never_come(rank: int, results: Any, barrier: bool, how: str) -> None:
    """Rank 1 ends, or stays elsewhere, before it has come to the second solve."""
    hurry(barrier, patience=2.0 if how == "elsewhere" else 600.0)
    distributed.adm(*halves(rank))
    store = dist.distributed_c10d._get_default_store()
    if rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        try:
            distributed.adm(*halves(rank))
        except distributed.LostRankError as error:
            results.put(str(error))
        store.set("told", "1")
    else:
        store.wait(["told"])
    results.close()
    results.join_thread()
    os._exit(3)


@pytest.mark.parametrize(
    ("barrier", "how", "text"),
    [
        (
            True,
            "killed",
            "rank 1 of 2 is lost before the first iteration: its process has ended or cannot be reached; "
            "start all ranks again",
        ),
        *(
            pytest.param(
                barrier,
                "elsewhere",
                "rank 1 of 2 has given no sign of life in 0:00:02, while rank 0 waited; "
                "start all ranks again",
                marks=[] if barrier else [pytest.mark.slow],
            )
            for barrier in (True, False)
        ),
    ],
)
def test_a_rank_that_never_comes_is_named(barrier, how, text):
    results, processes = start_ranks(never_come, 2, barrier, how)
    assert collect(results, processes, 1) == [text]


def lose_one_while_waiting_for_another(rank: int, results: Any, barrier: bool) -> None:
    hurry(barrier)
    store = dist.distributed_c10d._get_default_store()
    features, labels = torch.chunk(TASK.features, 3)[rank], torch.chunk(TASK.labels, 3)[rank]
    if rank == 1:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if rank == 2:
        store.wait(["told"])
    try:
        distributed.adm(features, labels)
    except distributed.LostRankError as error:
        results.put((rank, str(error)))
    results.close()
    results.join_thread()
    if rank == 0:  # which holds the store
        store.set("told", "1")
        store.wait(["read"])
    else:
        store.set("read", "1")
    os._exit(3)


@pytest.mark.parametrize("barrier", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gone_and_late_are_told_apart(barrier):
    """Rank 1 came and is killed, rank 2 has not come yet: rank 1 is lost, and rank 2 hears of it."""
    got = dict(collect(*start_ranks(lose_one_while_waiting_for_another, 3, barrier), 2))
    assert got.keys() == {0, 2}
    assert got[0] == got[2]
    assert got[0].startswith("rank 1 of 3 is lost before the first iteration: its process has ended")
