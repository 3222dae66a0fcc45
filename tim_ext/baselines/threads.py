"""Work in threads of its own, rather than every operation of it in all threads of torch.

The operations of a piece are short. Split among threads, each waits for the slowest of them, which on a busy
machine takes many times longer than the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch

Item = TypeVar("Item")

# the number of threads of torch belongs to the process: one caller at a time may change it
_settings = Lock()


def for_each(run: Callable[[Item], None], items: Sequence[Item], device: torch.device) -> None:
    """Calls run(item) for every item, on the CPU with as many at a time as torch has threads."""
    if len(items) == 1 or device.type != "cpu":
        for item in items:
            run(item)
        return
    inference = torch.is_inference_mode_enabled()

    def job(item: Item) -> None:
        with torch.inference_mode(inference), torch.no_grad():  # modes belong to a thread
            run(item)

    with _one_thread_each() as threads, ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(job, item) for item in items]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """In this block, an operation of torch uses one thread; yields how many it may use outside."""
    with _settings:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield threads
        finally:
            torch.set_num_threads(threads)
