"""One huge task, memory-mapped: `python -m benchmarks.scale`, the measurements of docs/scale.md.

    python -m benchmarks.scale                  # 1,000,000 x 512 float16, 100 classes; 1 and 2 processes
    python -m benchmarks.scale --samples 10000 100000 1000000 10000000 --dim 64 --classes 10

A pool of random features is written to a temporary directory (--folder), solved by fresh processes, and
removed. For every run: seconds per iteration next to what the model of docs/scale.md allows, with the
multiply-add peak and the stream bandwidth measured just before; the same in processor seconds, which other
work on the machine disturbs less; and the memory that no file backs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tim_ext.distributed

SHOTS = 5


def peak_of_all_threads() -> float:
    """Multiply-adds per second: the best of a few short measurements."""
    return float(max(torch.ops.tim_ext.cpu_peak(0.1, False) for _ in range(5)))


def write_pool(path: Path, samples: int, dim: int, classes: int) -> None:
    """Gaussian classes in float16, a block at a time; sample i is of class i % K."""
    pool = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(samples, dim))
    generator = torch.Generator().manual_seed(0)
    means = 0.5 * torch.randn(classes, dim, generator=generator)
    block = max(1, (1 << 24) // dim)
    for first in range(0, samples, block):
        rows = torch.arange(first, min(first + block, samples))
        values = torch.randn(len(rows), dim, generator=generator) + means[rows % classes]
        pool[first : first + len(rows)] = values.half().numpy()
    pool.flush()


class Memory:
    """The largest memory of this process that no file backs, in MB, looked at 50 times a second."""

    def __init__(self) -> None:
        self.start = self.highest = self.now()
        threading.Thread(target=self.watch, daemon=True).start()

    def now(self) -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1e3

    def watch(self) -> None:
        while True:
            self.highest = max(self.highest, self.now())
            time.sleep(0.02)


def bandwidth(pool: np.ndarray) -> float:
    """Bytes per second that torch's threads read from the map, the best of three."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")
        numbers = torch.from_numpy(pool.reshape(-1).view(np.int64))
    best = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        numbers.sum()
        best = max(best, pool.nbytes / (time.perf_counter() - begin))
    return best


def peak_per_cpu_second() -> float:
    """Multiply-adds per processor second of one thread: the median of twenty short measurements."""
    rates, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(20):
        begin, cpu = time.perf_counter(), time.process_time()
        rate = torch.ops.tim_ext.cpu_peak(0.03, False)
        rates.append(rate * (time.perf_counter() - begin) / (time.process_time() - cpu))
    torch.set_num_threads(threads)
    return statistics.median(rates)


def run(rank: int, size: int, port: int, threads: int, path: Path, options: Any, results: Any) -> None:
    torch.set_num_threads(threads)
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(minutes=5))
    pool = np.load(path, mmap_mode="r")
    mine = slice(len(pool) * rank // size, len(pool) * (rank + 1) // size)
    labels = torch.full((mine.stop - mine.start,), -1, dtype=torch.int16)
    shots = torch.arange(SHOTS * options.classes)
    here = shots[(shots >= mine.start) & (shots < mine.stop)]
    labels[here - mine.start] = (here % options.classes).to(torch.int16)
    memory, ends = Memory(), [(time.perf_counter(), time.process_time())]
    result = tim_ext.distributed.adm(
        pool[mine],
        labels,
        num_classes=options.classes,
        iterations=options.iterations,
        outputs=("predictions",),
        cache_bytes=options.cache_bytes,
        callback=lambda done: ends.append((time.perf_counter(), time.process_time())),
    )
    total = time.perf_counter() - ends[0][0]
    truth = torch.arange(mine.start, mine.stop) % options.classes
    right = (result.predictions == truth).double().mean().item()
    steps = list(pairwise(ends[1:] if len(ends) > 2 else ends))
    wall, cpu = (statistics.median(end[at] - begin[at] for begin, end in steps) for at in (0, 1))
    report = {"total": total, "iteration": wall, "cpu": cpu, "right": right}
    report |= {"memory": memory.highest, "before": memory.start}
    results.put((rank, report))
    if size > 1:
        dist.destroy_process_group()


def solve(path: Path, processes: int, threads: int, options: Any) -> dict[str, float]:
    """Of all processes: the slowest time, the sum of the memory."""
    context = mp.get_context("spawn")
    results = context.Queue()
    arguments = (processes, options.port, threads, path, options, results)
    workers = [context.Process(target=run, args=(rank, *arguments)) for rank in range(processes)]
    for worker in workers:
        worker.start()
    reports = [results.get()[1] for _ in workers]
    for worker in workers:
        worker.join()
    return {
        "total": max(report["total"] for report in reports),
        "iteration": max(report["iteration"] for report in reports),
        "cpu": sum(report["cpu"] for report in reports),
        "right": statistics.mean(report["right"] for report in reports),
        "memory": sum(report["memory"] for report in reports),
        "before": sum(report["before"] for report in reports),
    }


def model(samples: int, dim: int, classes: int, cached: bool) -> tuple[float, float]:
    """Multiply-adds and bytes of one iteration: docs/scale.md."""
    work = samples * dim * ((1 if cached else 2) * (classes - 1) + classes)
    traffic = (2 if cached else 3) * samples * dim * 2 + (2 * samples * classes * 4 if cached else 0)
    return work, traffic


def report(samples: int, options: Any) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "pool.npy"
        write_pool(path, samples, options.dim, options.classes)
        pool = np.load(path, mmap_mode="r")
        for _ in range(options.repeat):
            for processes in options.processes:
                peak, speed, cpu_peak = peak_of_all_threads(), bandwidth(pool), peak_per_cpu_second()
                got = solve(path, processes, options.threads // processes, options)
                cached = samples * options.classes * 4 <= options.cache_bytes * processes
                work, traffic = model(samples, options.dim, options.classes, cached)
                least = max(work / peak, traffic / speed)
                print(
                    f"{samples:>10,} x {options.dim}, {options.classes} classes, {processes} x "
                    f"{options.threads // processes} threads: {got['iteration']:.4f} s per iteration, "
                    f"{got['total']:.1f} s in all ({options.iterations} iterations); "
                    f"{least / got['iteration']:.0%} of the bound of {least:.4f} s "
                    f"({'multiply-adds' if work / peak > traffic / speed else 'bandwidth'}: "
                    f"{peak / 1e9:.0f} G/s, {speed / 1e9:.1f} GB/s); {got['cpu']:.4f} processor seconds, "
                    f"{work / cpu_peak / got['cpu']:.0%} of {cpu_peak / 1e9:.0f} G/s each; "
                    f"memory {got['memory']:.0f} MB, of which {got['before']:.0f} MB before; "
                    f"{got['right']:.1%} right",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=2, help="of all processes together")
    parser.add_argument("--cache-bytes", type=int, default=1 << 30)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--port", type=int, default=29611)
    parser.add_argument("--folder", help="where the pool is written; the temporary directory by default")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for samples in options.samples:
        report(samples, options)


if __name__ == "__main__":
    main()
