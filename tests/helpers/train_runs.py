"""Small training runs for the tests of python_train: their data, and processes to run them in.

Processes come from a server that has imported torch once (conftest.py): a new one starts at once and can be
killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from python_train import train

SMALL = ["--model", "conv4", "--width", "8", "--device", "cpu", "--no-tensorboard"]
SMALL += ["--val-tasks", "20", "--val-queries", "5"]
LENGTH = ["--epochs", "8", "--batch-size", "40"]


def write_arrays(
    folder: Path, *, classes: int = 6, per_class: int = 20, side: int = 16, seed: int = 0
) -> Path:
    """train.npz, val.npz and test.npz: noisy images of a colour pattern for each class."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        patterns = rng.integers(0, 256, (classes, side // 4, side // 4, 3))
        labels = rng.permutation(np.repeat(np.arange(classes), per_class))
        noise = rng.normal(0, 40, (len(labels), side, side, 3))
        images = np.kron(patterns[labels], np.ones((1, 4, 4, 1))) + noise
        np.savez(folder / f"{split}.npz", images=images.clip(0, 255).astype(np.uint8), labels=labels)
    return folder


def arguments(data: Path, out: Path, *more: str, length: Sequence[str] = LENGTH) -> list[str]:
    """A run of 24 steps: 8 epochs of 3 batches of 40 images; or of another length."""
    return ["--dataset", "npz", "--data-root", str(data), "--out", str(out), *SMALL, *length, *more]


def start(arguments: Sequence[str], **environment: str) -> ForkServerProcess:
    """`python -m python_train.train` in a process of its own."""
    return _start(environment, _train, list(arguments))


def _start(environment: dict[str, str], function: Callable[..., None], *inputs: Any) -> ForkServerProcess:
    process = multiprocessing.get_context("forkserver").Process(
        target=_call, args=(environment, function, *inputs)
    )
    process.start()
    return process


def _call(environment: dict[str, str], function: Callable[..., None], *inputs: Any) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    if "KILL_AT" in environment:
        _kill_at(*environment["KILL_AT"].split())
    function(*inputs)


def _train(arguments: list[str]) -> None:
    sys.exit(train.main(arguments))


def _kill_at(name: str, number: str) -> None:
    """This process dies when it calls os.`name` for the `number`-th time."""
    left, call = int(number), getattr(os, name)

    def count_down(*inputs: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*inputs)

    setattr(os, name, count_down)


def _ranks(size: int) -> list[dict[str, str]]:
    """The environment of each process, as torchrun sets it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{"RANK": str(rank), **common} for rank in range(size)]


def run_together(arguments: Sequence[str], size: int) -> list[int | None]:
    """One training run in `size` processes; returns their exit codes."""
    processes = [_start(environment, _train, list(arguments)) for environment in _ranks(size)]
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def start_together(
    function: Callable[..., None], size: int, *inputs: Any
) -> tuple[Any, list[ForkServerProcess]]:
    """function(results, *inputs) in `size` processes; returns the queue `results`, and the processes."""
    results = multiprocessing.get_context("forkserver").Queue()
    return results, [_start(environment, function, results, *inputs) for environment in _ranks(size)]
