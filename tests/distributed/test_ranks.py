"""A rank that is lost: the others name it and end."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import TASK, collect, halves, start_ranks

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
