"""Functions in several processes of one gloo group, and tasks for them."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from helpers.make_tasks import make_task
from torch import Tensor

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ops = torch.ops.tim_ext


def start_ranks(function: Callable[..., None], size: int, *inputs: Any) -> tuple[Any, list[Any]]:
    """function(rank, results, *inputs) in `size` processes of one gloo group."""
    context = multiprocessing.get_context("forkserver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    results = context.Queue()
    processes = [
        context.Process(target=run_rank, args=(rank, size, port, function, results, *inputs))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return results, processes


def run_rank(
    rank: int, size: int, port: str, function: Callable[..., None], results: Any, *inputs: Any
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=120))
    function(rank, results, *inputs)
    results.close()
    results.join_thread()
    dist.destroy_process_group()


def collect(results: Any, processes: list[Any], count: int) -> list[Any]:
    got = [results.get(timeout=300) for _ in range(count)]
    for process in processes:
        process.join()
    return got


# Tasks ---------------------------------------------------------------------------------------------


def sorted_task(**shape: Any) -> tuple[Tensor, Tensor]:
    """All support samples at the end: one rank has them, the others only queries."""
    task = make_task(**shape)
    order = torch.argsort(task.labels, stable=True)
    return task.features[order], task.labels[order]


def mixed_task(dtype: torch.dtype = F64, **shape: Any) -> tuple[Tensor, Tensor]:
    task = make_task(**shape)
    return task.features.to(dtype), task.labels


SMALL = {"seed": 0, "shots": (5, 4, 3, 2, 1), "queries": 700, "d": 48, "noise": 0.9, "padding": 7}
PRIOR = [0.1, 0.2, 0.3, 0.2, 0.2]


TASK = make_task(0, (3, 3, 3), 60, 10, noise=0.2)


def halves(rank: int) -> tuple[Tensor, Tensor]:
    mine = slice(0, 30) if rank == 0 else slice(30, None)
    return TASK.features[mine], TASK.labels[mine]
